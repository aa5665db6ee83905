"""Cancelling a Job, and redriving its failed targets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.calls import count_calls
from tests.support.fleet import Fleet, messages
from tests.support.moto.cloud import Answer
from tidegate.aws import keys
from tidegate.aws.table import delete
from tidegate.distribution import control as control_module
from tidegate.distribution import transfer
from tidegate.distribution.model import Job, job_key
from tidegate.distribution.store import TransferStore
from tidegate.errors import Busy
from tidegate.notifications.notices import Notice


def act(fleet: Fleet, job_id: str, what: str, **body: Any) -> Answer:
    return fleet.post(f"/v1/jobs/{fleet.job(job_id)['key']}/{what}", body)


def finish(fleet: Fleet, job_id: str) -> dict[str, Any]:
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    return fleet.job(job_id)


def test_cancel_ends_only_unfinished_targets(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2", "a-3"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)

    assert act(fleet, job_id, "cancel").status == 202
    job = finish(fleet, job_id)

    assert job["status"] == "Cancelled"
    assert job["counts"] == {"total": 3, "success": 1, "failed": 0, "timeout": 0, "downloading": 0, "cancelled": 2}
    assert fleet.states(job_id) == {"a-1": "Success", "a-2": "Cancelled", "a-3": "Cancelled"}
    assert fleet.inbox("a-2") == []


def test_hosts_of_a_cancelled_job_are_woken(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.cloud.deliver("AgentWakeupsQueue")

    act(fleet, job_id, "cancel")
    finish(fleet, job_id)

    (message,) = fleet.cloud._receive("AgentWakeupsQueue", 100)
    body = json.loads(message["Body"])
    assert (body["agents"], body["ended"]) == (["a-1"], f"tr-{job_key(job_id)}-0-1"), "the host is told which transfer"


def test_running_job_is_ended_by_another_execution_at_once(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    started: list[Job] = []
    monkeypatch.setattr(fleet.cloud.app.distribution.executions, "start", started.append)

    for _ in range(3):
        act(fleet, job_id, "cancel")

    assert [job.generation for job in started] == [1], "once, however often it is cancelled"


def shown_targets(fleet: Fleet, job_id: str) -> dict[str, dict[str, Any]]:
    items = fleet.get(f"/v1/jobs/{fleet.job(job_id)['key']}/targets")["items"]
    return {item["agent_id"]: item for item in items}


@pytest.mark.parametrize("when", ["before the end", "after the end"])
def test_file_that_arrived_in_a_cancelled_job_is_shown(fleet: Fleet, when: str) -> None:
    submitted = fleet.submit_many(["a-1", "a-2", "a-3"])
    job_id, tasks = submitted["job_id"], {task["agent_id"]: task["task_id"] for task in submitted["tasks"]}
    fleet.run_until_dispatched(job_id)
    offered = {host: fleet.inbox(host) for host in ("a-1", "a-2")}
    act(fleet, job_id, "cancel")
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    if when == "after the end":
        fleet.step("finish_job", job_id)
        before = fleet.job(job_id)
    for host, items in offered.items():
        for _ in range(2):
            assert fleet.report(host, 0, items=items).status == 200
    assert fleet.step("finish_job", job_id)["state"] == "ended"

    targets = shown_targets(fleet, job_id)
    assert {host: (one["status"], one.get("arrived")) for host, one in targets.items()} == {
        "a-1": ("Cancelled", True),
        "a-2": ("Cancelled", True),
        "a-3": ("Cancelled", None),
    }
    assert [fleet.task(tasks[host]).get("arrived") for host in ("a-1", "a-3")] == [True, None]
    job = fleet.job(job_id)
    assert (job["status"], job["counts"]["cancelled"]) == ("Cancelled", 3)
    if when == "after the end":
        assert job == before


def test_failure_after_the_cancel_is_no_arrival(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    items = fleet.inbox("a-1")
    act(fleet, job_id, "cancel")
    finish(fleet, job_id)

    assert fleet.report("a-1", 5, items=items).status == 200

    assert shown_targets(fleet, job_id)["a-1"].get("arrived") is None


def test_success_of_an_uncancelled_job_needs_no_further_read(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    items = fleet.inbox("a-1")

    with count_calls(fleet.cloud.app) as calls:
        fleet.report("a-1", 0, items=items)

    # The key; the entry; life and record of the host; the report.
    assert calls == {"dynamodb.GetItem": 1, "dynamodb.BatchGetItem": 2, "dynamodb.UpdateItem": 1}


def test_job_cancelled_in_its_window_is_never_sent(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    assert act(fleet, job_id, "cancel").status == 202

    fleet.pass_window()
    fleet.step("close_window", job_id)

    assert fleet.step("prepare_file", job_id)["state"] == "over"
    assert finish(fleet, job_id)["status"] == "Cancelled"
    assert fleet.inbox("a-1") == []


def test_cancelled_job_does_not_wait_for_targets(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    act(fleet, job_id, "cancel")
    fleet.pass_window()
    passed = fleet.cloud.clock()

    fleet.step("close_window", job_id)

    assert finish(fleet, job_id)["status"] == "Cancelled"
    assert (fleet.cloud.clock() - passed).total_seconds() < 5


def test_cancel_covers_queued_targets_but_not_later_submits(fleet: Fleet) -> None:
    before = fleet.submit("a-1")
    act(fleet, before["job_id"], "cancel")
    fleet.cloud.clock.advance(1)
    after = fleet.submit("a-2")
    fleet.collect()

    assert fleet.task(before["task_id"])["status"] == "Cancelled"
    moved = fleet.task(after["task_id"])
    assert moved["status"] == "Pending"
    assert moved["job_id"] != before["job_id"]


def test_cancel_is_idempotent_and_refused_after_the_end(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    assert [act(fleet, job_id, "cancel").status for _ in range(2)] == [202, 202]
    lines = [line["action"] for line in fleet.get("/v1/audit", record=job_id)["items"]]
    assert lines.count("job.cancel") == 1

    done = fleet.submit("a-2", file_path="/data/other")["job_id"]
    fleet.run_until_dispatched(done)
    fleet.report("a-2", 0)
    finish(fleet, done)
    refused = act(fleet, done, "cancel")
    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")


def test_redrive_submits_only_failed_targets_to_a_new_job(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["ok", "bad", "late"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("ok", 0)
    fleet.report("bad", 5, error_msg="disk full")
    fleet.cloud.clock.advance(700)
    finish(fleet, job_id)

    answer = act(fleet, job_id, "redrive")

    assert answer.status == 202, answer.body
    assert answer.json()["targets"] == 2
    again = answer.json()["job_id"]
    assert again != job_id
    fleet.run_until_dispatched(again)
    assert fleet.states(again) == {"bad": "Running", "late": "Running"}
    assert fleet.job(again)["redrive_of"] == fleet.job(job_id)["key"]
    assert fleet.inbox("bad")[0]["sequence"] > 0


def test_redrive_in_the_same_window_opens_a_later_job(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["bad", "good"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("bad", 5)
    fleet.report("good", 0)
    finish(fleet, job_id)

    first, second = act(fleet, job_id, "redrive").json(), act(fleet, job_id, "redrive").json()

    assert first["job_id"] == second["job_id"] != job_id


def failed_job(fleet: Fleet, *agents: str, code: int = 5, **more: Any) -> str:
    """A Job that has ended, with this code on all its targets."""
    job_id = str(fleet.submit_many(agents, **more)["job_id"])
    fleet.run_until_dispatched(job_id)
    for agent in agents:
        fleet.report(agent, code)
    finish(fleet, job_id)
    return job_id


def newer_content(fleet: Fleet, *agents: str, **more: Any) -> str:
    """A Job that sends other content to the same path, from another path of the library."""
    other = {"file_signature": fleet.store(b"v2"), "biz_id": 7, "file_path": "/releases/2"}
    return str(fleet.submit_many(agents, **other | more)["job_id"])


def test_redrive_leaves_out_targets_of_a_newer_job(fleet: Fleet) -> None:
    job_id = failed_job(fleet, "both", "old")
    newer = newer_content(fleet, "both")
    fleet.run_until_dispatched(newer)
    fleet.report("both", 0)
    finish(fleet, newer)

    answer = act(fleet, job_id, "redrive")

    assert answer.status == 202, answer.body
    skipped = {"agent_id": "both", "container_id": "", "newer_job": job_key(newer)}
    assert answer.json() | {"job_id": "", "key": ""} == {
        "job_id": "",
        "key": "",
        "targets": 1,
        "skipped": [skipped],
        "skipped_targets": 1,
    }
    fleet.run_until_dispatched(answer.json()["job_id"])
    assert fleet.states(answer.json()["job_id"]) == {"old": "Running"}


@pytest.mark.parametrize("state", ["pending", "running", "failed"])
def test_redrive_is_refused_if_all_targets_have_a_newer_job(fleet: Fleet, state: str) -> None:
    job_id = failed_job(fleet, "a-1", "a-2")
    newer = newer_content(fleet, "a-1", "a-2", target_file_dir="/opt//app/")
    if state == "pending":
        fleet.collect()
    else:
        fleet.run_until_dispatched(newer)
    if state == "failed":
        fleet.report("a-1", 5)
        fleet.report("a-2", 5)
        finish(fleet, newer)
    jobs = len(fleet.get("/v1/jobs")["items"])

    refused = act(fleet, job_id, "redrive")

    assert (refused.status, refused.json()["code"]) == (409, "newer_job")
    assert job_key(newer) in refused.json()["detail"]
    assert len(fleet.get("/v1/jobs")["items"]) == jobs


def test_newer_job_counts_only_on_its_own_path_and_container(fleet: Fleet) -> None:
    job_id = failed_job(fleet, "a-1")
    newer_content(fleet, "a-1", file_name="other.bin")
    newer_content(fleet, "a-1", target_file_dir="/opt/other")
    in_container = {"file_signature": fleet.store(b"v2"), "target_container_id": "c-1"}
    fleet.submit("a-1", **in_container)
    fleet.collect()

    answer = act(fleet, job_id, "redrive")

    assert (answer.status, answer.json()["skipped"]) == (202, [])


def test_older_job_to_the_path_does_not_stop_a_redrive(fleet: Fleet) -> None:
    failed_job(fleet, "a-1")
    newer = newer_content(fleet, "a-1")
    fleet.run_until_dispatched(newer)
    fleet.report("a-1", 5)
    finish(fleet, newer)

    answer = act(fleet, newer, "redrive")

    assert (answer.status, answer.json()["skipped_targets"]) == (202, 0)


def test_redrive_of_a_failed_redrive_is_accepted(fleet: Fleet) -> None:
    first = act(fleet, failed_job(fleet, "a-1"), "redrive").json()["job_id"]
    fleet.run_until_dispatched(first)
    fleet.report("a-1", 5)
    finish(fleet, first)

    assert act(fleet, first, "redrive").status == 202


def test_content_submitted_after_the_redrive_check_stays(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newer Job comes between the check and the new Job: the host refuses the redriven content by its sequence."""
    job_id = failed_job(fleet, "a-1")
    check, newer = control_module._superseded, ""

    def then_submit(*args: Any) -> Any:
        nonlocal newer
        found = check(*args)
        newer = newer_content(fleet, "a-1")
        return found

    monkeypatch.setattr(control_module, "_superseded", then_submit)
    redriven = act(fleet, job_id, "redrive").json()
    assert redriven["skipped"] == []
    fleet.run_until_dispatched(newer)
    fleet.run_until_dispatched(redriven["job_id"])

    order = [item["job_id"] for item in sorted(fleet.inbox("a-1"), key=lambda item: item["sequence"])]
    assert order == [redriven["job_id"], newer]


def test_redriven_task_found_as_a_stray_keeps_its_sequence(fleet: Fleet) -> None:
    """The function died after it had written the Tasks, so their targets reach a later Job."""
    job_id = failed_job(fleet, "a-1", "a-2")
    source = fleet.cloud.app.distribution.jobs.require(fleet.project.id, job_key(job_id))
    redriven = act(fleet, job_id, "redrive").json()["job_id"]
    assert messages(fleet)
    fleet.step("close_window", redriven)
    # Ends the Job, which has no target, and sends its stray Tasks.
    fleet.step("finish_job", redriven)
    fleet.collect()
    home = fleet.get("/v1/jobs", status="Pending")["items"][0]["job_id"]
    fleet.run_until_dispatched(home)

    assert [item["sequence"] for item in fleet.inbox("a-1") if item["job_id"] == home] == [source.sequence]


def test_forced_redrive_replaces_newer_content(fleet: Fleet) -> None:
    job_id = failed_job(fleet, "a-1")
    newer = newer_content(fleet, "a-1")
    fleet.run_until_dispatched(newer)

    answer = act(fleet, job_id, "redrive", force=True)

    assert (answer.status, answer.json()["skipped"]) == (202, [])
    fleet.run_until_dispatched(answer.json()["job_id"])
    sequences = {item["job_id"]: item["sequence"] for item in fleet.inbox("a-1")}
    assert sequences[answer.json()["job_id"]] > sequences[newer]


def test_superseded_target_is_redriven_only_with_force(fleet: Fleet) -> None:
    job_id = failed_job(fleet, "a-1", code=409)
    newer_content(fleet, "a-1")
    fleet.collect()

    assert act(fleet, job_id, "redrive").json()["code"] == "wrong_state"
    assert act(fleet, job_id, "redrive", statuses=["Superseded"]).json()["code"] == "newer_job"
    assert act(fleet, job_id, "redrive", statuses=["Superseded"], force=True).status == 202


def test_expired_newer_job_is_left_to_the_sequence(fleet: Fleet) -> None:
    job_id = failed_job(fleet, "a-1")
    newer = newer_content(fleet, "a-1")
    fleet.run_until_dispatched(newer)
    sequence = next(item["sequence"] for item in fleet.inbox("a-1") if item["job_id"] == newer)
    fleet.report("a-1", 0)
    finish(fleet, newer)
    fleet.cloud.app.table.write(delete(keys.job(fleet.project.id, job_key(newer))))

    answer = act(fleet, job_id, "redrive")

    assert answer.status == 202, answer.body
    fleet.run_until_dispatched(answer.json()["job_id"])
    assert fleet.inbox("a-1")[0]["sequence"] < sequence


def test_too_many_newer_jobs_refuse_the_redrive(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = failed_job(fleet, "a-1")
    monkeypatch.setattr(control_module, "_MOST_NEWER_JOBS", 1)
    monkeypatch.setattr(control_module, "_JOBS_READ_TOGETHER", 1)
    for number in range(3):
        newer_content(fleet, "a-2", file_signature=fleet.store(b"%d" % number))
    fleet.collect()

    refused = act(fleet, job_id, "redrive")

    assert (refused.status, refused.json()["code"]) == (409, "newer_job")
    assert "too many Jobs" in refused.json()["detail"]


@pytest.mark.parametrize("statuses", [["Success"], [], ["Pending"]])
def test_redrive_of_other_statuses_is_refused(fleet: Fleet, statuses: list[str]) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()

    assert act(fleet, job_id, "redrive", statuses=statuses).status == 422


def test_redrive_of_a_running_or_successful_job_is_refused(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    assert act(fleet, job_id, "redrive").status == 409
    fleet.report("a-1", 0)
    finish(fleet, job_id)

    assert act(fleet, job_id, "redrive").status == 409


def test_timed_out_target_shows_whether_its_host_was_offline(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["never", "busy"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("busy", 115, progress=30)
    fleet.cloud.clock.advance(700)
    finish(fleet, job_id)

    found = {row["agent_id"]: row for row in fleet.get(f"/v1/jobs/{fleet.job(job_id)['key']}/targets")["items"]}

    assert found["never"]["error_msg"] == "offline: no agent of this name has ever connected"
    assert found["busy"]["error_msg"] == "not delivered before the Job's deadline"
    assert {row["status"] for row in found.values()} == {"Timeout"}


def test_entries_of_a_half_written_dispatch_are_withdrawn_by_a_cancel(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher dies after it wrote the inbox, and the Job is cancelled before another one continues."""
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    fleet.step("prepare_file", job_id)
    with monkeypatch.context() as dying:
        dying.setattr(TransferStore, "settle", _die)
        with pytest.raises(Busy):
            fleet.step("dispatch_transfer", job_id)
    assert len(fleet.inbox("a-1")) == 1

    act(fleet, job_id, "cancel")
    assert fleet.step("dispatch_transfer", job_id)["state"] == "over"
    finish(fleet, job_id)

    assert [fleet.inbox(agent) for agent in ("a-1", "a-2")] == [[], []]


def test_execution_that_ends_a_job_second_publishes_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both read the Job as running. The notice of the first is the one that matches the stored Job."""
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    act(fleet, job_id, "cancel")
    published: list[Notice] = []
    distribution, job_store = fleet.cloud.app.distribution, fleet.cloud.app.distribution.jobs
    monkeypatch.setattr(fleet.cloud.app.notifications.notifier, "publish", published.extend)
    end = job_store.end

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(job_store, "end", end)
        fleet.step("poll_transfer", job_id)
        fleet.step("finish_job", job_id)
        return end(*args)

    monkeypatch.setattr(job_store, "end", overtaken)
    transfer.finish(distribution, fleet.project.id, job_key(job_id))

    assert fleet.job(job_id)["counts"]["success"] == 1
    assert [notice.data["counts"]["success"] for notice in published] == [1]


def _die(*_: object, **__: object) -> None:
    raise Busy("died")
