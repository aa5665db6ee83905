"""A host's last Job: stored with the write of its poll, and its status read from the Job's records."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tidegate.aws import keys
from tidegate.distribution.model import job_key


def last_job(fleet: Fleet, agent_id: str) -> dict[str, Any] | None:
    """Returns the agent's last Job, and checks that the list and the agent's own route show the same."""
    listed = {item["agent_id"]: item["last_job"] for item in fleet.get("/v1/agents")["items"]}
    assert listed[agent_id] == fleet.get(f"/v1/agents/{agent_id}")["last_job"]
    shown: dict[str, Any] | None = listed[agent_id]
    return shown


def dispatch(fleet: Fleet, *agent_ids: str, **more: Any) -> str:
    job_id = str(fleet.submit_many(agent_ids, **more)["job_id"])
    fleet.run_until_dispatched(job_id)
    return job_id


def test_host_without_transfers_has_no_last_job(fleet: Fleet) -> None:
    fleet.inbox("a-1")

    assert last_job(fleet, "a-1") is None


def test_fetched_transfer_is_the_hosts_last_job(fleet: Fleet) -> None:
    job_id = dispatch(fleet, "a-1")

    fleet.inbox("a-1")

    shown = last_job(fleet, "a-1")
    assert shown is not None
    assert (shown["job_id"], shown["key"]) == (job_id, job_key(job_id))
    assert (shown["file_name"], shown["status"]) == ("app.bin", "Running")
    assert shown["at"] == fleet.get("/v1/agents/a-1")["last_seen"]


@pytest.mark.parametrize(("code", "status"), [(0, "Success"), (1002, "Failed"), (115, "Running")])
def test_status_is_what_the_host_reported(fleet: Fleet, code: int, status: str) -> None:
    dispatch(fleet, "a-1", "a-2")
    fleet.report("a-1", code)

    shown = last_job(fleet, "a-1")

    assert shown is not None
    assert shown["status"] == status


def test_last_job_without_a_report_has_its_jobs_final_status(fleet: Fleet) -> None:
    job_id = dispatch(fleet, "a-1")
    fleet.inbox("a-1")
    answer = fleet.post(f"/v1/jobs/{job_key(job_id)}/cancel", {})
    assert answer.status == 202, answer.body
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)

    shown = last_job(fleet, "a-1")

    assert shown is not None
    assert shown["status"] == "Cancelled"


def test_newer_job_replaces_the_older_within_the_same_minute(fleet: Fleet) -> None:
    dispatch(fleet, "a-1")
    fleet.report("a-1", 0)
    newer = dispatch(fleet, "a-1", file_path="/data/b.bin", file_name="b.bin")
    fleet.inbox("a-1")

    shown = last_job(fleet, "a-1")

    assert shown is not None
    assert (shown["job_id"], shown["file_name"]) == (newer, "b.bin")


def test_expired_job_keeps_its_name_and_loses_its_status(fleet: Fleet) -> None:
    job_id = dispatch(fleet, "a-1")
    fleet.report("a-1", 0)
    fleet.cloud.app.table.batch_delete([keys.job(fleet.project.id, job_key(job_id))])

    shown = last_job(fleet, "a-1")

    assert shown is not None
    assert (shown["file_name"], shown["status"]) == ("app.bin", None)


def test_last_job_costs_no_write_of_its_own(fleet: Fleet) -> None:
    """A poll writes `last_seen` after some minutes anyway, with or without a transfer."""
    fleet.inbox("a-1")  # also writes the first use of the key
    fleet.cloud.clock.advance(300)
    with count_calls(fleet.cloud.app) as idle:
        fleet.inbox("a-1")
    dispatch(fleet, "a-1")
    fleet.cloud.clock.advance(300)

    with count_calls(fleet.cloud.app) as busy:
        offered = fleet.inbox("a-1")
    with count_calls(fleet.cloud.app) as reported:
        fleet.report("a-1", 0, items=offered)

    assert idle["dynamodb.UpdateItem"] == busy["dynamodb.UpdateItem"] == 1
    assert reported["dynamodb.UpdateItem"] == 1


def test_list_of_100_hosts_reads_last_jobs_in_two_calls(fleet: Fleet) -> None:
    names = [f"a-{number:03}" for number in range(100)]
    dispatch(fleet, *names)
    for name in names:
        fleet.cloud.app.distribution.agents.inbox(fleet.project.id, name)

    with count_calls(fleet.cloud.app) as calls:
        items = fleet.get("/v1/agents", limit=100)["items"]

    assert {item["last_job"]["status"] for item in items} == {"Running"}
    assert calls["dynamodb.BatchGetItem"] == 2
