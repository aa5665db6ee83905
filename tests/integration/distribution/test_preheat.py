"""Preheat: hosts fetch a file ahead of `activate_at` and activate it then."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.fleet import Fleet, due
from tidegate.aws import keys
from tidegate.common.ids import iso
from tidegate.distribution.model import job_key, longest_wait, next_wait

STAGED = "2026-01-01T00:00:00.000Z"


def moment(fleet: Fleet, seconds: float) -> str:
    return iso(fleet.cloud.clock() + timedelta(seconds=seconds))


def refusal(fleet: Fleet, **more: Any) -> dict[str, Any]:
    answer = fleet.post("/v1/downloads/batch", fleet.body(targets=[{"agent_id": "a-1"}], **more))
    assert answer.status == 422, answer.body
    (error,) = answer.json()["errors"]
    assert error["loc"] == ["body", "activate_at"]
    return dict(error)


def stage(fleet: Fleet, agent_id: str, **more: Any) -> None:
    assert fleet.report(agent_id, 115, progress=100, staged_at=STAGED, **more).status == 200


def poll(fleet: Fleet, job_id: str, **more: Any) -> dict[str, Any]:
    return dict(fleet.step("poll_transfer", job_id, **more))


def finish(fleet: Fleet, job_id: str) -> dict[str, Any]:
    assert poll(fleet, job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    return fleet.job(job_id)


@pytest.mark.parametrize("given", ["2026-12-24", "2026-12-24T18:00:00", "tomorrow", "20261224T180000Z", ""])
def test_malformed_activate_at_is_422(fleet: Fleet, given: str) -> None:
    assert "2026-12-24T18:00:00Z" in refusal(fleet, activate_at=given)["msg"]


def test_activate_at_in_the_past_or_far_ahead_is_422(fleet: Fleet) -> None:
    past, far = moment(fleet, -1), moment(fleet, 7 * 86400 + 1)

    expected = f"must be in the future: it is {moment(fleet, 0)} now, and {past} was given"
    assert expected in refusal(fleet, activate_at=past)["msg"]
    assert f"at most 7 days ahead: {far}" in refusal(fleet, activate_at=far)["msg"]
    assert "future" in refusal(fleet, activate_at=moment(fleet, 0))["msg"]


def test_activate_at_with_waves_is_422(fleet: Fleet) -> None:
    error = refusal(fleet, activate_at=moment(fleet, 60), waves=[{"percent": 10}])
    assert "waves" in error["msg"]


def test_equal_activation_times_share_a_job(fleet: Fleet) -> None:
    fleet.to_window_start()
    at = fleet.cloud.clock() + timedelta(hours=1)
    same_in_other_zone = iso(at + timedelta(hours=8))[:-1] + "+08:00"

    plain = fleet.submit("a-0")["job_id"]
    jobs = [
        fleet.submit(f"a-{n}", activate_at=given)["job_id"]
        for n, given in enumerate((iso(at), same_in_other_zone), start=1)
    ]
    other = fleet.submit("a-3", activate_at=iso(at + timedelta(seconds=1)))["job_id"]

    assert jobs[0] == jobs[1]
    assert len({plain, jobs[0], other}) == 3
    assert fleet.job(jobs[0])["activate_at"] == iso(at)


def test_preheated_host_succeeds_when_the_file_is_active(fleet: Fleet) -> None:
    at = moment(fleet, 3600)
    submitted = fleet.submit_many(["a-1", "a-2", "a-3"], activate_at=at)
    job_id, task_id = submitted["job_id"], submitted["tasks"][0]["task_id"]
    fleet.run_until_dispatched(job_id)
    (entry,) = fleet.inbox("a-1")
    assert (entry["activate_at"], entry["staged_at"]) == (at, None)
    assert entry["activate_until"] > at

    stage(fleet, "a-1", size=10_000, speed=5)
    fleet.report("a-2", 115, progress=30)
    assert poll(fleet, job_id)["state"] == "running"

    job, task = fleet.job(job_id), fleet.task(task_id)
    assert job["counts"] == {
        "total": 3,
        "success": 0,
        "failed": 0,
        "timeout": 0,
        "downloading": 1,
        "waiting": 1,
        "staged": 1,
    }
    assert (task["status"], task["staged_at"], task["activate_at"]) == ("Running", STAGED, at)
    (entry,) = fleet.inbox("a-1")
    assert entry["staged_at"] == STAGED

    for agent in ("a-1", "a-2", "a-3"):
        fleet.report(agent, 0)
    assert finish(fleet, job_id)["status"] == "Success"
    assert fleet.task(task_id)["staged_at"] == STAGED
    assert "staged" not in fleet.job(job_id)["counts"]


def test_time_out_and_expiry_count_from_activate_at(fleet: Fleet) -> None:
    ahead = 6 * 86400
    job_id = fleet.submit("a-1", activate_at=moment(fleet, ahead))["job_id"]
    fleet.run_until_dispatched(job_id)
    stage(fleet, "a-1")
    windows, table = fleet.cloud.app.distribution.windows, fleet.cloud.app.table
    end = fleet.cloud.clock() + timedelta(seconds=ahead - windows.seconds - windows.grace + windows.job_timeout)

    assert poll(fleet, job_id, wait=300) == {"state": "running", "wait": 300}
    names = (fleet.project.id, job_key(job_id))
    stored = [table.get(keys.job(*names)), table.get(keys.shard(*names, 0))]
    for partition in (keys.chunks(*names), keys.transfers(*names), keys.job_inbox_entries(*names, 0)):
        stored += table.query_all(partition)
    assert len(stored) >= 5
    assert all(item and item["expires_at"] > end.timestamp() for item in stored)

    fleet.cloud.clock.move_to(end - timedelta(seconds=1))
    assert poll(fleet, job_id)["state"] == "running"
    fleet.cloud.clock.advance(2)
    assert finish(fleet, job_id)["counts"]["timeout"] == 1


def test_staged_hosts_are_not_woken_again(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1", activate_at=moment(fleet, 3600))["job_id"]
    fleet.run_until_dispatched(job_id)
    stage(fleet, "a-1")
    fleet.cloud._receive("AgentWakeupsQueue", 100)

    fleet.step("dispatch_transfer", job_id)
    for _ in range(3):
        fleet.cloud.clock.advance(300)
        poll(fleet, job_id, wait=300)

    assert fleet.cloud._receive("AgentWakeupsQueue", 100) == []
    (entry,) = fleet.inbox("a-1")
    assert entry["staged_at"] == STAGED


def test_repeated_or_late_staged_report_changes_nothing(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1", activate_at=moment(fleet, 60))["job_id"]
    fleet.run_until_dispatched(job_id)
    entries = fleet.inbox("a-1")
    for at in (STAGED, "2026-02-02T00:00:00.000Z"):
        fleet.report("a-1", 115, items=entries, progress=100, staged_at=at)
    fleet.report("a-1", 115, items=entries, progress=40)
    poll(fleet, job_id)
    (row,) = fleet.get(f"/v1/jobs/{fleet.job(job_id)['key']}/targets")["items"]
    assert (row["status"], row["staged_at"], row["progress"]) == ("Running", STAGED, 100)

    fleet.report("a-1", 0, items=entries)
    fleet.report("a-1", 115, items=entries, progress=100, staged_at=STAGED)

    assert finish(fleet, job_id)["status"] == "Success"


def test_swarm_figures_of_a_staged_host_count_once(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"], activate_at=moment(fleet, 600))["job_id"]
    fleet.run_until_dispatched(job_id)
    swarm = {"origin_bytes": 600, "peer_bytes": 400}
    stage(fleet, "a-1", swarm=swarm)
    poll(fleet, job_id)
    assert fleet.job(job_id)["swarm"]["origin_bytes"] == 600

    fleet.report("a-1", 0, swarm=swarm)
    stage(fleet, "a-2", swarm=swarm)
    fleet.report("a-2", 0, swarm=swarm)
    finish(fleet, job_id)

    total = fleet.job(job_id)["swarm"]
    assert (total["origin_bytes"], total["peer_bytes"], total["hosts"]) == (1200, 800, 2)


def test_cancel_before_activation_ends_the_job_immediately(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"], activate_at=moment(fleet, 86400))["job_id"]
    fleet.run_until_dispatched(job_id)
    stage(fleet, "a-1")
    before = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))

    assert fleet.post(f"/v1/jobs/{fleet.job(job_id)['key']}/cancel", {}).status == 202
    after = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))

    assert before
    assert after
    assert after.generation == before.generation + 1
    assert fleet.cloud.app.distribution.executions.status(after) is not None, "another execution is to end the Job"
    assert finish(fleet, job_id)["status"] == "Cancelled"
    assert fleet.inbox("a-1") == []
    assert fleet.inbox("a-2") == []


def test_cancel_during_the_dispatch_leaves_no_inbox_entries(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel starts a second execution, which ends the Job before the first one has written all entries."""
    job_id = fleet.submit_many(["a-1", "a-2"], activate_at=moment(fleet, 86400))["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    fleet.step("prepare_file", job_id)
    inbox = fleet.cloud.app.distribution.inbox
    place = inbox.add

    def place_after_the_end(entries: Any) -> None:
        fleet.post(f"/v1/jobs/{job_key(job_id)}/cancel", {})
        finish(fleet, job_id)
        place(entries)

    with monkeypatch.context() as patched:
        patched.setattr(inbox, "add", place_after_the_end)
        fleet.step("dispatch_transfer", job_id)

    assert fleet.job(job_id)["status"] == "Cancelled"
    assert [fleet.inbox(agent) for agent in ("a-1", "a-2")] == [[], []]


def test_redrive_keeps_only_a_future_activation_time(fleet: Fleet) -> None:
    at = moment(fleet, 3600)
    job_id = fleet.submit("a-1", activate_at=at)["job_id"]
    fleet.run_until_dispatched(job_id)
    key = fleet.job(job_id)["key"]
    fleet.post(f"/v1/jobs/{key}/cancel", {})
    finish(fleet, job_id)

    before_activation = fleet.post(f"/v1/jobs/{key}/redrive", {"statuses": ["Cancelled"]}).json()["job_id"]
    fleet.cloud.clock.advance(3600)
    after_activation = fleet.post(f"/v1/jobs/{key}/redrive", {"statuses": ["Cancelled"]}).json()["job_id"]

    assert fleet.job(before_activation)["activate_at"] == at
    assert fleet.job(after_activation).get("activate_at") is None


def test_agent_that_cannot_stage_gets_the_file_at_activation(fleet: Fleet) -> None:
    at = moment(fleet, 3600)
    job_id = fleet.submit("a-1", activate_at=at)["job_id"]
    fleet.run_until_dispatched(job_id)

    assert fleet.inbox("a-1", can="") == []
    assert len(fleet.inbox("a-1")) == 1
    fleet.cloud.clock.advance(3600)

    assert len(fleet.inbox("a-1", can="")) == 1


def test_host_that_has_not_started_is_woken_after_activation(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["old", "new"], activate_at=moment(fleet, 3600))["job_id"]
    fleet.run_until_dispatched(job_id)
    stage(fleet, "new")
    fleet.cloud.clock.advance(3600)
    fleet.cloud._receive("AgentWakeupsQueue", 100)

    fleet.cloud.clock.advance(16)
    poll(fleet, job_id, wait=15)

    (message,) = fleet.cloud._receive("AgentWakeupsQueue", 100)
    assert "old" in message["Body"]
    assert "new" not in message["Body"]


def test_staged_transfers_do_not_displace_new_ones(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.distribution.inbox._OFFERED_TOGETHER", 2)
    for number in range(3):
        job_id = fleet.submit("a-1", file_path=f"/data/{number}", activate_at=moment(fleet, 600))["job_id"]
        fleet.run_until_dispatched(job_id)
        stage(fleet, "a-1", items=[entry for entry in fleet.inbox("a-1") if entry["job_id"] == job_id])
    fresh = fleet.submit("a-1", file_path="/data/fresh")["job_id"]
    fleet.run_until_dispatched(fresh)

    listed = fleet.inbox("a-1")

    assert [entry["job_id"] == fresh for entry in listed] == [True, False, False, False]


def test_late_target_keeps_its_activation_time(fleet: Fleet) -> None:
    at = moment(fleet, 3600)
    first = fleet.submit("a-1", activate_at=at)
    fleet.pass_window()
    fleet.step("close_window", first["job_id"])

    fleet.collect()

    moved = fleet.task(first["task_id"])
    assert moved["job_id"] != first["job_id"]
    assert fleet.job(moved["job_id"])["activate_at"] == at


def test_compensation_check_waits_longer_than_the_next_poll(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1", activate_at=moment(fleet, 5 * 86400))["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.cloud.clock.advance(100)

    wait = poll(fleet, job_id, wait=300)["wait"]
    (item,) = due(fleet)

    assert wait == 300
    assert item["due_at"] - fleet.cloud.clock().timestamp() > wait


def test_shorter_use_does_not_shorten_a_files_protection(fleet: Fleet) -> None:
    fleet.submit("a-1", activate_at=moment(fleet, 86400))
    fleet.cloud.clock.advance(400)
    fleet.submit("a-2", file_path="/data/other")

    content = fleet.cloud.app.table.get(keys.content(fleet.project.id, fleet.signature)) or {}

    assert content["used_until"] > fleet.cloud.clock().timestamp() + 86400 - 400


def test_staging_is_polled_often_at_first_however_late_the_activation_is() -> None:
    waits = [0]
    while sum(waits) < 60:
        waits.append(next_wait(waits[-1], longest_wait(600, 7 * 86400.0 - sum(waits))))

    assert waits[1:4] == [2, 3, 5]
    assert max(waits) < 30


def test_seven_days_of_polls_fit_into_one_execution() -> None:
    left, polls, wait = 7 * 86400.0, 0, 0
    while left > 0:
        wait = next_wait(wait, longest_wait(600, left))
        left, polls = left - wait, polls + 1

    assert polls * 9 < 25_000 * 0.8
    assert -2 <= left <= 0, "a poll follows immediately after the activation"
