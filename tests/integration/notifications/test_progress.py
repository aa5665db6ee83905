"""Progress is sent to watchers at most once per second and record, and costs little if nobody watches."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.integration.notifications.test_outbox import heard, listener
from tests.integration.notifications.watching import Line
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.notifications.notices import Topic


@pytest.fixture
def line(cloud: MotoCloud, project: Project) -> Line:
    """Someone watches req-1."""
    made = Line(cloud)
    made.record(project, "req-1", task_id="req-1", status="running")
    made.say(made.joined(project), action="watch", task_ids=["req-1"])
    return made


def test_record_has_at_most_one_progress_message_per_second(line: Line, project: Project) -> None:
    app = line.cloud.app
    url = listener(line.cloud)
    arn = app.settings.notifications_topic_arn
    functions = [Topic(app.sns, arn, app.table, app.clock) for _ in range(3)]

    for _ in range(4):
        for live in functions:
            live.publish_progress(project.id, "req-1", {"task_id": "req-1", "progress": {"rows": 1}})
        line.cloud.clock.advance(0.5)

    messages = heard(line.cloud, url)
    assert [message["type"] for message in messages] == ["task.progress"] * 2
    assert messages[0]["data"] == {"task_id": "req-1", "status": "running", "progress": {"rows": 1}}


def test_progress_is_not_sent_once_the_watchers_are_gone(line: Line, project: Project) -> None:
    line.leave("c1")
    line.push(project, "req-1", "task.progress", task_id="req-1", status="running")
    url = listener(line.cloud)

    line.cloud.app.notifications.topic.publish_progress(project.id, "req-1", {"status": "running"})

    assert heard(line.cloud, url) == []
    assert line.items("WATCH") == []


def test_progress_of_other_records_is_not_sent(line: Line, project: Project) -> None:
    url, other = listener(line.cloud), line.cloud.project()

    line.cloud.app.notifications.topic.publish_progress(project.id, "req-2", {"status": "running"})
    line.cloud.app.notifications.topic.publish_progress(other.id, "req-1", {"status": "running"})

    assert heard(line.cloud, url) == []


def test_failing_table_fails_no_work(line: Line, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> bool:
        raise RuntimeError("throttled")

    monkeypatch.setattr(line.cloud.app.table, "get", broken)

    line.cloud.app.notifications.topic.publish_progress(project.id, "req-1", json.loads('{"status": "running"}'))
