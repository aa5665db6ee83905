"""Ticks of the compensation poll, and overdue records that tests make up."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest

from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.compensation.poll import PollReport, PollState


class Ticks:
    """Keeps the ticks that are sent and delivers them to the function when they are due, as SQS does."""

    def __init__(self, cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cloud = cloud
        self.waiting: list[tuple[datetime, PollState]] = []
        monkeypatch.setattr("tidegate.compensation.poll.TickQueue.send", self._send)

    def _send(self, poll: PollState, delay_seconds: int) -> None:
        self.waiting.append((self.cloud.clock() + timedelta(seconds=delay_seconds), poll))

    def deliver(self, poll: PollState) -> None:
        self.cloud.invoke("compensate", {"Records": [{"messageId": "1", "body": json.dumps(poll.as_data())}]})

    def next(self) -> float:
        """Moves the clock to the next tick and delivers it. Returns the seconds until then."""
        self.waiting.sort(key=lambda entry: entry[0])
        due, poll = self.waiting.pop(0)
        waited = max(0.0, (due - self.cloud.clock()).total_seconds())
        self.cloud.clock.move_to(due)
        self.deliver(poll)
        return waited


def add_overdue(cloud: MotoCloud, name: str, lane: str | None = None, kind: str = "probe") -> None:
    """Adds a record that has been due for 60 s."""
    due = keys.due(name, cloud.clock().timestamp() - 60, kind)
    item = {"pk": f"P#x#PROBE#{name}", "sk": "META", "name": name} | due | ({"due_lane": lane} if lane else {})
    cloud.app.table.batch_put([item])


def poll_once(cloud: MotoCloud) -> PollReport:
    """Polls now, whenever the next tick is due."""
    poll = cloud.app.compensation
    poll.revive()
    state, _ = poll.status()
    report = poll.tick(state)
    assert report is not None
    return report
