"""The Job's state machine on moto. Its waits advance the clock, and collectors and agents run during them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tests.support.moto.machines import wait_for
from tests.support.template import ROOT
from tidegate.distribution import Distribution, transfer
from tidegate.distribution.model import job_key
from tidegate.distribution.transfer import Polled
from tidegate.files.model import content_object


@pytest.fixture
def fleet(running_cloud: MotoCloud) -> Fleet:
    new_fleet = Fleet(running_cloud)
    new_fleet.to_window_start()
    running_cloud.while_waiting.append(new_fleet.collect)
    return new_fleet


def execution(fleet: Fleet, job_id: str) -> str:
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    machine = fleet.cloud.names.machines["DownloadJobMachine"]
    return machine.replace(":stateMachine:", ":execution:") + ":" + fleet.cloud.app.distribution.executions._name(job)


def run(fleet: Fleet, job_id: str) -> list[str]:
    """Runs the execution to its end and returns the names of the states it entered."""
    client = fleet.cloud.client("stepfunctions")
    arn = execution(fleet, job_id)
    ended = wait_for(client, arn, 60)
    assert ended["status"] == "SUCCEEDED", ended
    events: list[Any] = client.get_execution_history(executionArn=arn, maxResults=1000)["events"]
    return [event["stateEnteredEventDetails"]["name"] for event in events if "stateEnteredEventDetails" in event]


def report_during_waits(fleet: Fleet, *codes: tuple[str, int]) -> None:
    """Makes these agents report during every wait, if their inbox has entries."""

    def report() -> None:
        for agent_id, code in codes:
            if items := fleet.inbox(agent_id):
                fleet.report(agent_id, code, items=items)

    fleet.cloud.while_waiting.append(report)


def test_job_runs_from_its_window_to_its_end(fleet: Fleet) -> None:
    report_during_waits(fleet, ("a-1", 0), ("a-2", 0))
    submitted = fleet.submit_many(["a-1", "a-2"])
    states = run(fleet, submitted["job_id"])
    job = fleet.job(submitted["job_id"])
    assert (job["status"], job["counts"]["success"]) == ("Success", 2)
    assert states[:4] == ["WaitForWindow", "CloseWindow", "IsWindowClosed", "PrepareFile"]
    assert states[-3:] == ["FinishJob", "IsAllTold", "Done"]
    assert job["execute_time"] >= job["window_closes_at"]


def test_job_waits_for_targets_that_are_late(fleet: Fleet) -> None:
    """Otherwise they would move to a later Job, and their own would end as Success without them."""
    waits: list[int] = []

    def collect_at_the_fourth_wait() -> None:
        waits.append(1)
        if len(waits) >= 4:
            fleet.collect()

    fleet.cloud.while_waiting[:] = [collect_at_the_fourth_wait]
    report_during_waits(fleet, ("a-1", 0), ("a-2", 0))
    submitted = fleet.submit_many(["a-1", "a-2"])
    states = run(fleet, submitted["job_id"])
    assert states.count("WaitForTargets") == 3
    job = fleet.job(submitted["job_id"])
    assert (job["status"], job["counts"]["success"]) == ("Success", 2)
    assert len(fleet.get("/v1/jobs")["items"]) == 1


def test_job_whose_targets_never_arrive_ends_after_four_minutes(fleet: Fleet) -> None:
    fleet.cloud.while_waiting.clear()
    submitted = fleet.submit("a-1")
    states = run(fleet, submitted["job_id"])
    assert 240 / 5 - 4 <= states.count("WaitForTargets") <= 240 / 5
    assert fleet.job(submitted["job_id"])["counts"]["total"] == 0


def test_target_that_never_answers_ends_at_the_deadline(fleet: Fleet) -> None:
    report_during_waits(fleet, ("a-1", 0))
    submitted = fleet.submit_many(["a-1", "a-2"])
    states = run(fleet, submitted["job_id"])
    assert fleet.job(submitted["job_id"])["status"] == "Timeout"
    assert fleet.states(submitted["job_id"]) == {"a-1": "Success", "a-2": "Timeout"}
    assert 600 / 15 <= states.count("PollTransfer") <= 600 / 15 + 8


def test_missing_source_fails_the_job(fleet: Fleet) -> None:
    bucket = fleet.cloud.app.files.bucket.name
    # On a slow machine the window would otherwise close before the file is removed.
    with fleet.cloud.windows_stay_open():
        submitted = fleet.submit("a-1")
        fleet.cloud.client("s3").delete_object(Bucket=bucket, Key=content_object(fleet.project.id, fleet.signature))
    states = run(fleet, submitted["job_id"])
    assert states[-6:] == ["PrepareFile", "IsFileReady", "TakeReason", "FailJob", "IsAllTold", "Done"]
    assert fleet.job(submitted["job_id"])["error"]["code"] == "file_not_found"
    assert fleet.task(submitted["task_id"])["status"] == "Failed"


def test_job_waits_for_a_file_that_is_coming(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    content = b"on its way"
    signature = hashlib.sha256(content).hexdigest()
    fleet.content(signature, "coming")
    real, looks = transfer.prepare, list[str]()

    def prepare_and_store(d: Distribution, project_id: str, key: str, seconds_left: float) -> str:
        looks.append(real(d, project_id, key, seconds_left))
        if len(looks) == 3:
            fleet.store(content)
        return looks[-1]

    monkeypatch.setattr(transfer, "prepare", prepare_and_store)
    report_during_waits(fleet, ("a-1", 0))
    submitted = fleet.submit("a-1", file_signature=signature)
    assert run(fleet, submitted["job_id"]).count("WaitForFile") == 3
    assert fleet.task(submitted["task_id"])["status"] == "Success"


def test_failed_step_is_retried(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = transfer.poll, [1, 2, 3]

    def failing(d: Distribution, project_id: str, key: str, waited: float) -> Polled:
        if failures:
            raise RuntimeError(f"trouble {failures.pop()}")
        return real(d, project_id, key, waited)

    monkeypatch.setattr(transfer, "poll", failing)
    report_during_waits(fleet, ("a-1", 0))
    submitted = fleet.submit("a-1")
    assert "FailJob" not in run(fleet, submitted["job_id"])
    assert fleet.task(submitted["task_id"])["status"] == "Success"


def test_failing_step_fails_no_target_before_the_deadline(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = transfer.dispatch, list(range(7))

    def failing(d: Distribution, project_id: str, key: str) -> str:
        if failures:
            raise RuntimeError(f"trouble {failures.pop()}")
        return real(d, project_id, key)

    monkeypatch.setattr(transfer, "dispatch", failing)
    report_during_waits(fleet, ("a-1", 0))
    submitted = fleet.submit("a-1")
    assert "WaitToRepeat" in run(fleet, submitted["job_id"])
    assert fleet.task(submitted["task_id"])["status"] == "Success"


def test_second_execution_dispatches_nothing(fleet: Fleet) -> None:
    report_during_waits(fleet, ("a-1", 0))
    submitted = fleet.submit("a-1")
    store = fleet.cloud.app.distribution.jobs
    job = store.get(fleet.project.id, job_key(submitted["job_id"]))
    assert job
    second = store.next_generation(job, fleet.cloud.clock())
    fleet.cloud.app.distribution.executions.start(second)
    run(fleet, submitted["job_id"])
    first = execution(fleet, submitted["job_id"]).rsplit("-", 1)[0] + "-0"
    assert wait_for(fleet.cloud.client("stepfunctions"), first, 60)["status"] == "SUCCEEDED"
    assert len(fleet.cloud.app.distribution.transfers.list(second)) == 1
    assert fleet.task(submitted["task_id"])["status"] == "Success"


def test_every_retry_has_jitter_and_every_failure_ends_in_fail_job() -> None:
    machine = json.loads((ROOT / "statemachines/download_job.asl.json").read_text())
    tasks = {name: state for name, state in machine["States"].items() if state["Type"] == "Task"}
    assert all(state["Retry"][-1]["JitterStrategy"] == "FULL" for state in tasks.values())
    assert {catch["Next"] for state in tasks.values() for catch in state.get("Catch", [])} == {"FailJob"}
    assert [name for name, state in tasks.items() if "Catch" not in state] == ["FailJob"]
