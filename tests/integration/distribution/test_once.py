"""One dispatch per Job, even if steps run twice, late or concurrently."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet
from tidegate.common.ids import digest
from tidegate.distribution import model as domain_targets
from tidegate.distribution.model import job_key
from tidegate.errors import Busy

STEPS = ("close_window", "prepare_file", "dispatch_transfer", "poll_transfer", "finish_job")


def inbox_entries(fleet: Fleet, job_id: str) -> list[str]:
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    return [transfer.token for transfer in fleet.cloud.app.distribution.transfers.list(job)]


def test_every_step_run_twice_dispatches_once(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.collect()
    fleet.pass_window()
    for name in STEPS[:3]:
        assert fleet.step(name, job_id) == fleet.step(name, job_id)
    assert len(inbox_entries(fleet, job_id)) == 1
    assert len(fleet.inbox("a-1")) == 1
    fleet.deliver_all(job_id)
    for name in STEPS:
        fleet.step(name, job_id)
    done = fleet.job(job_id)
    for name in STEPS:
        fleet.step(name, job_id)
    assert fleet.job(job_id) == done
    assert done["status"] == "Success"
    assert fleet.inbox("a-1") == []


def test_slow_close_after_a_poll_undoes_nothing(fleet: Fleet) -> None:
    """The slow closer read the Job as Running without shards, and continues after a poll by another execution."""
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    fleet.pass_window()
    app = fleet.cloud.app
    job = app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    slow = app.distribution.jobs.close(
        job, fleet.cloud.clock(), fleet.cloud.clock().timestamp() + 600, fleet.cloud.clock()
    )
    fleet.run_until_dispatched(job_id)
    fleet.deliver_all(job_id)
    fleet.step("poll_transfer", job_id)

    app.distribution.targets.add_shards(
        slow, [[arrival.target for arrival in app.distribution.targets.collected(*_place(slow))]], fleet.cloud.clock()
    )
    app.distribution.jobs.shard(slow, fleet.cloud.clock(), [(0, 0)], [1])

    assert fleet.states(job_id) == {"a-1": "Success"}
    assert fleet.job(job_id)["counts"]["success"] == 1


def _place(job: object) -> tuple[str, str]:
    return job.project_id, job.key  # type: ignore[attr-defined]


def test_stale_poller_cannot_write_after_the_end(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    app = fleet.cloud.app
    slow = app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert slow
    fleet.report("a-1", 0)
    (shard,) = app.distribution.targets.shards(slow, [0])
    fleet.cloud.clock.advance(601)
    fleet.step("finish_job", job_id)
    assert fleet.states(job_id) == {"a-1": "Timeout"}

    from tidegate.distribution.model import Target, TargetReport

    assert not app.distribution.targets.save(slow, [shard.after({Target("a-1"): TargetReport(0)})], fleet.cloud.clock())
    assert fleet.states(job_id) == {"a-1": "Timeout"}


def test_second_start_of_an_execution_is_refused_by_name(fleet: Fleet) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    fleet.cloud.app.distribution.executions.start(job)
    machine = fleet.cloud.names.machines["DownloadJobMachine"]
    found = fleet.cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
    ours = digest(fleet.project.id, job_id, length=40)
    assert len([entry for entry in found if entry["name"].startswith(ours)]) == 1


def test_half_finished_dispatch_is_completed(fleet: Fleet) -> None:
    agents = [f"a-{n}" for n in range(30)]
    job_id = fleet.submit_many(agents)["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    store = fleet.cloud.app.distribution.inbox
    place = store.add

    def dying(entries: Any) -> None:
        place(list(entries)[:10])
        raise Busy("died")

    store.add = dying  # type: ignore[method-assign]
    with pytest.raises(Busy):
        fleet.step("dispatch_transfer", job_id)
    store.add = place  # type: ignore[method-assign]
    early = next(agent for agent in agents if fleet.inbox(agent))
    fleet.report(early, 0)

    assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"

    assert len(inbox_entries(fleet, job_id)) == 1
    assert fleet.inbox(early) == [], "it has reported already"
    assert sorted(fleet.deliver_all(job_id)) == sorted(agents)


def test_job_above_the_limit_is_split_into_transfers(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """With shards of five instead of five hundred."""
    monkeypatch.setattr(domain_targets, "SHARD_LIMIT", 5)
    monkeypatch.setattr(domain_targets, "_SHARD_AIM", 4)
    fleet.cloud.app.distribution.transfer_max_targets = 10
    agents = [f"a-{n}" for n in range(20)]
    job_id = fleet.submit_many(agents)["job_id"]
    fleet.run_until_dispatched(job_id)
    assert len(inbox_entries(fleet, job_id)) > 1
    assert sorted(fleet.deliver_all(job_id)) == sorted(agents)
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.job(job_id)["counts"]["success"] == 20


def test_finish_counts_results_of_a_poll_that_died(fleet: Fleet) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    store = fleet.cloud.app.distribution.jobs
    progress = store.progress

    def dying(*_: object) -> None:
        raise Busy("died")

    store.progress = dying  # type: ignore[method-assign, assignment]
    with pytest.raises(Busy):
        fleet.step("poll_transfer", job_id)
    store.progress = progress  # type: ignore[method-assign]
    fleet.cloud.clock.advance(601)
    fleet.step("finish_job", job_id)

    assert fleet.states(job_id) == {"a-1": "Success", "a-2": "Timeout"}
    assert fleet.job(job_id)["counts"] == {"total": 2, "success": 1, "failed": 0, "downloading": 0, "timeout": 1}


def test_end_counts_a_result_that_a_poll_stored_meanwhile(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two executions run: one ends the Job at its deadline, while the other stores the last result."""
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    fleet.cloud.clock.advance(700)
    jobs = fleet.cloud.app.distribution.jobs
    end, polls = jobs.end, iter(["poll_transfer"])

    def polled_first(*args: Any) -> Any:
        for name in polls:
            fleet.step(name, job_id)
        return end(*args)

    monkeypatch.setattr(jobs, "end", polled_first)
    assert fleet.step("finish_job", job_id)["state"] == "ended"

    job = fleet.job(job_id)
    assert (job["status"], job["counts"]["success"], job["counts"]["timeout"]) == ("Success", 1, 0)
    assert fleet.states(job_id) == {"a-1": "Success"}
