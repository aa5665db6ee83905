"""Finds what should have moved and did not, and moves it through its normal start path."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.compensation import interval as compensation
from tidegate.compensation.interval import Pace, PollState
from tidegate.compensation.store import CompensationStore
from tidegate.compensation.ticks import TickQueue
from tidegate.errors import Busy
from tidegate.projects.audit import NO_PROJECT, SYSTEM, AuditLine, act

logger = Logger(service="tidegate", child=True)

DueItem = dict[str, Any]
# What a handler returns where its whole lane has no room, and the channel itself is due from now on.
LANE_CLOSED = "lane closed"
# Takes an overdue record as it was when its start was claimed. Returns False if it found nothing to do.
DueHandler = Callable[[DueItem], bool | str | None]

# What waits in a lane is read past, so that it hides no other work; a page of the index has about a thousand. Where
# more is overdue, the next poll goes on behind it.
MOST_AT_ONCE = 20_000
# Starts, and records taken off the index, in one poll: what one invocation has time for.
_STARTS = 500
# Starts through a queue that stays full this long are compensated all the same: the queue may be blocked.
_QUEUE_TRUSTED_SECONDS = 300
_TRIES = 5


@dataclass(frozen=True, slots=True)
class PollReport:
    """`oldest_overdue_s`: how long the work has been overdue that an earlier start did not move on.

    What only waits for its first start is a backlog, which `found` tells.
    """

    poll: PollState
    found: int
    compensated: int
    oldest_overdue_s: float


class Compensator:
    def __init__(
        self,
        store: CompensationStore,
        ticks: TickQueue,
        handlers: Mapping[str, DueHandler],
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._store = store
        self._ticks = ticks
        self._handlers = handlers
        self._clock = clock
        self._pace = pace

    def tick(self, poll: PollState) -> PollReport | None:
        """One poll. The state is written before anything is started: of two with one generation, one goes on.

        The next tick is sent before the work, too, so that a failing start cannot end the polling.
        """
        now = self._clock()
        late = now.timestamp() - self._pace.overdue
        found, next_due, quiet, resume = self._store.overdue(
            now.timestamp(), late, late + self._pace.longest, MOST_AT_ONCE, poll.resume
        )
        overdue = self._without_queued(found, now)
        lanes = _by_lane(overdue)
        held_back = any(len(items) > 1 for items in lanes.values())
        upcoming = None if next_due is None else next_due - late
        following = compensation.after(poll, now, len(found), self._pace, held_back=held_back, upcoming=upcoming)
        following = replace(following, resume=resume)
        if not self._store.replace(poll, following):
            return None
        self._send(following, now)
        compensated, left = 0, _STARTS
        for item in _in_turn(overdue, lanes)[:_STARTS]:
            outcome = self._start(item, now)
            compensated += outcome is True
            if outcome == LANE_CLOSED:
                left -= self._take_off(lanes[str(item["due_lane"])][1:][: max(0, left)])
        if compensated:
            self._store.count(following.generation, compensated, now)
        self._store.close(quiet)
        oldest = max((now.timestamp() - _since(item) for item in found if _was_tried(item)), default=0.0)
        return PollReport(following, len(found), compensated, oldest)

    def _without_queued(self, found: list[DueItem], now: datetime) -> list[DueItem]:
        """Without the starts that go through the start queue, while something waits there: they may be under way."""
        queued = [item for item in found if item.get("due_lane") and self._trusts_queue(item, now)]
        if not queued:
            return found
        size = self._ticks.start_queue_size()
        if not size:
            return found
        logger.info("the start queue is not empty: its starts are left to it", size=size, left=len(queued))
        return [item for item in found if not (item.get("due_lane") and self._trusts_queue(item, now))]

    @staticmethod
    def _trusts_queue(item: DueItem, now: datetime) -> bool:
        return now.timestamp() - int(item["due_at"]) < _QUEUE_TRUSTED_SECONDS

    def _start(self, item: DueItem, now: datetime) -> bool | str:
        kind, lane = str(item.get("due_kind")), item.get("due_lane")
        handler = self._handlers.get(kind)
        if handler is None:
            logger.error("no handler for this kind of due record", kind=kind, record=item["pk"])
            return False
        if lane and not self._store.claim_lane(str(lane), now):
            return False
        # Whoever moves the due time on is the one who starts it; if the start dies, it is overdue again.
        claimed = self._store.claim(item, now + timedelta(seconds=self._pace.overdue), _since(item))
        if claimed is None:
            return False
        waited = round(now.timestamp() - _since(item), 1)
        try:
            outcome = handler(claimed)
        except Exception:
            logger.exception("compensation failed", kind=kind, record=item["pk"], waited_s=waited)
            return False
        if outcome == LANE_CLOSED or outcome is False:
            return outcome
        logger.info("compensated", kind=kind, record=item["pk"], waited_s=waited)
        return True

    def _take_off(self, items: Sequence[DueItem]) -> int:
        """Their channel is looked after instead of each of them."""
        for item in items:
            self._store.forget(item)
        return len(items)

    def revive(self) -> PollState:
        """Once a minute, from outside: starts the ticks again if they were lost, or sleep while work is overdue."""
        now = self._clock()
        poll = self._store.read()
        if poll is not None and not self._is_wanted(poll, now):
            return poll
        return self._begin(poll, now) or poll or compensation.first(now, self._pace)

    def _is_wanted(self, poll: PollState, now: datetime) -> bool:
        if compensation.is_lost(poll, now, self._pace):
            return True
        late = now.timestamp() - self._pace.overdue
        return compensation.is_asleep(poll, now, self._pace) and bool(
            self._store.overdue(now.timestamp(), late, late, 1).found
        )

    def trigger(self, who: str = SYSTEM) -> PollState:
        """Polls now. A tick that comes at the same moment is no reason to drop it: then it is asked again."""
        line = act(NO_PROJECT, "compensation", self._clock(), who, "compensation.trigger")
        for _ in range(_TRIES):
            begun = self._begin(self._store.read(), self._clock(), line)
            if begun:
                return begun
        raise Busy("the poll is being changed by others at once; trigger it again")

    def _begin(self, old: PollState | None, now: datetime, line: AuditLine | None = None) -> PollState | None:
        new = compensation.triggered(old or compensation.first(now, self._pace), now, self._pace)
        if not self._store.replace(old, new, line):
            return None
        self._send(new, now)
        return new

    def status(self) -> tuple[PollState, int]:
        poll = self._store.read() or compensation.first(self._clock(), self._pace)
        return poll, self._ticks.start_queue_size()

    def _send(self, poll: PollState, now: datetime) -> None:
        self._ticks.send(poll, max(0, round((poll.next_poll - now).total_seconds())))


def _by_lane(items: Sequence[DueItem]) -> dict[str, list[DueItem]]:
    lanes: dict[str, list[DueItem]] = defaultdict(list)
    for item in items:
        if item.get("due_lane"):
            lanes[str(item["due_lane"])].append(item)
    return dict(lanes)


def _in_turn(overdue: Sequence[DueItem], lanes: Mapping[str, Sequence[DueItem]]) -> list[DueItem]:
    """The first of each lane, then each kind of work in turn, oldest first. Many of one kind delay no other."""
    heads = sorted((items[0] for items in lanes.values()), key=lambda item: int(item["due_at"]))
    kinds: dict[str, list[DueItem]] = defaultdict(list)
    for item in overdue:
        if not item.get("due_lane"):
            kinds[str(item.get("due_kind"))].append(item)
    return heads + [item for turn in zip_longest(*kinds.values()) for item in turn if item is not None]


def _since(item: DueItem) -> int:
    """When the work was first due: a start that moved nothing on leaves the due time as its claim set it."""
    return int(item["due_since"]) if _was_tried(item) else int(item["due_at"])


def _was_tried(item: DueItem) -> bool:
    return bool(item.get("due_claim") == item["due_at"])
