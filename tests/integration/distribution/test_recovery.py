"""A Job whose execution never started or died gets another one, which continues."""

from __future__ import annotations

import pytest

from tests.support.fleet import Fleet, due
from tidegate.common.ids import digest
from tidegate.distribution.model import job_key


def executions(fleet: Fleet) -> dict[str, str]:
    machine = fleet.cloud.names.machines["DownloadJobMachine"]
    found = fleet.cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
    ours = {digest(fleet.project.id, job["job_id"], length=40) for job in fleet.get("/v1/jobs")["items"]}
    named = [(*entry["name"].rsplit("-", 1), entry["status"]) for entry in found]
    return {generation: status for name, generation, status in named if name in ours}


def recover(fleet: Fleet) -> bool | str | None:
    (item,) = due(fleet)
    return fleet.cloud.app.due_handlers["job"](item)


def kill(fleet: Fleet, job_id: str, generation: int = 0) -> None:
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    machine = fleet.cloud.names.machines["DownloadJobMachine"]
    name = fleet.cloud.app.distribution.executions._name(job).rsplit("-", 1)[0] + f"-{generation}"
    arn = machine.replace(":stateMachine:", ":execution:") + f":{name}"
    fleet.cloud.client("stepfunctions").stop_execution(executionArn=arn, cause="killed")


def test_job_without_an_execution_is_started(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise RuntimeError("Step Functions is unavailable")

    with monkeypatch.context() as unavailable:
        unavailable.setattr(fleet.cloud.app.distribution.executions, "start", failing)
        made = fleet.submit("a-1")
    assert executions(fleet) == {}
    fleet.pass_window()

    assert recover(fleet) is True

    assert executions(fleet) == {"0": "RUNNING"}
    assert fleet.job(made["job_id"])["status"] == "Pending"


def test_running_job_is_not_restarted(fleet: Fleet) -> None:
    fleet.submit("a-1")
    (before,) = due(fleet)
    fleet.pass_window()
    assert recover(fleet) is False
    (after,) = due(fleet)
    assert after["due_at"] > before["due_at"]
    assert executions(fleet) == {"0": "RUNNING"}


def test_job_of_a_dead_execution_continues_without_a_second_dispatch(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    kill(fleet, job_id)

    assert recover(fleet) is True

    assert executions(fleet) == {"0": "ABORTED", "1": "RUNNING"}
    for name in ("close_window", "prepare_file", "dispatch_transfer"):
        fleet.step(name, job_id)
    assert len(fleet.inbox("a-1")) == 1
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    assert fleet.states(job_id) == {"a-1": "Success"}


def test_concurrent_recoveries_start_one_execution(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    kill(fleet, job_id)
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    store = fleet.cloud.app.distribution.jobs
    now = fleet.cloud.clock()
    first, second = store.next_generation(job, now), store.next_generation(job, now)
    assert first.generation == second.generation == 1
    fleet.cloud.app.distribution.executions.start(first)
    fleet.cloud.app.distribution.executions.start(second)
    assert executions(fleet) == {"0": "ABORTED", "1": "RUNNING"}


def test_ended_job_leaves_the_due_index(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    assert len(due(fleet)) == 1
    fleet.step("finish_job", job_id)
    assert due(fleet) == []


def test_polls_postpone_the_compensation_check(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    for _ in range(12):
        fleet.cloud.clock.advance(15)
        fleet.step("poll_transfer", job_id)
        (item,) = due(fleet)
        assert item["due_at"] > fleet.cloud.clock().timestamp()
