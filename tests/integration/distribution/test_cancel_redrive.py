"""Cancelling a Job, and redriving its failed targets."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import Answer
from tidegate.distribution.model import job_key
from tidegate.distribution.store.transfers import TransferStore
from tidegate.errors import Busy
from tidegate.notifications.notice import Notice


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

    assert len(fleet.cloud._receive("AgentWakeupsQueue", 100)) == 1


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
    distribution.finish_job.finish(fleet.project.id, job_key(job_id))

    assert fleet.job(job_id)["counts"]["success"] == 1
    assert [notice.data["counts"]["success"] for notice in published] == [1]


def _die(*_: object, **__: object) -> None:
    raise Busy("died")
