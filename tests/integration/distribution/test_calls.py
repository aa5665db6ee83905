"""What a unit of work costs in AWS calls: the bars that the benchmarks hold."""

from __future__ import annotations

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tidegate.distribution.model import TransferSpec
from tidegate.distribution.targets import Target


def parcel_of(fleet: Fleet) -> TransferSpec:
    return TransferSpec(**fleet.body())


def test_a_warm_submit_is_one_write_and_one_message(fleet: Fleet) -> None:
    app, parcel = fleet.cloud.app, parcel_of(fleet)
    app.distribution.submit.submit(fleet.project.id, parcel, [Target("a-0")])
    with count_calls(app) as calls:
        app.distribution.submit.submit(fleet.project.id, parcel, [Target("a-1")])
    assert calls == {"dynamodb.BatchWriteItem": 1, "sqs.SendMessageBatch": 1}


def test_a_cold_submit_is_five_calls(fleet: Fleet) -> None:
    app = fleet.cloud.app
    with count_calls(app) as calls:
        app.distribution.submit.submit(fleet.project.id, parcel_of(fleet), [Target("a-1")])
    assert sum(calls.values()) == 5


def test_a_submit_of_1000_targets_keeps_its_bar(fleet: Fleet) -> None:
    app = fleet.cloud.app
    targets = [Target(f"agent-{n:06d}", "container-" + "0" * 20) for n in range(1000)]
    with count_calls(app) as calls:
        app.distribution.submit.submit(fleet.project.id, parcel_of(fleet), targets)
    assert sum(calls.values()) <= 1000 / 25 + 1000 / 10 + 3
    assert sum(calls.values()) <= 46, "one message holds a hundred targets"


def test_a_task_is_read_in_three_reads_at_most(fleet: Fleet) -> None:
    made = fleet.submit("a-1")
    app = fleet.cloud.app
    with count_calls(app) as collecting:
        app.distribution.lookup.task(fleet.project.id, made["task_id"])
    fleet.run_until_dispatched(made["job_id"])
    with count_calls(app) as running:
        app.distribution.lookup.task(fleet.project.id, made["task_id"])
    assert collecting == {"dynamodb.GetItem": 2}
    assert running == {"dynamodb.GetItem": 3}


def test_an_empty_inbox_costs_one_read(fleet: Fleet) -> None:
    app = fleet.cloud.app
    # That the host was seen is written once in four minutes.
    app.distribution.agents.inbox(fleet.project.id, "a-1")
    with count_calls(app) as calls:
        assert app.distribution.agents.inbox(fleet.project.id, "a-1") == []
    assert calls == {"dynamodb.Query": 1}


def test_a_poll_writes_only_shards_that_changed(fleet: Fleet) -> None:
    app = fleet.cloud.app
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    with count_calls(app) as calls:
        fleet.step("poll_transfer", job_id)
    assert not [name for name in calls if "Write" in name or "Update" in name or "Put" in name]
