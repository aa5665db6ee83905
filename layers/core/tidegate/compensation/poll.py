"""Finds overdue work and starts it through its normal start path."""

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
# Returned by a handler if the channel has no room for any of its requests. The channel itself is due from now on.
LANE_CLOSED = "lane closed"
# Starts an overdue record, given as it was when it was claimed. Returns False if there was nothing to do.
DueHandler = Callable[[DueItem], bool | str | None]

# Overdue records that one poll reads, so that many waiting in one lane do not hide other work. A page of the index has
# about a thousand. If there are more, the next poll continues after them.
MOST_AT_ONCE = 20_000
# Starts, and records removed from the index, in one poll: as many as one invocation has time for.
_STARTS = 500
# Work that is overdue for longer is started even if the start queue is not empty: the queue may be blocked.
_QUEUE_TRUSTED_SECONDS = 300
_TRIES = 5


@dataclass(frozen=True, slots=True)
class PollReport:
    """The outcome of a poll. `found` counts overdue records, `compensated` those that were started.

    `oldest_overdue_s` is the age of the oldest record that stayed overdue after a start. Records that still wait for
    their first start are a backlog, and are only in `found`.
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
        """Polls once. Returns None for a duplicate tick.

        The new state is written first, so that only one of two ticks with the same generation starts anything. The
        next tick is also sent before the work, so that a failing start cannot end the polling.
        """
        now = self._clock()
        late = now.timestamp() - self._pace.overdue
        found, next_due, empty_shards, resume = self._store.overdue(
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
                left -= self._remove_from_index(lanes[str(item["due_lane"])][1:][: max(0, left)])
        if compensated:
            self._store.count(following.generation, compensated, now)
        self._store.close_shards(empty_shards)
        oldest = max((now.timestamp() - _since(item) for item in found if _was_tried(item)), default=0.0)
        return PollReport(following, len(found), compensated, oldest)

    def _without_queued(self, found: list[DueItem], now: datetime) -> list[DueItem]:
        """Leaves out work that starts through the start queue while that is not empty: its start may be under way."""
        queued = [item for item in found if item.get("due_lane") and self._trusts_queue(item, now)]
        if not queued:
            return found
        size = self._ticks.start_queue_size()
        if not size:
            return found
        logger.info("work that may be in the start queue is not compensated now", size=size, left=len(queued))
        return [item for item in found if not (item.get("due_lane") and self._trusts_queue(item, now))]

    @staticmethod
    def _trusts_queue(item: DueItem, now: datetime) -> bool:
        return now.timestamp() - int(item["due_at"]) < _QUEUE_TRUSTED_SECONDS

    def _start(self, item: DueItem, now: datetime) -> bool | str:
        """Returns whether the record was started, or LANE_CLOSED. A record that fails does not stop the others."""
        kind, waited = str(item.get("due_kind")), round(now.timestamp() - _since(item), 1)
        handler = self._handlers.get(kind)
        if handler is None:
            logger.error("no handler for this kind of due record", kind=kind, record=item["pk"])
            return False
        try:
            claimed = self._claim(item, now)
            outcome = handler(claimed) if claimed is not None else False
        except Exception:
            logger.exception("compensation failed", kind=kind, record=item["pk"], waited_s=waited)
            return False
        if outcome == LANE_CLOSED or outcome is False:
            return outcome
        logger.info("compensated", kind=kind, record=item["pk"], waited_s=waited)
        return True

    def _claim(self, item: DueItem, now: datetime) -> DueItem | None:
        """The whole record if this poll may start it. If the start fails, the record is overdue again soon."""
        lane = item.get("due_lane")
        if lane and not self._store.claim_lane(str(lane), now):
            return None
        return self._store.claim(item, now + timedelta(seconds=self._pace.overdue), _since(item))

    def _remove_from_index(self, items: Sequence[DueItem]) -> int:
        """For requests of a channel that has no room: from now on the channel is due instead of each of them."""
        for item in items:
            try:
                self._store.remove_from_index(item)
            except Exception:
                logger.exception("a waiting request stays in the due index", record=item["pk"])
        return len(items)

    def revive(self) -> PollState:
        """Called once a minute: restarts lost ticks, and polls now if work is overdue and the next poll is far away."""
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
        """Starts a poll now. Tried again if a tick changes the state at the same moment."""
        line = act(NO_PROJECT, "compensation", self._clock(), who, "compensation.trigger")
        for _ in range(_TRIES):
            begun = self._begin(self._store.read(), self._clock(), line)
            if begun:
                return begun
        raise Busy("other calls change the state of the poll at the same time: trigger it again")

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
    """The order of starts: the first record of each lane, then each kind in turn, so that no kind delays another."""
    heads = sorted((items[0] for items in lanes.values()), key=lambda item: int(item["due_at"]))
    kinds: dict[str, list[DueItem]] = defaultdict(list)
    for item in overdue:
        if not item.get("due_lane"):
            kinds[str(item.get("due_kind"))].append(item)
    return heads + [item for turn in zip_longest(*kinds.values()) for item in turn if item is not None]


def _since(item: DueItem) -> int:
    """When the work was first due. A claim moves the due time, and keeps the first one in `due_since`."""
    return int(item["due_since"]) if _was_tried(item) else int(item["due_at"])


def _was_tried(item: DueItem) -> bool:
    """Whether the due time is still the one that a claim set: the start after it did not move the record."""
    return bool(item.get("due_claim") == item["due_at"])
