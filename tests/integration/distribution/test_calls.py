"""The number of AWS calls of each operation, as the benchmarks report it."""

from __future__ import annotations

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tidegate.distribution.model import TransferSpec
from tidegate.distribution.targets import Target


def spec_of(fleet: Fleet) -> TransferSpec:
    return TransferSpec(**fleet.body())


def test_warm_submit_is_one_write_and_one_message(fleet: Fleet) -> None:
    app, spec = fleet.cloud.app, spec_of(fleet)
    app.distribution.submit.submit(fleet.project.id, spec, [Target("a-0")])
    with count_calls(app) as calls:
        app.distribution.submit.submit(fleet.project.id, spec, [Target("a-1")])
    assert calls == {"dynamodb.BatchWriteItem": 1, "sqs.SendMessageBatch": 1}


def test_cold_submit_is_five_calls(fleet: Fleet) -> None:
    app = fleet.cloud.app
    with count_calls(app) as calls:
        app.distribution.submit.submit(fleet.project.id, spec_of(fleet), [Target("a-1")])
    assert sum(calls.values()) == 5


def test_submit_of_1000_targets_takes_at_most_46_calls(fleet: Fleet) -> None:
    app = fleet.cloud.app
    targets = [Target(f"agent-{n:06d}", "container-" + "0" * 20) for n in range(1000)]
    with count_calls(app) as calls:
        app.distribution.submit.submit(fleet.project.id, spec_of(fleet), targets)
    assert sum(calls.values()) <= 1000 / 25 + 1000 / 10 + 3
    assert sum(calls.values()) <= 46, "one message holds a hundred targets"


def test_task_takes_at_most_three_reads(fleet: Fleet) -> None:
    made = fleet.submit("a-1")
    app = fleet.cloud.app
    with count_calls(app) as collecting:
        app.distribution.lookup.task(fleet.project.id, made["task_id"])
    fleet.run_until_dispatched(made["job_id"])
    with count_calls(app) as running:
        app.distribution.lookup.task(fleet.project.id, made["task_id"])
    assert collecting == {"dynamodb.GetItem": 2}
    assert running == {"dynamodb.GetItem": 3}


def test_empty_inbox_costs_one_read(fleet: Fleet) -> None:
    app = fleet.cloud.app
    # The first call writes `last_seen`, which is repeated after four minutes.
    app.distribution.agents.inbox(fleet.project.id, "a-1")
    with count_calls(app) as calls:
        assert app.distribution.agents.inbox(fleet.project.id, "a-1") == []
    assert calls == {"dynamodb.Query": 1}


def test_poll_writes_only_shards_that_changed(fleet: Fleet) -> None:
    app = fleet.cloud.app
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    with count_calls(app) as calls:
        fleet.step("poll_transfer", job_id)
    assert not [name for name in calls if "Write" in name or "Update" in name or "Put" in name]
