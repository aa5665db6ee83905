"""The poll for overdue work: when it comes, what it costs, what it starts."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.calls import count_calls
from tests.support.moto import aws_limits
from tests.support.moto.bulk import multiply
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue
from tests.support.template import load_template
from tidegate.app import App
from tidegate.aws import keys
from tidegate.aws.writes import update
from tidegate.compensation.interval import Pace, PollState, after, first
from tidegate.compensation.poll import PollReport
from tidegate.compensation.store import CompensationStore
from tidegate.notifications.notice import Notice, notice_id_for
from tidegate.notifications.outbox import notice_write

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


class Ticks:
    """Takes ticks off the queue when they are due and hands them to the function, as SQS would."""

    def __init__(self, cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud = cloud
        self.waiting: list[tuple[datetime, PollState]] = []
        monkeypatch.setattr("tidegate.compensation.ticks.TickQueue.send", self._send)

    def _send(self, poll: PollState, delay_seconds: int) -> None:
        self.waiting.append((self.cloud.clock() + timedelta(seconds=delay_seconds), poll))

    def deliver(self, poll: PollState) -> None:
        self.cloud.invoke("compensate", {"Records": [{"messageId": "1", "body": json.dumps(poll.as_data())}]})

    def next(self) -> float:
        """Moves the clock to the next tick and delivers it; answers how long that took."""
        self.waiting.sort(key=lambda entry: entry[0])
        due, poll = self.waiting.pop(0)
        waited = max(0.0, (due - self.cloud.clock()).total_seconds())
        self.cloud.clock.move_to(due)
        self.deliver(poll)
        return waited


@pytest.fixture
def ticks(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> Ticks:
    return Ticks(cloud, monkeypatch)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Work of the kind `probe`, which counts its starts."""
    found: list[str] = []

    def handlers(app: App) -> dict[str, Any]:
        def start(item: dict[str, Any]) -> None:
            found.append(item["name"])
            app.table.write(_undue(item))

        return {"probe": start}

    monkeypatch.setattr(App, "due_handlers", property(handlers))
    return found


def _undue(item: dict[str, Any]) -> Any:
    return update({"pk": item["pk"], "sk": item["sk"]}, removes=keys.DUE_ATTRIBUTES)


def _stuck(cloud: MotoCloud, name: str, lane: str | None = None, kind: str = "probe") -> None:
    due = keys.due(name, cloud.clock().timestamp() - 60, kind)
    item = {"pk": f"P#x#PROBE#{name}", "sk": "META", "name": name} | due | ({"due_lane": lane} if lane else {})
    cloud.app.table.batch_put([item])


def test_without_work_the_gap_between_polls_grows_to_300_s(ticks: Ticks) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})

    gaps = [ticks.next() for _ in range(40)]

    assert gaps[:5] == [0, 10, 20, 30, 40]
    assert max(gaps) == gaps[-1] == 300


def test_found_work_brings_the_interval_back(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(6):
        ticks.next()
    _stuck(ticks.cloud, "one")

    ticks.next()

    assert started == ["one"]
    assert ticks.next() == 10


def test_work_due_a_moment_ago_is_left_to_its_normal_start(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    due = keys.due("fresh", ticks.cloud.clock().timestamp() - 20, "probe")
    ticks.cloud.app.table.batch_put([{"pk": "P#x#PROBE#fresh", "sk": "META", "name": "fresh"} | due])

    ticks.next()
    assert started == []
    ticks.next()
    assert started == ["fresh"]


def test_a_trigger_polls_within_10_s_and_resets_the_interval(ticks: Ticks) -> None:
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


def test_duplicate_ticks_die(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    _, poll = ticks.waiting[0]
    ticks.next()

    for _ in range(3):
        ticks.deliver(poll)

    assert len(ticks.waiting) == 1


def test_the_schedule_revives_a_lost_tick_and_no_other(ticks: Ticks) -> None:
    cloud = ticks.cloud
    cloud.invoke("compensate", {"source": "aws.events"})
    ticks.next()
    cloud.invoke("compensate", {"source": "aws.events"})
    assert len(ticks.waiting) == 1, "a tick that is on its way was doubled"

    ticks.waiting.clear()
    cloud.clock.advance(120)
    cloud.invoke("compensate", {"source": "aws.events"})

    assert len(ticks.waiting) == 1


def test_one_lane_gets_a_start_every_5_s_and_does_not_starve_another(ticks: Ticks, started: list[str]) -> None:
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    for name in ("a1", "a2", "a3"):
        _stuck(ticks.cloud, name, lane="A")
    _stuck(ticks.cloud, "b1", lane="B")

    ticks.next()
    assert sorted(started) == ["a1", "b1"]

    gaps = [ticks.next(), ticks.next()]
    assert sorted(started) == ["a1", "a2", "a3", "b1"]
    assert gaps == [5, 5]


def test_what_its_lane_held_back_is_not_counted_as_compensated(ticks: Ticks, started: list[str]) -> None:
    cloud = ticks.cloud
    cloud.invoke("compensate", {"source": "aws.events"})
    for name in ("a1", "a2", "a3"):
        _stuck(cloud, name, lane="A")

    counts = []
    for _ in range(4):
        ticks.next()
        counts.append(cloud.http("GET", "/v1/compensation", key=cloud.admin_key).json()["compensated_total"])

    assert counts == [1, 2, 3, 3]
    cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)
    assert cloud.http("GET", "/v1/compensation", key=cloud.admin_key).json()["compensated_total"] == 3


def test_two_compensators_at_once_start_each_once(ticks: Ticks, started: list[str]) -> None:
    cloud = ticks.cloud
    _stuck(cloud, "one")
    [item] = cloud.app.table.query(keys.due_partition(0), index="due").items
    first = cloud.app.compensation.poll

    assert first._start(dict(item), cloud.clock()) is True
    assert first._start(dict(item), cloud.clock()) is False
    assert started == ["one"]


def test_a_start_that_fails_is_tried_again(ticks: Ticks, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def handlers(app: App) -> dict[str, Any]:
        def start(item: dict[str, Any]) -> None:
            tries.append(item["name"])
            raise RuntimeError("not today")

        return {"probe": start}

    monkeypatch.setattr(App, "due_handlers", property(handlers))
    _stuck(ticks.cloud, "one")
    ticks.cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(8):
        ticks.next()

    assert len(tries) > 1
    assert ticks.waiting, "the polling went on"


def _poll(cloud: MotoCloud) -> PollReport:
    poll = cloud.app.compensation.poll
    poll.revive()
    state, _ = poll.status()
    report = poll.tick(state)
    assert report is not None
    return report


def test_300_waiting_in_a_paused_channel_hide_no_other_work(cloud: MotoCloud, ticks: Ticks) -> None:
    queue = TestQueue(cloud, cloud.project())
    cloud.http("POST", "/v1/queue/pause", json={"scope": "no_cookie"}, key=cloud.admin_key)
    for _ in range(3):
        queue.submit()
    waiting = queue.submit()
    multiply(cloud, waiting.request_id, 300)
    export = queue.submit(type="export")
    cloud.client("sqs").purge_queue(QueueUrl=cloud.names.queues["AdmissionQueue"])
    cloud.clock.advance(60)

    report = _poll(cloud)
    queue.admit()

    assert queue.statuses(export) == ["running"]
    assert report.found > 300
    # The channel is looked after from now on, not each of what waits there.
    left = cloud.app.table.query_all(keys.due_partition(0), index="due")
    assert [item["due_kind"] for item in left if item.get("due_lane")] == []


def test_lost_export_runs_within_60_s_with_10_000_waiting_elsewhere(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message to admission is lost, while 10,000 downloads wait in a paused channel and are older."""
    # So that a poll takes fewer of them off the index, and all of them hide the export in each poll.
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
    """A poll that read as many as it may goes on behind them the next time, and then begins anew."""
    found: list[str] = []
    monkeypatch.setattr(App, "due_handlers", property(lambda app: {"probe": lambda item: found.append(item["name"])}))
    monkeypatch.setattr("tidegate.compensation.poll.MOST_AT_ONCE", 10)
    monkeypatch.setattr("tidegate.compensation.poll._STARTS", 2)
    # All of them in one shard.
    monkeypatch.setattr("tidegate.aws.due_shards._FEW_WRITES", 1000)
    for number in range(25):
        _stuck(cloud, f"old{number}", lane=lane)
        cloud.clock.advance(1)
    _stuck(cloud, "new", lane="B")

    poll = _poll(cloud).poll
    assert "new" not in found
    assert list(poll.resume) == ["0"]
    # 25 are three parts of ten; few of them were taken off meanwhile.
    for _ in range(2):
        poll = _poll(cloud).poll
    assert "new" in found
    assert not poll.resume
    begun = len(found)
    cloud.clock.advance(10)
    _poll(cloud)
    assert found[begun:], "the oldest are next again"


def test_shards_are_listed_while_shard_0_is_read_in_parts(cloud: MotoCloud) -> None:
    store = CompensationStore(cloud.app.table)
    for number in range(8):
        _stuck(cloud, f"old{number}")
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
    """As when thousands of callbacks are overdue, older than the one request whose message was lost."""
    found: list[str] = []
    start = lambda item: found.append(item["name"])  # noqa: E731
    monkeypatch.setattr(App, "due_handlers", property(lambda app: {"probe": start, "other": start}))
    monkeypatch.setattr("tidegate.compensation.poll._STARTS", 10)
    for number in range(40):
        _stuck(cloud, f"many{number}")
    cloud.clock.advance(1)
    _stuck(cloud, "one", kind="other")
    _stuck(cloud, "head", lane="A")

    _poll(cloud)

    assert {"one", "head"} <= set(found)
    assert len(found) == 10


def test_work_whose_start_always_fails_is_reported_as_overdue_since_it_was_due(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(item: dict[str, Any]) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(App, "due_handlers", property(lambda app: {"probe": fails}))
    _stuck(cloud, "one")
    oldest = []
    for _ in range(4):
        oldest.append(_poll(cloud).oldest_overdue_s)
        cloud.clock.advance(200)

    # Until it was tried once it is a backlog.
    assert oldest == pytest.approx([0, 260, 460, 660], abs=2)


def test_work_that_moved_on_is_not_reported_as_overdue_since_its_first_time(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks_again(app: App) -> dict[str, Any]:
        def start(item: dict[str, Any]) -> None:
            again = keys.due("one", app.clock().timestamp() + 10, "probe")
            app.table.write(update({"pk": item["pk"], "sk": item["sk"]}, again))

        return {"probe": start}

    monkeypatch.setattr(App, "due_handlers", property(looks_again))
    _stuck(cloud, "one")
    oldest = []
    for _ in range(4):
        oldest.append(_poll(cloud).oldest_overdue_s)
        cloud.clock.advance(200)

    assert max(oldest) < 200


def _alarm_threshold() -> int:
    return int(load_template()["Resources"]["OldestOverdueAlarm"]["Properties"]["Threshold"])


def test_ordinary_backlog_does_not_raise_the_alarm_however_old_it_is(
    cloud: MotoCloud, ticks: Ticks, started: list[str]
) -> None:
    for number in range(6):
        _stuck(cloud, f"a{number}", lane="A")
        _stuck(cloud, f"free{number}")
    cloud.clock.advance(3600)
    reports = []
    for _ in range(6):
        reports.append(_poll(cloud))
        cloud.clock.advance(5)

    assert len(started) == 12
    assert [report.found for report in reports] == [12, 5, 4, 3, 2, 1]
    assert [report.oldest_overdue_s for report in reports] == [0.0] * 6


def test_record_whose_handler_always_fails_raises_the_alarm_behind_a_backlog(
    cloud: MotoCloud, ticks: Ticks, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = dict(cloud.app.due_handlers)

    def fails(item: dict[str, Any]) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(App, "due_handlers", property(lambda app: handlers | {"failing": fails}))
    _stuck(cloud, "bad", kind="failing")
    for number in range(30):
        _stuck(cloud, f"a{number}", lane="A")
    reports = []
    for _ in range(20):
        reports.append(_poll(cloud).oldest_overdue_s)
        cloud.clock.advance(60)

    # The alarm wants three minutes in a row.
    assert sum(report > _alarm_threshold() for report in reports) >= 3


def test_starts_are_counted_once_although_the_answer_to_the_count_was_lost(
    cloud: MotoCloud, ticks: Ticks, started: list[str]
) -> None:
    _stuck(cloud, "one")
    store = CompensationStore(cloud.app.table)
    report = _poll(cloud)
    # What botocore does when the connection breaks after the write was applied.
    store.count(report.poll.generation, 1, cloud.clock())

    assert started == ["one"]
    assert cloud.app.compensation.poll.status()[0].compensated_total == 1


def test_notice_that_the_topic_refused_is_counted_only_once_it_was_sent(
    cloud: MotoCloud, project: Project, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, now = "task.completed", cloud.clock()
    notice = Notice(notice_id_for(kind, "req-1"), project.id, kind, "req-1", "completed", {}, None, now)
    cloud.app.table.transact([notice_write(notice)])

    cloud.clock.advance(60)
    with monkeypatch.context() as patch:
        patch.setattr(cloud.app.notifications.topic, "publish", lambda _: [])
        assert _poll(cloud).compensated == 0
    cloud.clock.advance(60)

    assert _poll(cloud).compensated == 1
    assert cloud.app.compensation.poll.status()[0].compensated_total == 1


def test_trigger_that_races_a_tick_is_not_dropped(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.invoke("compensate", {"source": "aws.events"})
    for _ in range(5):
        ticks.next()
    store_read = CompensationStore.read
    raced: list[int] = []

    def read(store: CompensationStore) -> PollState | None:
        """A tick goes through right after the first read."""
        found = store_read(store)
        if not raced:
            raced.append(1)
            ticks.next()
        return found

    monkeypatch.setattr(CompensationStore, "read", read)
    # The clock jumps inside the call, which is no slow call.
    monkeypatch.setattr(aws_limits, "API_SECONDS", 3600)
    answer = cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)

    assert answer.status == 200
    assert min(due for due, _ in ticks.waiting) <= cloud.clock()


def test_starts_are_left_to_the_start_queue_while_something_waits_there(
    cloud: MotoCloud, ticks: Ticks, started: list[str]
) -> None:
    _stuck(cloud, "through the queue", lane="channel:export")
    _stuck(cloud, "by itself")
    cloud.app.queue.admission_queue.trigger("export")

    _poll(cloud)
    assert started == ["by itself"]

    # A queue that stays full is not trusted for ever: it may be blocked.
    cloud.clock.advance(300)
    _poll(cloud)
    assert started == ["by itself", "through the queue"]


def test_starts_go_on_once_the_start_queue_is_empty(cloud: MotoCloud, ticks: Ticks, started: list[str]) -> None:
    _stuck(cloud, "one", lane="channel:export")
    cloud.app.queue.admission_queue.trigger("export")
    _poll(cloud)
    cloud.deliver("AdmissionQueue")

    _poll(cloud)
    assert started == ["one"]


def test_each_start_is_logged_with_how_long_it_waited(
    cloud: MotoCloud, ticks: Ticks, started: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = cloud.clock()
    _stuck(cloud, "one")
    _poll(cloud)

    (line,) = [vars(record) for record in caplog.records if record.getMessage() == "compensated"]
    assert (line["kind"], line["record"]) == ("probe", "P#x#PROBE#one")
    # It was due 60 s before it was written, to the second; a busy machine takes a while until the poll.
    took = (cloud.clock() - before).total_seconds()
    assert 60 <= line["waited_s"] <= 61 + took


def test_pace_is_set_by_the_deployment() -> None:
    pace, now = Pace(base=5, longest=12, overdue=30), datetime(2026, 1, 1, tzinfo=UTC)
    poll = first(now, pace)
    gaps = []
    for _ in range(4):
        poll = after(poll, now, 0, pace)
        gaps.append((poll.next_poll - now).total_seconds())

    assert gaps == [5, 10, 12, 12]
    assert poll.interval_s == 12


@pytest.mark.slow
def test_an_idle_poll_costs_one_read_and_one_message_with_100_000_finished_records(cloud: MotoCloud) -> None:
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

    assert calls == {"dynamodb.Query": 1, "dynamodb.UpdateItem": 1, "sqs.SendMessageBatch": 1}


def test_the_minute_tells_how_many_wait(cloud: MotoCloud, capsys: pytest.CaptureFixture[str]) -> None:
    project = cloud.project()
    for _ in range(3):
        cloud.app.queue.queue.submit(project.id, "check", payload={"file_id": "none"})
    capsys.readouterr()

    cloud.invoke("compensate", {"source": "aws.events"})

    told = [json.loads(line) for line in capsys.readouterr().out.splitlines() if '"_aws"' in line]
    (state,) = (line for line in told if "WaitingRequests" in line)
    assert state["WaitingRequests"] == [3.0]
    assert {"CompensationInterval", "StartQueueSize"} <= set(state)


def test_the_minute_tells_the_figures_of_channels_that_have_work(
    cloud: MotoCloud, capsys: pytest.CaptureFixture[str]
) -> None:
    project = cloud.project()
    for _ in range(3):
        cloud.app.queue.queue.submit(project.id, "check", payload={"file_id": "none"}, channel="no_cookie")
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


def test_dead_worker_is_found_within_150_s_although_the_poll_sleeps_for_300_s(ticks: Ticks) -> None:
    cloud = ticks.cloud
    cloud.app.compensation.poll.revive()
    for _ in range(40):
        ticks.next()
    project, queue = cloud.project(), cloud.app.queue.queue
    request = queue.submit(project.id, "associate", "no_cookie", {})
    cloud.deliver("AdmissionQueue")
    running = queue.get(project.id, request.request_id)
    queue.heartbeat(project.id, request.request_id, running.attempt)
    cloud.app.queue.runner.stop(running, "its machine dies")
    heard = cloud.clock()

    for _ in range(3):
        # What EventBridge does once a minute.
        cloud.clock.advance(50)
        cloud.app.compensation.poll.revive()
        while ticks.waiting and min(due for due, _ in ticks.waiting) <= cloud.clock():
            ticks.next()

    assert (cloud.clock() - heard).total_seconds() <= 150
    assert queue.get(project.id, request.request_id).status == "pending", "it is to be tried again"


def test_poll_does_not_sleep_past_what_is_known_to_be_due() -> None:
    quiet, pace = PollState(7, 29, None, NOON), Pace(base=10, longest=300, overdue=30)

    assert (after(quiet, NOON, 0, pace).next_poll - NOON).total_seconds() == 300
    assert (after(quiet, NOON, 0, pace, upcoming=75).next_poll - NOON).total_seconds() == 75
    assert (after(quiet, NOON, 0, pace, upcoming=0.5).next_poll - NOON).total_seconds() == 10
