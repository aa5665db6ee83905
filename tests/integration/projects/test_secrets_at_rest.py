"""The table holds no secrets, and callback secrets are derived."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.integration.notifications.receiving import receiver, send_notice, verified
from tests.integration.notifications.watching import Line
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.projects.secrets import RootSecret

ROOT = "/tidegate/tidegate/callback-root"
OLD = "whsec_" + base64.b64encode(b"o" * 32).decode()


def table(cloud: MotoCloud) -> str:
    return json.dumps(cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"], default=str)


def twice(cloud: MotoCloud, path: str, body: Any, *, key: str | None = None) -> tuple[Answer, Answer]:
    def once() -> Answer:
        return cloud.http("POST", path, json=body, key=key or cloud.admin_key, headers={"idempotency-key": "one"})

    return once(), once()


def secrets_in(answer: Answer) -> list[str]:
    names = ("key", "callback_secret", "ticket")
    return [str(value) for name, value in answer.json().items() if name in names and value]


def test_repeated_key_creation_is_409_and_names_the_key(cloud: MotoCloud, project: Project) -> None:
    first, again = twice(cloud, f"/v1/projects/{project.id}/keys", {"scopes": ["read", "write"]})

    assert first.status == 201
    assert (again.status, again.json()["code"]) == (409, "already_created")
    assert again.json()["key_id"] == first.json()["key_id"]
    assert first.json()["key_id"] in again.json()["detail"]
    assert again.headers["content-type"] == "application/problem+json"
    listed = cloud.http("GET", f"/v1/projects/{project.id}/keys", key=cloud.admin_key).json()["items"]
    assert len(listed) == 2


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/projects/{project}/keys", {"scopes": ["read", "write"]}),
        ("/v1/keys", {"name": "second"}),
        ("/v1/keys/{key}/rotate", {"overlap_s": 60}),
        ("/v1/keys/admin/rotate", {"overlap_s": 60}),
        ("/v1/projects/{project}/callback-secrets", None),
        ("/v1/ws-tickets", None),
    ],
)
def test_no_answer_that_holds_a_secret_is_stored(cloud: MotoCloud, project: Project, path: str, body: Any) -> None:
    path = path.format(project=project.id, key=project.key.split("_")[1])
    first, again = twice(cloud, path, body, key=project.key if path == "/v1/ws-tickets" else None)

    assert first.status == 201, first.body
    assert secrets_in(first)
    assert (again.status, again.json()["code"]) == (409, "already_created")
    stored = table(cloud)
    for secret in secrets_in(first):
        assert secret not in stored
        assert secret not in again.body.decode()


def test_failed_creation_may_be_repeated_with_its_key(cloud: MotoCloud) -> None:
    first, again = twice(cloud, "/v1/projects/prj-none/keys", {"scopes": ["read"]})

    assert (first.status, again.status) == (404, 404)


def test_same_key_with_another_body_is_still_a_conflict(cloud: MotoCloud, project: Project) -> None:
    path = f"/v1/projects/{project.id}/keys"
    twice(cloud, path, {"scopes": ["read"]})

    other, _ = twice(cloud, path, {"scopes": ["write"]})

    assert (other.status, other.json()["code"]) == (409, "idempotency_conflict")


def test_routes_with_secrets_document_the_idempotency_key(cloud: MotoCloud) -> None:
    paths = cloud.http("GET", "/openapi.json").json()["paths"]

    for path in ("/v1/projects/{project_id}/keys", "/v1/keys/{key_id}/rotate", "/v1/ws-tickets"):
        assert "Idempotency-Key" in [found["name"] for found in paths[path]["post"].get("parameters", [])]


# --- derived callback secrets


def test_table_has_no_callback_secret_and_the_root_is_encrypted(cloud: MotoCloud, project: Project) -> None:
    secret = cloud.callback_secret(project.id)

    stored = table(cloud)

    assert secret not in stored
    assert "whsec_" not in stored
    root = cloud.client("ssm").get_parameter(Name=ROOT, WithDecryption=True)["Parameter"]
    assert root["Type"] == "SecureString"
    assert len(base64.b64decode(root["Value"])) == 32
    assert root["Value"] not in stored


def test_two_projects_have_different_secrets(cloud: MotoCloud, project: Project) -> None:
    assert cloud.callback_secret(project.id) != cloud.callback_secret(cloud.project().id)


def test_rotation_raises_the_generation_and_the_table_still_holds_none(cloud: MotoCloud, project: Project) -> None:
    path = f"/v1/projects/{project.id}/callback-secrets"
    seen = [cloud.callback_secret(project.id)]

    for generation in (2, 3):
        seen.append(cloud.http("POST", path, key=cloud.admin_key).json()["callback_secret"])
        assert cloud.app.projects.projects.get(project.id).secret_generations == (generation, generation - 1)
        assert cloud.http("DELETE", f"{path}/previous", key=cloud.admin_key).status == 204

    assert len(set(seen)) == 3
    assert "whsec_" not in table(cloud)


def of_before(cloud: MotoCloud, project: Project, *secrets: str) -> None:
    """Changes the project's item to the old format with stored secrets."""
    cloud.client("dynamodb").update_item(
        TableName=cloud.names.refs["Table"],
        Key={"pk": {"S": f"P#{project.id}#PROJECT"}, "sk": {"S": "META"}},
        UpdateExpression="SET callback_secrets = :s REMOVE secret_generations, quotas, revision",
        ExpressionAttributeValues={":s": {"L": [{"S": secret} for secret in secrets]}},
    )


def test_old_project_signs_with_its_stored_secret_until_rotated(cloud: MotoCloud, project: Project) -> None:
    of_before(cloud, project, OLD)
    path = f"/v1/projects/{project.id}/callback-secrets"

    with receiver() as at:
        send_notice(project, at.url, "req-1")
        cloud.deliver("CallbacksQueue")
        verified(OLD, *at.seen[0])

        new = cloud.http("POST", path, key=cloud.admin_key).json()["callback_secret"]
        send_notice(project, at.url, "req-2")
        cloud.deliver("CallbacksQueue")
        verified(OLD, *at.seen[1])
        verified(new, *at.seen[1])

        assert cloud.http("DELETE", f"{path}/previous", key=cloud.admin_key).status == 204
        assert "whsec_" not in table(cloud)
        send_notice(project, at.url, "req-3")
        cloud.deliver("CallbacksQueue")
        verified(new, *at.seen[2])


def test_rotation_begun_with_stored_secrets_can_be_ended(cloud: MotoCloud, project: Project) -> None:
    newer = "whsec_" + base64.b64encode(b"n" * 32).decode()
    of_before(cloud, project, newer, OLD)
    path = f"/v1/projects/{project.id}/callback-secrets"

    assert cloud.http("POST", path, key=cloud.admin_key).status == 409
    assert cloud.http("DELETE", f"{path}/previous", key=cloud.admin_key).status == 204

    assert cloud.callback_secret(project.id) == newer
    assert cloud.http("POST", path, key=cloud.admin_key).status == 201


def test_of_two_rotations_at_once_one_is_refused(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = cloud.app.projects.callback_secrets
    stale = cloud.app.projects.projects.get(project.id)
    secrets.rotate(project.id)
    monkeypatch.setattr(secrets._store, "get", lambda *_, **__: stale)

    answer = cloud.http("POST", f"/v1/projects/{project.id}/callback-secrets", key=cloud.admin_key)

    assert (answer.status, answer.json()["code"]) == (409, "conflict")


# --- the root secret


def test_root_secret_is_read_once_a_process(cloud: MotoCloud) -> None:
    client, calls = cloud.client("ssm"), 0
    read = client.get_parameter

    class Counted:
        exceptions = client.exceptions
        put_parameter = client.put_parameter

        def get_parameter(self, **request: Any) -> Any:
            nonlocal calls
            calls += 1
            return read(**request)

    root = RootSecret(Counted(), "/tidegate/x/callback-root")  # type: ignore[arg-type]

    assert root() == root()
    assert calls == 1


def test_two_functions_that_create_the_root_secret_use_the_first(cloud: MotoCloud) -> None:
    client, name = cloud.client("ssm"), "/tidegate/x/callback-root"
    first = RootSecret(client, name)

    class ReadsStale:
        """Parameter Store that does not show yet what the other function stored."""

        exceptions = client.exceptions
        put_parameter = client.put_parameter
        stale = 3

        def get_parameter(self, **request: Any) -> Any:
            if self.stale == 3:
                first()
            self.stale -= 1
            if self.stale >= 0:
                raise client.exceptions.ParameterNotFound({}, "GetParameter")
            return client.get_parameter(**request)

    second = RootSecret(ReadsStale(), name, sleep=lambda _: None)  # type: ignore[arg-type]

    assert second() == first()


def test_root_secret_and_what_is_derived_are_not_logged(
    cloud: MotoCloud, project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    with receiver() as at:
        send_notice(project, at.url, "req-1")
        cloud.deliver("CallbacksQueue")
    cloud.http("POST", f"/v1/projects/{project.id}/keys", json={"scopes": ["write"]}, key=cloud.admin_key)
    Line(cloud).ticket(project)

    printed = "".join(capsys.readouterr())

    root = cloud.client("ssm").get_parameter(Name=ROOT, WithDecryption=True)["Parameter"]["Value"]
    assert root not in printed
    assert cloud.callback_secret(project.id) not in printed
