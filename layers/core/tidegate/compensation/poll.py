"""Finds what should have moved and did not, and moves it through its normal start path."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from tidegate.common.ids import Clock
from tidegate.compensation import interval as compensation
from tidegate.compensation.interval import LONGEST_SECONDS, OVERDUE_SECONDS, PollState
from tidegate.compensation.store import CompensationStore
from tidegate.compensation.ticks import TickQueue
from tidegate.projects.audit import NO_PROJECT, SYSTEM, AuditLine, act

logger = logging.getLogger(__name__)

DueItem = dict[str, Any]
# Takes an overdue record as the index holds it; answers False if it found nothing to do.
DueHandler = Callable[[DueItem], bool | None]

MOST_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class PollReport:
    poll: PollState
    found: int
    compensated: int
    oldest_overdue_s: float


class Compensator:
    def __init__(
        self, store: CompensationStore, ticks: TickQueue, handlers: Mapping[str, DueHandler], clock: Clock
    ) -> None:
        self._store = store
        self._ticks = ticks
        self._handlers = handlers
        self._clock = clock

    def tick(self, poll: PollState) -> PollReport | None:
        """One poll. The state is written before anything is started: of two with one generation, one goes on.

        The next tick is sent before the work, too, so that a failing start cannot end the polling.
        """
        now = self._clock()
        due = self._store.due(now + timedelta(seconds=LONGEST_SECONDS), MOST_AT_ONCE)
        late = now.timestamp() - OVERDUE_SECONDS
        overdue = [item for item in due if int(item["due_at"]) <= late]
        upcoming = next((int(item["due_at"]) - late for item in due if int(item["due_at"]) > late), None)
        lanes = [item["due_lane"] for item in overdue if item.get("due_lane")]
        following = compensation.after(
            poll, now, len(overdue), held_back=len(lanes) != len(set(lanes)), upcoming=upcoming
        )
        if not self._store.replace(poll, following):
            return None
        self._send(following, now)
        compensated = sum(self._start(item, now) for item in overdue)
        if compensated:
            self._store.count(compensated)
        oldest = max((now.timestamp() - item["due_at"] for item in overdue), default=0.0)
        return PollReport(following, len(overdue), compensated, oldest)

    def _start(self, item: DueItem, now: datetime) -> bool:
        handler = self._handlers.get(str(item.get("due_kind")))
        lane = item.get("due_lane")
        if handler is None:
            logger.error("nobody handles %s", item.get("due_kind"))
            return False
        if lane and not self._store.claim_lane(str(lane), now):
            return False
        # Whoever moves the due time on is the one who starts it; if the start dies, it is overdue again.
        if not self._store.claim(item, now + timedelta(seconds=OVERDUE_SECONDS)):
            return False
        try:
            return handler(item) is not False
        except Exception:
            logger.exception("compensating %s %s failed", item["due_kind"], item["pk"])
            return False

    def revive(self) -> PollState:
        """Once a minute, from outside: starts the ticks again if they were lost, or sleep while work is overdue."""
        now = self._clock()
        poll = self._store.read()
        if poll is None:
            return self._begin(None, compensation.triggered(compensation.first(now), now), now)
        wanted = compensation.is_lost(poll, now) or (compensation.is_asleep(poll, now) and self._is_late(now))
        return self._begin(poll, compensation.triggered(poll, now), now) if wanted else poll

    def _is_late(self, now: datetime) -> bool:
        return bool(self._store.due(now - timedelta(seconds=OVERDUE_SECONDS), 1))

    def trigger(self, who: str = SYSTEM) -> PollState:
        now = self._clock()
        poll = self._store.read()
        line = act(NO_PROJECT, "compensation", now, who, "compensation.trigger")
        return self._begin(poll, compensation.triggered(poll or compensation.first(now), now), now, line)

    def _begin(self, old: PollState | None, new: PollState, now: datetime, line: AuditLine | None = None) -> PollState:
        if self._store.replace(old, new, line):
            self._send(new, now)
        return new

    def status(self) -> tuple[PollState, int]:
        return self._store.read() or compensation.first(self._clock()), self._ticks.start_queue_size()

    def _send(self, poll: PollState, now: datetime) -> None:
        self._ticks.send(poll, max(0, round((poll.next_poll - now).total_seconds())))
