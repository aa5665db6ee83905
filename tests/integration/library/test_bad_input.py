"""What the door refuses, and how it says so."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.moto_cloud import MotoCloud, Project
from tidegate.bootstrap import App

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
def test_a_wrong_field_is_422_and_named(cloud: MotoCloud, project: Project, change: dict[str, Any], field: str) -> None:
    answer = cloud.http("POST", "/v1/files", json={**GOOD, **change}, key=project.key)

    assert (answer.status, answer.json()["code"]) == (422, "invalid")
    assert [error["loc"][-1] for error in answer.json()["errors"]] == [field]


@pytest.mark.parametrize("body", ["{", "nope", '{"biz_id": NaN}', "[" * 100_000])
def test_broken_json_is_400(cloud: MotoCloud, project: Project, body: str) -> None:
    answer = cloud.http("POST", "/v1/files", body=body, key=project.key)

    assert (answer.status, answer.json()["code"]) == (400, "broken_json")


def test_a_body_over_1_mb_is_413(cloud: MotoCloud, project: Project) -> None:
    answer = cloud.http("POST", "/v1/files", json={**GOOD, "file_name": "x" * 1_100_000}, key=project.key)

    assert (answer.status, answer.json()["code"]) == (413, "body_too_large")


def test_unknown_route_and_wrong_method(cloud: MotoCloud, project: Project) -> None:
    unknown = cloud.http("GET", "/v1/nothing", key=project.key)
    wrong = cloud.http("PUT", "/v1/files", json={}, key=project.key)

    assert (unknown.status, unknown.json()["code"]) == (404, "route_not_found")
    assert (wrong.status, wrong.json()["code"]) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET, POST"


def test_a_stranger_learns_nothing_from_validation(cloud: MotoCloud) -> None:
    assert cloud.http("POST", "/v1/files", json={"colour": 1}).status == 401
    assert cloud.http("POST", "/v1/nothing", json={}).status == 401


def test_a_failure_within_shows_nothing_of_it(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_contract_names_its_problems(cloud: MotoCloud) -> None:
    contract = cloud.http("GET", "/openapi.json").json()

    answers = contract["paths"]["/v1/files"]["post"]["responses"]
    assert {"201", "401", "403", "409", "413", "422"} <= set(answers)
    assert "application/problem+json" in answers["422"]["content"]
