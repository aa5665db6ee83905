"""Wires the compensation poll, which starts overdue work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.aws.clients import SqsQueue
from tidegate.compensation.poll import CompensationStore, Compensator, Pace, TickQueue

if TYPE_CHECKING:
    from tidegate.app import App


class CompensationPart:
    def __init__(self, app: App) -> None:
        ticks = TickQueue(
            SqsQueue(app.sqs, app.settings.compensation_queue_url),
            SqsQueue(app.sqs, app.settings.admission_queue_url),
        )
        pace = Pace(
            app.settings.compensation_base_seconds,
            app.settings.compensation_longest_seconds,
            app.settings.compensation_overdue_seconds,
        )
        self.poll = Compensator(CompensationStore(app.table), ticks, app.due_handlers, app.freeze, app.clock, pace)
