"""What a compensation poll starts, and in which order."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.integration.compensation.polling import Ticks, add_overdue, poll_once
from tests.support.moto.bulk import multiply
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tidegate.app import App
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.compensation.poll import CompensationStore


def test_work_due_for_less_than_30_s_is_not_started(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    due = keys.due("fresh", ticks.cloud.clock().timestamp() - 20, "probe")
    ticks.cloud.app.table.batch_put([{"pk": "P#x#PROBE#fresh", "sk": "META", "name": "fresh"} | due])

    ticks.next()
    assert started == []
    ticks.next()
    assert started == ["fresh"]


def test_lane_gets_a_start_every_5_s_and_does_not_starve_another(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    for name in ("a1", "a2", "a3"):
        add_overdue(ticks.cloud, name, lane="A")
    add_overdue(ticks.cloud, "b1", lane="B")

    ticks.next()
    assert sorted(started) == ["a1", "b1"]

    gaps = [ticks.next(), ticks.next()]
    assert sorted(started) == ["a1", "a2", "a3", "b1"]
    assert gaps == [5, 5]


def test_two_polls_at_once_start_a_record_once(ticks: Ticks, started: list[str]) -> None:
    cloud = ticks.cloud
    add_overdue(cloud, "one")
    [item] = cloud.app.table.query(keys.due_partition(0), index="due").items
    first = cloud.app.compensation

    assert first._start(dict(item), cloud.clock()) is True
    assert first._start(dict(item), cloud.clock()) is False
    assert started == ["one"]


def test_failed_start_is_tried_again(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def handlers(app: App) -> dict[str, Any]:
        def start(item: dict[str, Any]) -> None:
            tries.append(item["name"])
            raise RuntimeError("not today")

        return {"probe": start}

    monkeypatch.setattr(App, "due_handlers", property(handlers))
    add_overdue(ticks.cloud, "one")
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(8):
        ticks.next()

    assert len(tries) > 1
    assert ticks.waiting, "the polling continues"


@pytest.mark.parametrize("failing", ["claim", "claim_lane"])
def test_record_that_cannot_be_claimed_does_not_stop_the_poll(
    cloud: MotoCloud, ticks: Ticks, started: list[str], monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """For example a record so large that DynamoDB refuses to add the attributes of the claim."""
    original = getattr(CompensationStore, failing)

    def refuses(store: CompensationStore, given: Any, *rest: Any) -> Any:
        if "bad" in str(given):
            raise ClientError({"Error": {"Code": "ValidationException"}}, "UpdateItem")
        return original(store, given, *rest)

    monkeypatch.setattr(CompensationStore, failing, refuses)
    add_overdue(cloud, "bad", lane="bad-lane")
    cloud.clock.advance(1)
    add_overdue(cloud, "good")

    report = poll_once(cloud)

    assert started == ["good"]
    assert report.compensated == 1


def test_300_waiting_in_a_paused_channel_do_not_hide_other_work(cloud: MotoCloud, ticks: Ticks) -> None:
    queue = TestQueue(cloud, cloud.project())
    cloud.http("POST", "/v1/queue/pause", json={"scope": "no_cookie"}, key=cloud.admin_key)
    for _ in range(3):
        queue.submit()
    waiting = queue.submit()
    multiply(cloud, waiting.request_id, 300)
    export = queue.submit(type="export")
    cloud.client("sqs").purge_queue(QueueUrl=cloud.names.queues["AdmissionQueue"])
    cloud.clock.advance(60)

    report = poll_once(cloud)
    queue.admit()

    assert queue.statuses(export) == ["running"]
    assert report.found > 300
    # From now on the channel is due, not each request that waits there.
    left = cloud.app.table.query_all(keys.due_partition(0), index="due")
    assert [item["due_kind"] for item in left if item.get("due_lane")] == []


def test_lost_export_runs_within_60_s_with_10_000_waiting_elsewhere(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The export's message to admission is lost, while 10,000 older downloads wait in a paused channel."""
    # Polls remove few of the downloads from the index, so most of them stay in front of the export.
    monkeypatch.setattr("tidegate.compensation.poll._STARTS", 20)
    queue = TestQueue(cloud, cloud.project())
    cloud.http("POST", "/v1/queue/pause", json={"scope": "no_cookie"}, key=cloud.admin_key)
    multiply(cloud, queue.submit().request_id, 10_000)
    cloud.invoke("compensate", {"source": "aws.events"})
    ticks.next()
    cloud.clock.advance(60)
    export = queue.submit(type="export")
    cloud.client("sqs").purge_queue(QueueUrl=cloud.names.queues["AdmissionQueue"])
    submitted = cloud.clock()

    while queue.statuses(export) != ["running"]:
        ticks.next()
        queue.admit()
        assert (cloud.clock() - submitted).total_seconds() <= 60


@pytest.mark.parametrize("lane", [None, "A"], ids=["work", "work of a lane"])
def test_more_overdue_than_a_poll_reads_hide_newer_work_only_briefly(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch, lane: str | None
) -> None:
    """A poll that reaches its limit is continued by the next one. After the last part it starts again."""
    found: list[str] = []
    monkeypatch.setattr(App, "due_handlers", property(lambda app: {"probe": lambda item: found.append(item["name"])}))
    monkeypatch.setattr("tidegate.compensation.poll.MOST_AT_ONCE", 10)
    monkeypatch.setattr("tidegate.compensation.poll._STARTS", 2)
    # All of them in one shard.
    monkeypatch.setattr("tidegate.aws.table._FEW_WRITES", 1000)
    for number in range(25):
        add_overdue(cloud, f"old{number}", lane=lane)
        cloud.clock.advance(1)
    add_overdue(cloud, "new", lane="B")

    poll = poll_once(cloud).poll
    assert "new" not in found
    assert list(poll.resume) == ["0"]
    # Three parts of at most ten: few of the 25 records were started meanwhile.
    for _ in range(2):
        poll = poll_once(cloud).poll
    assert "new" in found
    assert not poll.resume
    begun = len(found)
    cloud.clock.advance(10)
    poll_once(cloud)
    assert found[begun:], "the poll starts again at the oldest"


def test_other_shards_are_read_while_shard_0_is_read_in_parts(cloud: MotoCloud) -> None:
    store = CompensationStore(cloud.app.table)
    for number in range(8):
        add_overdue(cloud, f"old{number}")
        cloud.clock.advance(1)
    table = cloud.app.table
    now = cloud.clock().timestamp()
    table.write(
        update(keys.due_shard(7), {"shard": 7, "opened_at": int(now)} | keys.due("", 0, keys.SHARD_KIND), condition="")
    )
    table.write(
        update(
            {"pk": "P#x#PROBE#far", "sk": "META"},
            {"name": "far"} | keys.due("far", now - 60, "probe") | {"due_pk": keys.due_partition(7)},
            condition="",
        )
    )

    first = store.overdue(now, now, now, 6)
    second = store.overdue(now, now, now, 6, first.resume)
    assert [item["pk"][-4:] for item in first.found] == ["old0", "old1", "old2", "#far"]
    assert [item["pk"][-4:] for item in second.found] == ["old3", "old4", "old5", "#far"]
    assert first.resume.keys() == second.resume.keys() == {"0"}


def test_many_of_one_kind_do_not_delay_another_kind(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example thousands of overdue callbacks, all older than one request whose message was lost."""
    found: list[str] = []
    start = lambda item: found.append(item["name"])  # noqa: E731
    monkeypatch.setattr(App, "due_handlers", property(lambda app: {"probe": start, "other": start}))
    monkeypatch.setattr("tidegate.compensation.poll._STARTS", 10)
    for number in range(40):
        add_overdue(cloud, f"many{number}")
    cloud.clock.advance(1)
    add_overdue(cloud, "one", kind="other")
    add_overdue(cloud, "head", lane="A")

    poll_once(cloud)

    assert {"one", "head"} <= set(found)
    assert len(found) == 10


def test_work_is_left_to_the_start_queue_while_that_is_not_empty(
    cloud: MotoCloud, ticks: Ticks, started: list[str]
) -> None:
    add_overdue(cloud, "through the queue", lane="channel:export")
    add_overdue(cloud, "by itself")
    cloud.app.queue.admission_queue.trigger("export")

    poll_once(cloud)
    assert started == ["by itself"]

    # The queue may be blocked, so after 300 s the work is started anyway.
    cloud.clock.advance(300)
    poll_once(cloud)
    assert started == ["by itself", "through the queue"]


def test_work_is_started_once_the_start_queue_is_empty(cloud: MotoCloud, ticks: Ticks, started: list[str]) -> None:
    add_overdue(cloud, "one", lane="channel:export")
    cloud.app.queue.admission_queue.trigger("export")
    poll_once(cloud)
    cloud.deliver("AdmissionQueue")

    poll_once(cloud)
    assert started == ["one"]
