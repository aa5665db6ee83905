"""What a compensation poll counts, logs and reports to the alarm."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.compensation.polling import Ticks, add_overdue, poll_once
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.template import load_template
from tidegate.app import App
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.compensation.poll import CompensationStore
from tidegate.notifications.notices import Notice, notice_id_for, notice_write


def _alarm_threshold() -> int:
    return int(load_template()["Resources"]["OldestOverdueAlarm"]["Properties"]["Threshold"])


def test_failing_work_is_overdue_since_its_first_due_time(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(item: dict[str, Any]) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(App, "due_handlers", property(lambda app: {"probe": fails}))
    add_overdue(cloud, "one")
    oldest = []
    for _ in range(4):
        oldest.append(poll_once(cloud).oldest_overdue_s)
        cloud.clock.advance(200)

    # Until its first start it counts as backlog.
    assert oldest == pytest.approx([0, 260, 460, 660], abs=2)


def test_work_that_moved_is_overdue_since_its_new_due_time(
    cloud: MotoCloud, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def looks_again(app: App) -> dict[str, Any]:
        def start(item: dict[str, Any]) -> None:
            again = keys.due("one", app.clock().timestamp() + 10, "probe")
            app.table.write(update({"pk": item["pk"], "sk": item["sk"]}, again))

        return {"probe": start}

    monkeypatch.setattr(App, "due_handlers", property(looks_again))
    add_overdue(cloud, "one")
    oldest = []
    for _ in range(4):
        oldest.append(poll_once(cloud).oldest_overdue_s)
        cloud.clock.advance(200)

    assert max(oldest) < 200


def test_old_backlog_does_not_raise_the_alarm(cloud: MotoCloud, ticks: Ticks, started: list[str]) -> None:
    for number in range(6):
        add_overdue(cloud, f"a{number}", lane="A")
        add_overdue(cloud, f"free{number}")
    cloud.clock.advance(3600)
    reports = []
    for _ in range(6):
        reports.append(poll_once(cloud))
        cloud.clock.advance(5)

    assert len(started) == 12
    assert [report.found for report in reports] == [12, 5, 4, 3, 2, 1]
    assert [report.oldest_overdue_s for report in reports] == [0.0] * 6


def test_failing_record_behind_a_backlog_raises_the_alarm(
    cloud: MotoCloud, ticks: Ticks, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = dict(cloud.app.due_handlers)

    def fails(item: dict[str, Any]) -> None:
        raise RuntimeError("not today")

    monkeypatch.setattr(App, "due_handlers", property(lambda app: handlers | {"failing": fails}))
    add_overdue(cloud, "bad", kind="failing")
    for number in range(30):
        add_overdue(cloud, f"a{number}", lane="A")
    reports = []
    for _ in range(20):
        reports.append(poll_once(cloud).oldest_overdue_s)
        cloud.clock.advance(60)

    # The alarm needs three minutes in a row.
    assert sum(report > _alarm_threshold() for report in reports) >= 3


def test_starts_held_back_by_their_lane_are_not_counted(ticks: Ticks, started: list[str]) -> None:
    cloud = ticks.cloud
    cloud.invoke("compensate", {"source": "aws.events"})
    for name in ("a1", "a2", "a3"):
        add_overdue(cloud, name, lane="A")

    counts = []
    for _ in range(4):
        ticks.next()
        counts.append(cloud.http("GET", "/v1/compensation", key=cloud.admin_key).json()["compensated_total"])

    assert counts == [1, 2, 3, 3]
    cloud.http("POST", "/v1/compensation/trigger", key=cloud.admin_key)
    assert cloud.http("GET", "/v1/compensation", key=cloud.admin_key).json()["compensated_total"] == 3


def test_starts_are_counted_once_if_the_answer_was_lost(cloud: MotoCloud, ticks: Ticks, started: list[str]) -> None:
    add_overdue(cloud, "one")
    store = CompensationStore(cloud.app.table)
    report = poll_once(cloud)
    # botocore repeats the write if the connection breaks after it was applied.
    store.count(report.poll.generation, 1, cloud.clock())

    assert started == ["one"]
    assert cloud.app.compensation.status()[0].compensated_total == 1


def test_refused_notice_is_not_counted_until_it_is_sent(
    cloud: MotoCloud, project: Project, ticks: Ticks, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, now = "task.completed", cloud.clock()
    notice = Notice(notice_id_for(kind, "req-1"), project.id, kind, "req-1", "completed", {}, None, now)
    cloud.app.table.transact([notice_write(notice)])

    cloud.clock.advance(60)
    with monkeypatch.context() as patch:
        patch.setattr(cloud.app.notifications.topic, "publish", lambda _: [])
        assert poll_once(cloud).compensated == 0
    cloud.clock.advance(60)

    assert poll_once(cloud).compensated == 1
    assert cloud.app.compensation.status()[0].compensated_total == 1


def test_each_start_is_logged_with_its_waiting_time(
    cloud: MotoCloud, ticks: Ticks, started: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = cloud.clock()
    add_overdue(cloud, "one")
    poll_once(cloud)

    (line,) = [vars(record) for record in caplog.records if record.getMessage() == "compensated"]
    assert (line["kind"], line["record"]) == ("probe", "P#x#PROBE#one")
    # It was due 60 s before it was written, rounded to a second; on a busy machine the poll starts later.
    took = (cloud.clock() - before).total_seconds()
    assert 60 <= line["waited_s"] <= 61 + took
