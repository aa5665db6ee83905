"""Invalid requests get a clear 4xx, and nothing is stored."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud

BAD_FIELDS = [
    ({"file_signature": "0" * 63}, "file_signature"),
    ({"file_signature": "g" * 64}, "file_signature"),
    ({"target_agent_id": ""}, "target_agent_id"),
    ({"target_agent_id": "a b"}, "target_agent_id"),
    ({"target_agent_id": "a" * 129}, "target_agent_id"),
    ({"target_container_id": "c/1"}, "target_container_id"),
    ({"target_file_dir": "opt/app"}, "target_file_dir"),
    ({"target_file_dir": "/opt/../etc"}, "target_file_dir"),
    ({"file_name": "a/b"}, "file_name"),
    ({"file_path": ""}, "file_path"),
    ({"biz_id": -1}, "biz_id"),
    ({"biz_id": 2**32}, "biz_id"),
    ({"target_user": ""}, "target_user"),
    ({"callback": "ftp://x"}, "callback"),
    ({"surprise": 1}, "surprise"),
]


def stored(fleet: Fleet) -> int:
    return len(fleet.get("/v1/downloads")["items"]) + len(fleet.get("/v1/jobs")["items"])


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS, ids=lambda value: str(value)[:40])
def test_bad_field_is_named_and_nothing_is_stored(fleet: Fleet, change: dict[str, Any], field: str) -> None:
    answer = fleet.post("/v1/downloads", fleet.body(**{"target_agent_id": "a-1", **change}))
    assert answer.status == 422
    assert any(field in error["loc"] for error in answer.json()["errors"])
    assert stored(fleet) == 0


@pytest.mark.parametrize("count", [0, 1001])
def test_batch_takes_1_to_1000_targets(fleet: Fleet, count: int) -> None:
    targets = [{"agent_id": f"a-{n}"} for n in range(count)]
    answer = fleet.post("/v1/downloads/batch", fleet.body(targets=targets))
    assert answer.status == 422
    assert stored(fleet) == 0


def test_file_neither_stored_nor_coming_is_404(fleet: Fleet) -> None:
    answer = fleet.post("/v1/downloads", fleet.body(target_agent_id="a-1", file_signature="f" * 64))
    assert (answer.status, answer.json()["code"]) == (404, "file_not_found")
    fleet.content("e" * 64, "failed")
    answer = fleet.post("/v1/downloads", fleet.body(target_agent_id="a-1", file_signature="e" * 64))
    assert (answer.status, answer.json()["code"]) == (404, "file_not_found")
    assert stored(fleet) == 0


def test_another_projects_file_is_not_found(fleet: Fleet, cloud: MotoCloud) -> None:
    stranger = cloud.project()
    answer = cloud.http("POST", "/v1/downloads", json=fleet.body(target_agent_id="a-1"), key=stranger.key)
    assert (answer.status, answer.json()["code"]) == (404, "file_not_found")


def test_callback_to_a_private_address_is_refused(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud, cloud.project(allow_private_urls=False))
    body = fleet.body(target_agent_id="a-1", callback="http://127.0.0.1:9/x")
    answer = fleet.post("/v1/downloads", body)
    assert (answer.status, answer.json()["code"]) == (422, "url_not_allowed")
    assert stored(fleet) == 0


def test_agent_sees_only_its_own_inbox(fleet: Fleet, cloud: MotoCloud) -> None:
    key = fleet.key_of("a-1")
    for method, path, body in (
        ("GET", "/v1/agents/a-2/transfers", None),
        ("POST", "/v1/agents/a-2/results", {"items": [{"transfer_id": "x", "error_code": 0}]}),
    ):
        assert cloud.http(method, path, key=key, json=body).status == 403
    assert cloud.http("GET", "/v1/agents/a-1/transfers", key=fleet.project.key).status == 403
    assert cloud.http("GET", "/v1/jobs", key=key).status == 403
    assert cloud.http("GET", "/v1/agents/a-1/transfers?wait=21", key=key).status == 422


def test_report_with_a_foreign_transfer_is_refused_as_a_whole(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.run_until_dispatched(job_id)
    own, stranger = fleet.inbox("a-1")[0], {"transfer_id": "tr-" + "0" * 32 + "-0-1", "container_id": ""}
    elsewhere = {**own, "container_id": "c-7"}

    for other in (stranger, elsewhere):
        assert fleet.report("a-1", 0, items=[own, other]).status == 404
    fleet.key_of("a-3")
    assert fleet.report("a-3", 0, items=[own]).status == 404

    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"a-1": "Running", "a-2": "Running"}


@pytest.mark.parametrize("code", ["0", 0.5, None, True, [], 2**40])
def test_error_code_that_is_not_an_integer_is_422(fleet: Fleet, code: Any) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    answer = fleet.report("a-1", code)
    assert answer.status == 422
    fleet.step("poll_transfer", job_id)
    assert fleet.states(job_id) == {"a-1": "Running"}


@pytest.mark.parametrize(
    "path",
    [
        "/v1/downloads/nothing",
        "/v1/downloads/0b0e3f1c-5a53-4f2e-9f5e-0d8f7f2b8c11",
        "/v1/jobs/AsyncDownloadJob%3A1%3A2%3A%2Fx%3A1",
        "/v1/jobs/ffff/targets",
    ],
)
def test_missing_record_is_404(fleet: Fleet, cloud: MotoCloud, path: str) -> None:
    answer = cloud.http("GET", path, key=fleet.project.key)
    assert (answer.status, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize("query", ["status=done", "limit=0", "limit=101", "cursor=zzz"])
def test_bad_list_parameters_are_refused(fleet: Fleet, cloud: MotoCloud, query: str) -> None:
    fleet.submit("a-1")
    assert cloud.http("GET", f"/v1/downloads?{query}", key=fleet.project.key).status == 422
    assert cloud.http("GET", f"/v1/jobs?{query}", key=fleet.project.key).status == 422
