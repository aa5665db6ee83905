"""Invalid requests and their errors."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.app import App
from tidegate.aws import keys

GOOD = {"biz_id": 1, "app_id": 1, "file_path": "/a/b"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"biz_id": None}, "biz_id"),
        ({"biz_id": -1}, "biz_id"),
        ({"biz_id": 2**32}, "biz_id"),
        ({"file_path": "/a/../b"}, "file_path"),
        ({"file_path": "..\\b"}, "file_path"),
        ({"file_path": "/a\x00b"}, "file_path"),
        ({"file_path": "长" * 400}, "file_path"),
        ({"file_path": ""}, "file_path"),
        ({"signature": "xyz"}, "signature"),
        ({"size": -1}, "size"),
        ({"colour": "red"}, "colour"),
        ({"file_name": "a/b"}, "file_name"),
    ],
)
def test_wrong_field_is_422_and_named(cloud: MotoCloud, project: Project, change: dict[str, Any], field: str) -> None:
    answer = cloud.http("POST", "/v1/files", json={**GOOD, **change}, key=project.key)

    assert (answer.status, answer.json()["code"]) == (422, "invalid")
    assert [error["loc"][-1] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize("body", ["{", "nope", '{"biz_id": NaN}', '{"size": 1e999}', "[" * 100_000])
def test_broken_json_is_400(cloud: MotoCloud, project: Project, body: str) -> None:
    answer = cloud.http("POST", "/v1/files", body=body, key=project.key)

    assert (answer.status, answer.json()["code"]) == (400, "broken_json")


def test_body_over_1_mb_is_413(cloud: MotoCloud, project: Project) -> None:
    answer = cloud.http("POST", "/v1/files", json={**GOOD, "file_name": "x" * 1_100_000}, key=project.key)

    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


def test_body_that_is_not_utf_8_is_400(cloud: MotoCloud, project: Project) -> None:
    """A gateway hands such a body over as base64."""
    event = cloud._http_event("POST", "/v1/files", "", {"content-type": "application/json"}, "")
    event["requestContext"]["authorizer"] = {"lambda": {"key_id": "k", "project_id": project.id, "scopes": "write"}}
    event |= {"body": base64.b64encode(b"\xff\xfe").decode(), "isBase64Encoded": True}

    assert cloud.invoke("api", event)["statusCode"] == 400


def test_json_body_that_came_as_base64_is_read(cloud: MotoCloud, project: Project) -> None:
    event = cloud._http_event("POST", "/v1/files", "", {"content-type": "application/json"}, "")
    event["requestContext"]["authorizer"] = {"lambda": {"key_id": "k", "project_id": project.id, "scopes": "write"}}
    event |= {"body": base64.b64encode(json.dumps(GOOD).encode()).decode(), "isBase64Encoded": True}

    assert cloud.invoke("api", event)["statusCode"] == 201


def test_half_a_surrogate_pair_in_a_field_or_its_name_is_422(cloud: MotoCloud, project: Project) -> None:
    for body in ('{"\\ud800": 1}', '{"biz_id": 1, "app_id": 1, "file_path": "/\\ud800"}'):
        assert cloud.http("POST", "/v1/files", body=body, key=project.key).status == 422


@pytest.mark.parametrize("path", ["/v1/files/a\nb", "/v1/nothing%0A", "/v1/projects%0a", "/v1/files/%C2%85", "/\x7f"])
def test_control_character_in_the_path_is_400(cloud: MotoCloud, project: Project, path: str) -> None:
    for key in (None, project.key, cloud.admin_key):
        answer = cloud.http("GET", path, key=key)
        assert (answer.status, answer.json()["code"]) == (400, "bad_path")


@pytest.mark.parametrize("url", ["http://a..b/", f"http://{'a' * 70}.example/", "http://."])
def test_url_with_a_malformed_host_is_422(cloud: MotoCloud, project: Project, url: str) -> None:
    answer = cloud.http("POST", "/v1/files", json={**GOOD, "source_url": url}, key=project.key)

    assert (answer.status, answer.json()["code"]) == (422, "url_not_allowed")


def test_forged_cursor_is_422(cloud: MotoCloud, project: Project) -> None:
    own = {"gsi1pk": {"S": keys.files_list(project.id)}, "gsi1sk": {"S": "x"}, "pk": {"S": 5}, "sk": {"S": "META"}}
    for text in ("[" * 2500, json.dumps(own), json.dumps({"pk": {"BOOL": True}})):
        cursor = base64.urlsafe_b64encode(text.encode()).decode()
        answer = cloud.http("GET", "/v1/files", query={"cursor": cursor}, key=project.key)
        assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", "cursor"])


def test_unknown_route_is_404_and_wrong_method_405(cloud: MotoCloud, project: Project) -> None:
    unknown = cloud.http("GET", "/v1/nothing", key=project.key)
    wrong = cloud.http("PUT", "/v1/files", json={}, key=project.key)

    assert (unknown.status, unknown.json()["code"]) == (404, "route_not_found")
    assert (wrong.status, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, POST"


def test_caller_without_a_key_gets_no_validation_errors(cloud: MotoCloud) -> None:
    assert cloud.http("POST", "/v1/files", json={"colour": 1}).status == 401
    assert cloud.http("POST", "/v1/nothing", json={}).status == 401


def test_internal_error_shows_no_details(cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: App) -> None:
        raise RuntimeError("secret of the house")

    monkeypatch.setattr(App, "files", property(fail))
    answer = cloud.http("GET", "/v1/files", key=project.key)

    assert (answer.status, answer.json()["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    assert b"Traceback" not in answer.body
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/healthz", "/docs", "/openapi.json"])
def test_open_routes_need_no_key(cloud: MotoCloud, path: str) -> None:
    assert cloud.http("GET", path).status == 200


def test_openapi_documents_the_problems(cloud: MotoCloud) -> None:
    contract = cloud.http("GET", "/openapi.json").json()

    answers = contract["paths"]["/v1/files"]["post"]["responses"]
    assert {"201", "401", "403", "409", "413", "422"} <= set(answers)
    problem = contract["components"]["responses"][answers["422"]["$ref"].rsplit("/", 1)[1]]
    assert "application/problem+json" in problem["content"]
