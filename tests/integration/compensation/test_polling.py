"""When the compensation poll runs, and what it costs."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tests.integration.compensation.polling import Ticks, add_overdue
from tests.support.calls import count_calls
from tests.support.moto import aws_limits
from tests.support.moto.bulk import multiply
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tidegate.aws.table import update
from tidegate.compensation.poll import CompensationStore, Pace, PollState, after, first

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def test_interval_grows_to_300_s_while_polls_find_nothing(ticks: Ticks) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})

    gaps = [ticks.next() for _ in range(40)]

    assert gaps[:5] == [0, 10, 20, 30, 40]
    assert max(gaps) == gaps[-1] == 300


def test_found_work_resets_the_interval(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(6):
        ticks.next()
    add_overdue(ticks.cloud, "one")

    ticks.next()

    assert started == ["one"]
    assert ticks.next() == 10


def test_deployment_sets_the_base_and_longest_interval() -> None:
    pace, now = Pace(base=5, longest=12, overdue=30), datetime(2026, 1, 1, tzinfo=UTC)
    poll = first(now, pace)
    gaps = []
    for _ in range(4):
        poll = after(poll, now, 0, pace)
        gaps.append((poll.next_poll - now).total_seconds())

    assert gaps == [5, 10, 12, 12]
    assert poll.interval_s == 12


def test_next_poll_is_not_later_than_the_next_known_due_time() -> None:
    quiet, pace = PollState(7, 29, None, NOON), Pace(base=10, longest=300, overdue=30)

    assert (after(quiet, NOON, 0, pace).next_poll - NOON).total_seconds() == 300
    assert (after(quiet, NOON, 0, pace, upcoming=75).next_poll - NOON).total_seconds() == 75
    assert (after(quiet, NOON, 0, pace, upcoming=0.5).next_poll - NOON).total_seconds() == 10


def test_dead_worker_is_found_within_150_s_at_the_longest_interval(ticks: Ticks) -> None:
    cloud = ticks.cloud
    cloud.app.compensation.revive()
    for _ in range(40):
        ticks.next()
    project, queue = cloud.project(), cloud.app.queue
    request = queue.submit(project.id, "associate", "no_cookie", {})
    cloud.deliver("AdmissionQueue")
    running = queue.get(project.id, request.request_id)
    queue.heartbeat(project.id, request.request_id, running.attempt)
    cloud.app.queue.runner.stop(running, "its machine dies")
    last_heartbeat = cloud.clock()

    for _ in range(3):
        # EventBridge does this once a minute.
        cloud.clock.advance(50)
        cloud.app.compensation.revive()
        while ticks.waiting and min(due for due, _ in ticks.waiting) <= cloud.clock():
            ticks.next()

    assert (cloud.clock() - last_heartbeat).total_seconds() <= 150
    assert queue.get(project.id, request.request_id).status == "pending", "it is not tried again"


def test_trigger_polls_at_once_and_resets_the_interval(ticks: Ticks) -> None:
    cloud = ticks.cloud
    cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(8):
        ticks.next()

    answer = cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)

    assert answer.status == 200
    assert ticks.next() == 0
    assert ticks.next() <= 10
    state = cloud.http("GET", "/v1/compensation", key=cloud.admin_key).json()
    assert set(state) == {"interval_s", "multiplier", "queue_size", "last_poll", "next_poll", "compensated_total"}


def test_trigger_that_races_a_tick_is_not_dropped(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(5):
        ticks.next()
    store_read = CompensationStore.read
    raced: list[int] = []

    def read(store: CompensationStore) -> PollState | None:
        """Delivers a tick right after the first read."""
        found = store_read(store)
        if not raced:
            raced.append(1)
            ticks.next()
        return found

    monkeypatch.setattr(CompensationStore, "read", read)
    # The clock jumps during the call, but the call itself is not slow.
    monkeypatch.setattr(aws_limits, "API_SECONDS", 3600)
    answer = cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)

    assert answer.status == 200
    assert min(due for due, _ in ticks.waiting) <= cloud.clock()


def test_duplicate_ticks_have_no_successors(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    _, poll = ticks.waiting[0]
    ticks.next()

    for _ in range(3):
        ticks.deliver(poll)

    assert len(ticks.waiting) == 1


def test_schedule_replaces_a_lost_tick_only(ticks: Ticks) -> None:
    cloud = ticks.cloud
    cloud.invoke("compensate", {"source": "aws.events"})
    ticks.next()
    cloud.invoke("compensate", {"source": "aws.events"})
    assert len(ticks.waiting) == 1, "a second tick was sent although the first is not lost"

    ticks.waiting.clear()
    cloud.clock.advance(120)
    cloud.invoke("compensate", {"source": "aws.events"})

    assert len(ticks.waiting) == 1


@pytest.mark.slow
def test_idle_poll_costs_two_reads_with_100_000_finished_records(cloud: MotoCloud) -> None:
    queue = TestQueue(cloud, cloud.project())
    request = queue.submit()
    queue.admit()
    assert queue.finish(request, result={"same": True}).status == "completed"
    cloud.invoke("compensate", {"source": "aws.events"})
    multiply(cloud, request.request_id, 99_999)
    table = cloud.client("dynamodb").describe_table(TableName=cloud.names.refs["Table"])["Table"]
    assert table["ItemCount"] >= 100_000

    with count_calls(cloud.app) as calls:
        cloud.deliver("CompensationQueue", limit=1)

    # The record read is the freeze.
    assert calls == {"dynamodb.GetItem": 1, "dynamodb.Query": 1, "dynamodb.UpdateItem": 1, "sqs.SendMessageBatch": 1}


def test_schedule_writes_the_number_of_waiting_requests_as_a_metric(
    cloud: MotoCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    project = cloud.project()
    for _ in range(3):
        cloud.app.queue.submit(project.id, "check", payload={"file_id": "none"})
    capsys.readouterr()

    cloud.invoke("compensate", {"source": "aws.events"})

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    (state,) = (line for line in told if "WaitingRequests" in line)
    assert state["WaitingRequests"] == [3.0]
    assert {"CompensationInterval", "StartQueueSize"} <= set(state)


def test_schedule_writes_metrics_of_channels_that_have_work(
    cloud: MotoCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    project = cloud.project()
    for _ in range(3):
        cloud.app.queue.submit(project.id, "check", payload={"file_id": "none"}, channel="no_cookie")
    cloud.clock.advance(90)
    capsys.readouterr()

    cloud.invoke("compensate", {"source": "aws.events"})

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"ChannelWaiting"' in line]
    assert [(line["channel"], line["ChannelWaiting"], line["ChannelRunning"]) for line in told] == [
        ("no_cookie", [3.0], [0.0])
    ]
    assert told[0]["ChannelOldestWait"][0] >= 90
    (dimensions,) = told[0]["_aws"]["CloudWatchMetrics"][0]["Dimensions"]
    assert set(dimensions) == {"service", "channel"}


def test_shown_interval_is_the_one_in_force(cloud: MotoCloud, ticks: Ticks) -> None:
    """A known record that is due soon shortens the wait for the next poll: the shown interval follows."""
    poll = cloud.app.compensation
    poll.revive()
    for _ in range(4):
        ticks.next()
    add_overdue(cloud, "soon")
    cloud.app.table.write(
        update({"pk": "P#x#PROBE#soon", "sk": "META"}, {"due_at": int(cloud.clock().timestamp()) + 30})
    )
    ticks.next()

    shown = cloud.http("GET", "/v1/compensation", key=cloud.admin_key).json()

    last, following = (datetime.fromisoformat(shown[name]) for name in ("last_poll", "next_poll"))
    assert shown["interval_s"] == (following - last).total_seconds()
