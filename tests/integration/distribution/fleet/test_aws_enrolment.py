"""Enrolment by an AWS role: STS confirms what the host signed, and an admin has allowed the role."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Response

from tests.support import sts as fake
from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer
from tests.support.sts import ACCOUNT, INSTANCE, ROLE, FakeSts, Instance
from tidegate.distribution import aws_identity
from tidegate.errors import ConnectionFailed
from tidegate.http.model import Limits

CLAIM = "a-secret-of-this-host"


@pytest.fixture
def sts(fleet: Fleet, httpserver: HTTPServer) -> Iterator[FakeSts]:
    made = FakeSts(httpserver)
    with fake.using(fleet.cloud.app, made):
        yield made


@pytest.fixture
def instance(fleet: Fleet, sts: FakeSts) -> Instance:
    """Its role may enrol."""
    allow(fleet, {"account": ACCOUNT, "role": ROLE, "groups": ["web"], "labels": {"os": "al2023"}})
    return Instance(fleet.project.id, fleet.cloud.clock)


def allow(fleet: Fleet, *roles: dict[str, Any]) -> dict[str, Any]:
    path, body = f"/v1/projects/{fleet.project.id}", {"aws_roles": list(roles)}
    answer = fleet.cloud.http("PATCH", path, json=body, key=fleet.cloud.admin_key)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def enrol(fleet: Fleet, identity: dict[str, Any], **more: Any) -> Answer:
    return fleet.cloud.http("POST", "/v1/agents/enrol", json={"aws": identity, **more}, key=None)


def refused(answer: Answer, text: str) -> None:
    assert (answer.status, answer.json()["code"]) == (401, "identity_refused"), answer.body
    assert text in answer.json()["detail"]


def works(fleet: Fleet, key: str, agent_id: str = INSTANCE) -> bool:
    return fleet.cloud.http("GET", f"/v1/agents/{agent_id}/transfers", key=key).status == 200


def test_instance_of_an_allowed_role_gets_a_key_groups_and_labels(fleet: Fleet, instance: Instance) -> None:
    answer = enrol(fleet, instance.identity(), zone="eu-central-1a")

    assert answer.status == 201, answer.body
    assert answer.json()["agent_id"] == INSTANCE
    assert works(fleet, answer.json()["key"])
    shown = fleet.get(f"/v1/agents/{INSTANCE}")
    assert (shown["groups"], shown["labels"], shown["zone"]) == (["web"], {"os": "al2023"}, "eu-central-1a")


def test_enrolment_and_grant_are_audited_with_account_and_role(fleet: Fleet, instance: Instance) -> None:
    identity = instance.identity()
    enrol(fleet, identity)

    lines = fleet.get("/v1/audit")["items"]

    by_action = {line["action"]: line for line in lines}
    assert by_action["agent.enrol"]["who"] == f"aws:{ACCOUNT}/{ROLE}"
    assert f"{ACCOUNT}/{ROLE}" in by_action["project.change"]["why"]
    assert identity["headers"]["authorization"][-64:] not in str(lines)


def test_session_token_and_signature_are_not_stored(fleet: Fleet, instance: Instance) -> None:
    enrol(fleet, instance.identity())

    stored = str(fleet.cloud.client("dynamodb").scan(TableName=fleet.cloud.names.refs["Table"])["Items"])
    assert fake.TOKEN not in stored
    assert "AWS4-HMAC" not in stored


# --- who may


def test_wrong_account_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    sts.arn, sts.account = sts.arn.replace(ACCOUNT, "999999999999"), "999999999999"

    refused(enrol(fleet, instance.identity()), "999999999999")


@pytest.mark.parametrize("role", ["web-hosts2", "Web-Hosts", "web"])
def test_wrong_role_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts, role: str) -> None:
    sts.arn = f"arn:aws:sts::{ACCOUNT}:assumed-role/{role}/{INSTANCE}"

    refused(enrol(fleet, instance.identity()), role)


@pytest.mark.parametrize(
    "arn",
    [
        f"arn:aws:iam::{ACCOUNT}:user/{ROLE}/{INSTANCE}",
        f"arn:aws:iam::{ACCOUNT}:root",
        f"arn:aws:sts::{ACCOUNT}:federated-user/{ROLE}",
        f"arn:aws:sts::{ACCOUNT}:assumed-role/path/{ROLE}/{INSTANCE}",
        f"arn:evil:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}",
    ],
)
def test_identity_that_is_no_assumed_role_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts, arn: str) -> None:
    sts.arn = arn

    refused(enrol(fleet, instance.identity()), "only an assumed role")


def test_instance_cannot_enrol_as_another(fleet: Fleet, instance: Instance) -> None:
    refused(enrol(fleet, instance.identity(), agent_id="i-0fffffffffffffff0"), INSTANCE)
    assert enrol(fleet, instance.identity(), agent_id=INSTANCE).status == 201


def test_role_taken_off_the_list_enrols_no_more(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    assert allow(fleet)["aws_roles"] == []

    refused(enrol(fleet, instance.identity()), "no AWS role may enrol")
    assert sts.calls == []


def test_role_that_is_taken_off_while_sts_answers_gets_no_key(
    fleet: Fleet, instance: Instance, sts: FakeSts, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sts.send

    def send(*asked: Any, **how: Any) -> Any:
        allow(fleet)
        return real(*asked, **how)

    monkeypatch.setattr(sts, "send", send)

    assert enrol(fleet, instance.identity()).status == 409
    assert fleet.cloud.http("GET", f"/v1/agents/{INSTANCE}", key=fleet.project.key).status == 404


def test_role_of_another_project_does_not_count(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    other = fleet.cloud.project()

    refused(enrol(fleet, instance.identity(project_id=other.id)), "no AWS role may enrol")
    refused(enrol(fleet, instance.identity(project_id="prj-unknown")), "no AWS role may enrol")
    assert sts.calls == []


@pytest.mark.parametrize(
    "roles",
    [
        [{"account": "1234", "role": "web"}],
        [{"account": "*", "role": "web"}],
        [{"account": ACCOUNT, "role": "web-*"}],
        [{"account": ACCOUNT, "role": "path/web"}],
        [{"account": ACCOUNT, "role": "web"}] * 2,
        [{"account": ACCOUNT, "role": f"web-{n}"} for n in range(21)],
    ],
)
def test_grant_names_few_exact_roles(fleet: Fleet, roles: list[dict[str, str]]) -> None:
    path = f"/v1/projects/{fleet.project.id}"
    assert fleet.cloud.http("PATCH", path, json={"aws_roles": roles}, key=fleet.cloud.admin_key).status == 422


# --- what was signed; STS is not asked


def test_signature_is_accepted_once(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    identity = instance.identity()
    key = enrol(fleet, identity, claim=CLAIM).json()["key"]

    refused(enrol(fleet, identity, claim=CLAIM), "used already")
    refused(enrol(fleet, identity), "used already")

    assert len(sts.calls) == 1
    assert works(fleet, key)


def test_signature_whose_first_use_failed_gives_nobody_a_key(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    """Somebody saw the request in the log of a proxy, and STS was down when the host sent it."""
    identity = instance.identity()
    sts.answer = lambda: Response("", 500)
    assert enrol(fleet, identity).status == 503
    sts.answer = None

    refused(enrol(fleet, identity), "used already")
    assert enrol(fleet, instance.identity()).status == 201


@pytest.mark.parametrize("minutes", [-6, 6])
def test_signature_of_another_time_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts, minutes: int) -> None:
    then = fleet.cloud.clock() + timedelta(minutes=minutes)

    refused(enrol(fleet, instance.identity(clock=lambda: then)), "more than 5 minutes")
    assert sts.calls == []


def test_request_signed_for_another_server_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    """That server has got it from the host, and passes it on."""
    refused(enrol(fleet, instance.identity(server="https://evil.example")), "api.test")
    assert sts.calls == []


@pytest.mark.parametrize(
    "name", ["host", "x-amz-date", "x-amz-security-token", "x-tidegate-server-id", "x-tidegate-project-id"]
)
def test_header_that_is_not_signed_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts, name: str) -> None:
    identity = instance.identity()
    signed = identity["headers"]["authorization"]
    identity["headers"]["authorization"] = signed.replace(f"{name};", "").replace(f";{name},", ",")

    refused(enrol(fleet, identity), name)
    assert sts.calls == []


def test_header_that_was_changed_after_signing_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    """A request for another project of this installation."""
    other = fleet.cloud.project()
    identity = instance.identity(project_id=other.id)
    identity["headers"]["x-tidegate-project-id"] = fleet.project.id

    refused(enrol(fleet, identity), "SignatureDoesNotMatch")


def test_signature_with_another_secret_is_refused(fleet: Fleet, instance: Instance) -> None:
    refused(enrol(fleet, instance.identity(role=instance.role._replace(secret="other"))), "403")


@pytest.mark.parametrize(
    "region",
    [
        "evil.example/x",
        "eu-central-1.evil.example#",
        "eu-central-1@evil.example",
        "localhost",
        "eu-central-1\n",
        "eu-central-99",
        "",
    ],
)
def test_region_that_is_none_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts, region: str) -> None:
    assert enrol(fleet, instance.identity() | {"region": region}).status == 422
    assert sts.calls == []


@pytest.mark.parametrize(
    "changed",
    [
        {"host": "evil.example"},
        {"Host": "sts.eu-central-1.amazonaws.com"},
        {"x-forwarded-host": "evil.example"},
        {"accept": "application/json"},
        {"content-type": "text/plain\r\nx-evil: 1"},
        {"x-amz-date": "today"},
        {"x-amz-date": "20261399T000000Z"},
        {"x-tidegate-project-id": "a b"},
        {"x-tidegate-project-id": "p" * 2000},
        {"authorization": "Basic YTpi"},
        {"authorization": "AWS4-HMAC-SHA256 Credential=a, SignedHeaders=b, Signature=c"},
    ],
)
def test_odd_headers_are_refused_before_sts_is_asked(
    fleet: Fleet, instance: Instance, sts: FakeSts, changed: dict[str, str]
) -> None:
    identity = instance.identity()
    identity["headers"] |= changed

    assert enrol(fleet, identity).status == 401
    assert sts.calls == []


@pytest.mark.parametrize(
    "headers",
    [{}, {"x-amz-security-token": "t" * 4097}, {f"x-{n}": "v" for n in range(13)}, {"x" * 65: "v"}, {"x y": "v"}],
)
def test_huge_or_malformed_headers_are_refused(
    fleet: Fleet, instance: Instance, sts: FakeSts, headers: dict[str, str]
) -> None:
    given = (instance.identity()["headers"] | headers) if headers else {}

    assert enrol(fleet, {"region": fake.REGION, "headers": given}).status == 422
    assert sts.calls == []


def test_region_other_than_the_signed_one_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    refused(enrol(fleet, instance.identity() | {"region": "us-east-1"}), "sts.us-east-1.amazonaws.com")
    assert sts.calls == []


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("us-gov-west-1", "sts.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn"),
        ("ap-southeast-4", "sts.ap-southeast-4.amazonaws.com"),
    ],
)
def test_sts_of_the_signed_region_is_asked(
    fleet: Fleet, instance: Instance, sts: FakeSts, region: str, host: str
) -> None:
    assert enrol(fleet, instance.identity(role=instance.role._replace(region=region))).status == 201
    assert sts.calls == [f"https://{host}/"]


@pytest.mark.parametrize("body", [{}, {"agent_id": "a"}, {"token": "t"}, {"token": "t", "aws": {}, "agent_id": "a"}])
def test_enrolment_needs_one_proof(fleet: Fleet, body: dict[str, Any]) -> None:
    assert fleet.cloud.http("POST", "/v1/agents/enrol", json=body, key=None).status == 422


# --- what STS answers


def test_sts_that_hangs_is_given_up_and_may_be_tried_again(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    sts.answer = fake.hangs
    with patch.object(aws_identity, "_LIMITS", Limits(connect=1, read=0.3, total=0.5, max_bytes=65536)):
        answer = enrol(fleet, instance.identity())

    assert (answer.status, answer.json()["code"]) == (503, "busy")
    assert "retry-after" in answer.headers


def test_limits_of_the_call_are_short() -> None:
    assert aws_identity._LIMITS.total <= 3
    assert aws_identity._LIMITS.max_bytes <= 65536


def test_unreachable_sts_may_be_tried_again(
    fleet: Fleet, instance: Instance, sts: FakeSts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionFailed("no route to host")

    monkeypatch.setattr(sts, "send", fail)

    assert enrol(fleet, instance.identity()).status == 503


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (Response("", 500), 503),
        (Response("", 503), 503),
        (Response("", 429), 503),
        (Response(fake.error_xml("Throttling"), 400), 503),
        (Response(fake.error_xml("ExpiredToken"), 403), 401),
        (Response(fake.error_xml("<b/>"), 403), 401),
        (Response("<html>", 403), 502),
        (Response("", 302, {"Location": "http://127.0.0.1:1/"}), 502),
        (Response(fake.identity_xml("x").replace("sts.amazonaws.com/doc", "evil.example"), 200), 401),
        (Response(fake.identity_xml("x").replace("CallerIdentity", "SessionToken"), 200), 401),
        (Response("{}", 200), 502),
        (Response("", 200), 502),
        (Response("x" * 70_000, 200), 503),
    ],
)
def test_other_answers_of_sts_give_no_key(
    fleet: Fleet, instance: Instance, sts: FakeSts, answer: Response, status: int
) -> None:
    sts.answer = lambda: answer

    assert enrol(fleet, instance.identity()).status == status
    assert len(sts.calls) == 1
    assert fleet.cloud.http("GET", f"/v1/agents/{INSTANCE}", key=fleet.project.key).status == 404


def test_xml_bomb_is_refused(fleet: Fleet, instance: Instance, sts: FakeSts) -> None:
    entities = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "x" * 100}">' for n in range(10))
    bomb = f"<!DOCTYPE a [{entities}]>" + fake.identity_xml("&e9;")
    sts.answer = lambda: Response(bomb, 200)

    assert enrol(fleet, instance.identity()).status == 502


# --- ids that exist


def test_instance_enrols_again_after_a_lost_answer(fleet: Fleet, instance: Instance) -> None:
    lost = enrol(fleet, instance.identity(), claim=CLAIM).json()["key"]
    second = enrol(fleet, instance.identity(), claim=CLAIM)

    assert second.status == 201
    assert works(fleet, second.json()["key"])
    assert not works(fleet, lost)
    assert enrol(fleet, instance.identity(), claim=CLAIM).json()["code"] == "agent_exists"


def test_other_process_of_the_instance_does_not_take_its_id(fleet: Fleet, instance: Instance) -> None:
    key = enrol(fleet, instance.identity(), claim=CLAIM).json()["key"]

    assert enrol(fleet, instance.identity(), claim="another-secret-of-it").json()["code"] == "agent_exists"
    assert works(fleet, key)


def test_role_that_may_replace_gives_a_reinstalled_instance_a_new_key(fleet: Fleet, instance: Instance) -> None:
    old = enrol(fleet, instance.identity()).json()["key"]
    assert works(fleet, old)
    allow(fleet, {"account": ACCOUNT, "role": ROLE, "replace": True})

    new = enrol(fleet, instance.identity())

    assert new.status == 201, new.body
    assert works(fleet, new.json()["key"])
    assert not works(fleet, old)
