"""Calls that hold a function of the API for seconds: a project may have only some open at once."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import pytest
from botocore.exceptions import ClientError

from tests.support.calls import count_calls
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.aws import keys
from tidegate.errors import RateLimited
from tidegate.projects.limits import HOST_POLLS, LEASE_SECONDS


def open_calls(cloud: MotoCloud, project: Project, count: int, stack: ExitStack) -> None:
    for _ in range(count):
        stack.enter_context(cloud.app.projects.slow_calls.held(project.id))


def sync_export(cloud: MotoCloud, project: Project) -> Answer:
    return cloud.http("POST", "/v1/download/sync", json={"source_data": [{"a": 1}]}, key=project.key)


def test_slow_call_beyond_the_limit_is_refused_until_one_ends(cloud: MotoCloud, project: Project) -> None:
    with ExitStack() as others:
        open_calls(cloud, project, 19, others)
        assert sync_export(cloud, project).status == 200
        assert sync_export(cloud, project).status == 200, "the first one gave its slot back"
        open_calls(cloud, project, 1, others)
        refused = sync_export(cloud, project)
        assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
        assert "slow_calls is 20" in refused.json()["detail"]
        assert int(refused.headers["retry-after"]) > 0
        assert sync_export(cloud, cloud.project("other")).status == 200
    assert sync_export(cloud, project).status == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/download/sync", {"source_data": []}),
        ("/v1/download/sync/multiple", {"type": "excel", "multi_type": "tab", "source_data": [[], []]}),
        ("/v1/task/sample", {"source_url": "http://127.0.0.1:9/rows"}),
        ("/v1/subscriptions/preview", {"source_url": "http://127.0.0.1:9/list"}),
    ],
)
def test_every_slow_route_is_limited(cloud: MotoCloud, project: Project, path: str, body: dict[str, Any]) -> None:
    with ExitStack() as others:
        open_calls(cloud, project, 20, others)
        assert cloud.http("POST", path, json=body, key=project.key).json()["code"] == "rate_limited"
        if "sync" in path:
            query = {name: str(value) for name, value in body.items()}
            assert cloud.http("GET", path, query=query, key=project.key).json()["code"] == "rate_limited"


def test_batches_that_call_their_business_are_limited(cloud: MotoCloud, project: Project) -> None:
    def post(path: str, **body: Any) -> Answer:
        return cloud.http("POST", path, json=body, key=project.key)

    url = "http://127.0.0.1:9/"
    quiet = post("/v1/biz", name="quiet", process_url=url).json()["biz_id"]
    before_create = post("/v1/biz", name="asked", process_url=url, before_create_url=url).json()["biz_id"]
    before_run = post("/v1/biz", name="asked", process_url=url, before_run_url=url).json()["biz_id"]
    batches = [
        post("/v1/batches", biz_id=biz, name="b", total=1, rate=1).json()["batch_id"] for biz in (quiet, before_run)
    ]
    with ExitStack() as others:
        open_calls(cloud, project, 20, others)
        assert post(f"/v1/batches/{batches[0]}/dry-run").json()["code"] == "rate_limited"
        assert post("/v1/batches", biz_id=before_create, name="b", total=1, rate=1).json()["code"] == "rate_limited"
        assert post(f"/v1/batches/{batches[1]}/start").json()["code"] == "rate_limited"
        assert cloud.http("GET", f"/v1/batches/{batches[1]}", key=project.key).json()["status"] == "created"
        assert post("/v1/batches", biz_id=quiet, name="b", total=1, rate=1).status == 201
        assert post(f"/v1/batches/{batches[0]}/start").status == 202


def test_operator_sets_the_limit(cloud: MotoCloud, project: Project) -> None:
    path = f"/v1/projects/{project.id}"
    quotas = cloud.http("PATCH", path, json={"quotas": {"slow_calls": 1}}, key=cloud.admin_key).json()["quotas"]
    assert quotas["slow_calls"] == 1
    with ExitStack() as others:
        open_calls(cloud, project, 1, others)
        assert sync_export(cloud, project).status == 429


def test_slot_of_a_killed_function_is_free_after_its_lease(cloud: MotoCloud, project: Project) -> None:
    with patch.object(type(cloud.app.projects.slow_calls), "_release"), ExitStack() as killed:
        open_calls(cloud, project, 20, killed)
    cloud.clock.advance(LEASE_SECONDS - 2)
    assert sync_export(cloud, project).status == 429
    cloud.clock.advance(3)
    assert sync_export(cloud, project).status == 200


def test_late_call_does_not_release_the_slot_of_another(cloud: MotoCloud, project: Project) -> None:
    path = f"/v1/projects/{project.id}"
    cloud.http("PATCH", path, json={"quotas": {"slow_calls": 1}}, key=cloud.admin_key)
    late, present = ExitStack(), ExitStack()
    open_calls(cloud, project, 1, late)
    cloud.clock.advance(LEASE_SECONDS + 1)
    open_calls(cloud, project, 1, present)
    late.close()
    with pytest.raises(RateLimited):
        open_calls(cloud, project, 1, ExitStack())
    present.close()
    open_calls(cloud, project, 1, ExitStack())


def test_failed_release_does_not_fail_the_call(cloud: MotoCloud, project: Project) -> None:
    with cloud.app.projects.slow_calls.held(project.id):
        error = ClientError({"Error": {"Code": "InternalServerError"}}, "UpdateItem")
        broken = patch.object(cloud.app.table, "try_write", side_effect=error)
        broken.start()
    broken.stop()


def test_slow_call_costs_a_read_and_three_writes(cloud: MotoCloud, project: Project) -> None:
    with count_calls(cloud.app) as calls, cloud.app.projects.slow_calls.held(project.id):
        pass
    assert calls == {"dynamodb.BatchGetItem": 1, "dynamodb.UpdateItem": 3}
    record = cloud.app.table.get(keys.slow_calls(project.id))
    assert record is not None
    assert record["expires_at"] > cloud.clock().timestamp()


def test_waiting_polls_of_one_host_are_limited(cloud: MotoCloud, project: Project) -> None:
    """A host whose key was stolen could hold all functions with polls that wait."""
    keys_of = {name: project.agent_key(name) for name in ("bad", "good")}

    def poll(host: str, wait: int) -> Answer:
        return cloud.http("GET", f"/v1/agents/{host}/transfers", query={"wait": str(wait)}, key=keys_of[host])

    with patch.object(cloud.app.distribution.agents, "_sleep"), ExitStack() as others:
        for _ in range(HOST_POLLS):
            others.enter_context(cloud.app.projects.slow_calls.poll_held(project.id, "bad"))
        refused = poll("bad", 20)
        assert (refused.status, refused.json()["code"]) == (429, "rate_limited")
        assert "5 polls of this host wait already" in refused.json()["detail"]
        assert poll("bad", 0).status == 200, "a poll that does not wait holds no function"
        assert poll("good", 20).status == 200
        others.close()
        assert poll("bad", 20).status == 200


def test_poll_that_does_not_wait_costs_no_slot(cloud: MotoCloud, project: Project) -> None:
    cloud.http("GET", "/v1/agents/a-1/transfers", key=project.agent_key("a-1"))
    assert cloud.app.table.get(keys.waiting_polls(project.id, "a-1")) is None
