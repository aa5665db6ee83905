"""The number of AWS calls of each operation, as the benchmarks report it."""

from __future__ import annotations

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tidegate.distribution import submit
from tidegate.distribution.model import Target, TransferSpec


def spec_of(fleet: Fleet) -> TransferSpec:
    return TransferSpec(**fleet.body())


def test_warm_submit_is_one_write_and_one_message(fleet: Fleet) -> None:
    app, spec = fleet.cloud.app, spec_of(fleet)
    submit.submit(app.distribution, fleet.project.id, spec, [Target("a-0")])
    with count_calls(app) as calls:
        submit.submit(app.distribution, fleet.project.id, spec, [Target("a-1")])
    assert calls == {"dynamodb.BatchWriteItem": 1, "sqs.SendMessageBatch": 1}


def test_cold_submit_is_seven_calls(fleet: Fleet) -> None:
    app = fleet.cloud.app
    with count_calls(app) as calls:
        submit.submit(app.distribution, fleet.project.id, spec_of(fleet), [Target("a-1")])
    # One of them reads which timeline the executions belong to, once in some seconds.
    assert sum(calls.values()) == 7


def test_submit_of_1000_targets_takes_at_most_48_calls(fleet: Fleet) -> None:
    app = fleet.cloud.app
    targets = [Target(f"agent-{n:06d}", "container-" + "0" * 20) for n in range(1000)]
    with count_calls(app) as calls:
        submit.submit(app.distribution, fleet.project.id, spec_of(fleet), targets)
    assert sum(calls.values()) <= 1000 / 25 + 1000 / 10 + 3
    assert sum(calls.values()) <= 48, "one message holds a hundred targets"


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


def test_dispatch_and_finish_read_each_record_once(fleet: Fleet) -> None:
    """A Job's Tasks are in eight partitions of the index: finish_job reads all of them to find strays."""
    app = fleet.cloud.app
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    fleet.step("prepare_file", job_id)
    with count_calls(app) as calls:
        fleet.step("dispatch_transfer", job_id)
    # Job, content and project; shard and agent; transfers and reports.
    assert (calls["dynamodb.GetItem"], calls["dynamodb.BatchGetItem"], calls["dynamodb.Query"]) == (3, 2, 2)
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    with count_calls(app) as calls:
        fleet.step("finish_job", job_id)
    # The Job; targets and callbacks.
    assert (calls["dynamodb.GetItem"], calls["dynamodb.BatchGetItem"], calls["dynamodb.Query"]) == (1, 0, 1 + 8 + 1)


def test_empty_inbox_costs_two_reads(fleet: Fleet) -> None:
    app = fleet.cloud.app
    # The first call writes `last_seen`, which is repeated after four minutes.
    app.distribution.agents.inbox(fleet.project.id, "a-1")
    with count_calls(app) as calls:
        assert app.distribution.agents.inbox(fleet.project.id, "a-1")[1] == []
    # The inbox, and whether the host was deleted or replaced meanwhile.
    assert calls == {"dynamodb.Query": 1, "dynamodb.BatchGetItem": 1}


def test_poll_writes_only_shards_that_changed(fleet: Fleet) -> None:
    app = fleet.cloud.app
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    with count_calls(app) as calls:
        fleet.step("poll_transfer", job_id)
    assert not [name for name in calls if "Write" in name or "Update" in name or "Put" in name]


def test_result_repeated_in_one_report_is_written_once(fleet: Fleet) -> None:
    """Otherwise a report of 500 equal items cost 500 writes."""
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    (item,) = fleet.inbox("a-1")
    with count_calls(fleet.cloud.app) as calls:
        fleet.report("a-1", 0, items=[item] * 50)
    assert calls["dynamodb.UpdateItem"] == 1
    assert fleet.inbox("a-1") == []
