"""Enrolment by the role of an EC2 instance: its credentials, and the request that it signs."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.support.sts import CREDENTIALS, INSTANCE
from tidegate_client.agent import aws
from tidegate_client.agent.aws import Credentials, credentials, server_id, signed_identity
from tidegate_client.cli import main
from tidegate_client.errors import UsageError

NOW = datetime(2026, 12, 24, 18, 0, 0, tzinfo=UTC)
ROLES = "/latest/meta-data/iam/security-credentials/"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE00000",
    "AWS_SECRET_ACCESS_KEY": "s",
    "AWS_SESSION_TOKEN": "t",
    "AWS_REGION": "us-east-1",
}


@pytest.mark.parametrize("region", ["eu-central-1", "cn-north-1"])
@pytest.mark.parametrize("token", ["", "a/long+token=="])
def test_signature_is_the_one_that_botocore_makes(region: str, token: str) -> None:
    role = CREDENTIALS._replace(region=region, token=token)
    made = signed_identity(role, "https://tide.example/", "prj-1", NOW)
    given = {name: value for name, value in made["headers"].items() if name != "authorization"}

    asked = AWSRequest("POST", f"https://{given['host']}/", headers=given, data=aws._BODY)
    asked.context["timestamp"] = given["x-amz-date"]
    signer = SigV4Auth(BotoCredentials(role.key_id, role.secret, token or None), "sts", region)
    canonical = signer.canonical_request(asked)
    signature = signer.signature(signer.string_to_sign(asked, canonical), asked)

    assert made["headers"]["authorization"] == (
        f"AWS4-HMAC-SHA256 Credential={signer.scope(asked)}, "
        f"SignedHeaders={signer.signed_headers(signer.headers_to_sign(asked))}, Signature={signature}"
    )


def test_two_requests_of_a_second_have_different_signatures() -> None:
    made = [signed_identity(CREDENTIALS, "https://tide.example", "prj-1", NOW)["headers"] for _ in range(2)]
    assert made[0]["authorization"] != made[1]["authorization"]


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("https://Tide.example", "tide.example"),
        ("https://tide.example:443/", "tide.example"),
        ("http://127.0.0.1:4566/_aws/execute-api/x/$default", "127.0.0.1:4566"),
    ],
)
def test_signature_names_host_and_port_of_the_api(url: str, name: str) -> None:
    assert server_id(url) == name


def serve_metadata(httpserver: HTTPServer, **documents: str) -> str:
    known = {
        "/latest/api/token": "imds-token",
        ROLES: "web-hosts",
        f"{ROLES}web-hosts": json.dumps({"AccessKeyId": "ASIA", "SecretAccessKey": "s3", "Token": "tok"}),
        "/latest/meta-data/placement/region": "eu-west-1",
    } | documents

    def respond(request: Request) -> Response:
        if request.method != "PUT" and request.headers.get("X-aws-ec2-metadata-token") != "imds-token":
            return Response("", 401)
        return Response(known[request.path]) if known.get(request.path) else Response("", 404)

    httpserver.expect_request("").respond_with_handler(respond)
    for path in known:
        httpserver.expect_request(path).respond_with_handler(respond)
    return f"127.0.0.1:{httpserver.port}"


def test_credentials_come_from_the_metadata_of_the_instance(httpserver: HTTPServer) -> None:
    assert credentials({}, serve_metadata(httpserver)) == Credentials("ASIA", "s3", "tok", "eu-west-1")


def test_credentials_of_the_environment_come_first(httpserver: HTTPServer) -> None:
    found = credentials(ENVIRONMENT, f"127.0.0.1:{httpserver.port}")
    assert found == Credentials("AKIDEXAMPLE00000", "s", "t", "us-east-1")
    assert not httpserver.log


@pytest.mark.parametrize("documents", [{ROLES: ""}, {f"{ROLES}web-hosts": "{}"}, {f"{ROLES}web-hosts": "<html>"}])
def test_instance_without_a_role_is_told_what_to_do(httpserver: HTTPServer, documents: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="Attach a role"):
        credentials({}, serve_metadata(httpserver, **documents))


def test_credentials_are_not_printed() -> None:
    assert "secret" not in repr(CREDENTIALS)


# --- the command


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    for name in ("TIDEGATE_PROJECT", "TIDEGATE_KEY", "TIDEGATE_API_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("time.sleep", lambda _: None)


@pytest.mark.usefixtures("host")
def test_command_stores_the_key_and_shows_the_instance_id(
    httpserver: HTTPServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    made = {"project_id": "prj-1", "agent_id": INSTANCE, "key_id": "k", "key": "tg_k_x"}
    busy = {"code": "busy", "title": "busy", "status": 503, "detail": "STS cannot be asked now"}
    httpserver.expect_ordered_request("/v1/agents/enrol", "POST").respond_with_json(busy, status=503)
    httpserver.expect_ordered_request("/v1/agents/enrol", "POST").respond_with_json(made, status=201)

    assert main(["agent", "enrol", "--aws", "--project", "prj-1", "--url", httpserver.url_for("")]) == 0

    sent: list[dict[str, Any]] = [request.get_json() for request, _ in httpserver.log]
    signatures = {body["aws"]["headers"]["authorization"] for body in sent}
    assert len(sent) == len(signatures) == 2
    assert {body["claim"] for body in sent} == {sent[0]["claim"]}
    assert {body["aws"]["headers"]["x-tidegate-server-id"] for body in sent} == {f"localhost:{httpserver.port}"}
    assert "agent_id" not in sent[0]
    assert f"--agent-id {INSTANCE}" in capsys.readouterr().err
    assert "tg_k_x" in "".join(file.read_text() for file in tmp_path.rglob("config.json"))


@pytest.mark.usefixtures("host")
def test_refused_role_is_not_tried_again(httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    problem = {"code": "identity_refused", "title": "no", "status": 401, "detail": "the role may not enrol hosts"}
    httpserver.expect_request("/v1/agents/enrol", "POST").respond_with_json(problem, status=401)

    assert main(["agent", "enrol", "--aws", "--project", "prj-1", "--url", httpserver.url_for("")]) != 0
    assert len(httpserver.log) == 1
    assert "the role may not enrol hosts" in capsys.readouterr().err


@pytest.mark.usefixtures("host")
def test_command_needs_a_project(httpserver: HTTPServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["agent", "enrol", "--aws", "--url", httpserver.url_for("")]) != 0
    assert "--project is missing" in capsys.readouterr().err


def test_admin_allows_roles_with_their_groups_and_labels(
    httpserver: HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_API_URL", httpserver.url_for(""))
    monkeypatch.setenv("TIDEGATE_KEY", "tg_a_b")
    full = {"groups": ["web", "db"], "labels": {"os": "al2023", "env": "prod"}, "replace": True}
    role = {"account": "123456789012", "role": "web=a,b"}
    wanted = {"aws_roles": [role | full, role]}
    httpserver.expect_request("/v1/projects/prj-1", "PATCH", json=wanted).respond_with_json({"project_id": "prj-1"})

    update = ["project", "update", "prj-1", "--aws-role"]
    text = "123456789012/web=a,b groups=web,db labels=os=al2023,env=prod replace"

    assert main([*update, text, "--aws-role", "123456789012/web=a,b"]) == 0
    assert main([*update, "123456789012/web zone=x"]) == 2
    assert main([*update, "123456789012/web labels=x"]) == 2
