"""The compensation poll: finds overdue work, starts it in the normal way, and adapts the interval between polls."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, NamedTuple, Self

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.clients import Message, SqsQueue
from tidegate.aws.table import SHARD_KEPT_SECONDS, ConditionFailed, Item, Store, delete, put_new, update
from tidegate.common.ids import Clock
from tidegate.compensation.freeze import Freeze
from tidegate.errors import Busy
from tidegate.projects.audit import NO_PROJECT, SYSTEM, AuditLine, act, audit_write

# --- interval
# When to poll for overdue work next: soon while polls find some, later and later while they find none.

# Compensation starts one record of a lane (a channel) in this many seconds.
LANE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """How often to poll, in seconds. The interval is `base`, and grows by `base` with each empty poll, up to `longest`.

    Work counts as overdue only `overdue` seconds after it was due: until then, it may be about to start normally.
    """

    base: int
    longest: int
    overdue: int

    def interval(self, multiplier: int) -> int:
        return min(self.base * max(1, multiplier), self.longest)

    @property
    def steps(self) -> int:
        return max(1, math.ceil(self.longest / self.base))


@dataclass(frozen=True, slots=True)
class PollState:
    """The state of the poll, which each tick carries. A tick whose generation is not the stored one is a duplicate.

    `multiplier`: how many polls there were since the last poll that found work, including that poll. It is 0 before the
    first poll. `resume`: for each shard with more records than one poll reads, the due time from which the next poll
    continues. After the end of a shard, the next poll starts at its oldest record again.
    """

    generation: int
    multiplier: int
    last_poll: datetime | None
    next_poll: datetime
    compensated_total: int = 0
    interval_s: int = 0
    resume: Mapping[str, int] = field(default_factory=dict)

    def as_data(self) -> dict[str, Any]:
        moments = {"last_poll": self.last_poll and self.last_poll.isoformat(), "next_poll": self.next_poll.isoformat()}
        counts = ("generation", "multiplier", "compensated_total", "interval_s")
        return moments | {name: getattr(self, name) for name in counts} | {"resume": dict(self.resume)}

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        last = data.get("last_poll")
        return cls(
            generation=int(data["generation"]),
            multiplier=int(data["multiplier"]),
            last_poll=datetime.fromisoformat(last) if last else None,
            next_poll=datetime.fromisoformat(data["next_poll"]),
            compensated_total=int(data["compensated_total"]),
            interval_s=int(data.get("interval_s", 0)),
            resume={str(shard): int(at) for shard, at in data.get("resume", {}).items()},
        )


def first(now: datetime, pace: Pace) -> PollState:
    return PollState(generation=0, multiplier=0, last_poll=None, next_poll=now, interval_s=pace.base)


def after(
    poll: PollState, now: datetime, found: int, pace: Pace, *, held_back: bool = False, upcoming: float | None = None
) -> PollState:
    """Returns the state after a poll.

    `held_back`: whether some starts must wait for their lane. Then the next poll is soon. `upcoming`: seconds until the
    next known record becomes overdue. The next poll is not later than that. Such a record may be a running request,
    which becomes overdue if its worker dies now.
    """
    multiplier = 1 if found else min(poll.multiplier + 1, pace.steps)
    wait = min(LANE_SECONDS, pace.base) if held_back else pace.interval(multiplier)
    if upcoming is not None:
        wait = min(wait, max(pace.base, math.ceil(upcoming)))
    return replace(
        poll,
        generation=poll.generation + 1,
        multiplier=multiplier,
        last_poll=now,
        next_poll=now + timedelta(seconds=wait),
        interval_s=wait,
    )


def triggered(poll: PollState, now: datetime, pace: Pace) -> PollState:
    return replace(poll, generation=poll.generation + 1, multiplier=0, next_poll=now, interval_s=pace.base)


def is_lost(poll: PollState, now: datetime, pace: Pace) -> bool:
    """Whether the tick of the next poll was probably lost.

    That is so if the poll is late by more than `pace.overdue`.
    """
    return now > poll.next_poll + timedelta(seconds=pace.overdue)


def is_asleep(poll: PollState, now: datetime, pace: Pace) -> bool:
    """Whether the next poll is so far away that overdue work should not wait for it."""
    return poll.next_poll - now > timedelta(seconds=pace.overdue)


# --- store
# The state of the poll, its lanes, and the sparse index of due records.

_LANE_KEPT_SECONDS = _COUNT_KEPT_SECONDS = 3600
# The attributes that a poll reads of each record. Thousands of whole records, with callers' payloads, would not fit
# into a function's memory.
_KEPT = ("pk", "sk", "due_at", "due_kind", "due_lane", "due_claim", "due_since", "shard", "opened_at")
# Pages of 1 MB that one poll reads at most: a poll that times out while reading starts nothing.
_PAGES = 150
_FROM_THE_START: Mapping[str, int] = {}


class Overdue(NamedTuple):
    """The overdue records. `upcoming`: the due time of the next record that is due soon; None if there is none.

    `empty_shards`: the list entries of shards without due records. `resume`: the shards in which not all overdue
    records were read, each with the due time to continue from.
    """

    found: list[Item]
    upcoming: int | None
    empty_shards: list[Item]
    resume: dict[str, int]


class _Shard(NamedTuple):
    """The overdue records of one shard.

    `ends_at`: the due time of the first record that was not read; None if all were read.
    """

    found: list[Item]
    entries: list[Item]
    upcoming: int | None = None
    ends_at: int | None = None


def _key(item: Item) -> dict[str, str]:
    return {"pk": str(item["pk"]), "sk": str(item["sk"])}


class CompensationStore(Store):
    def read(self) -> PollState | None:
        item = self._table.get(keys.compensation(), consistent=True)
        return PollState.from_data(item) if item else None

    def replace(self, old: PollState | None, new: PollState, line: AuditLine | None = None) -> bool:
        """Stores the new state. False, without a change, if the stored state is no longer `old`."""
        state = new.as_data()
        # The total is only ever added to, because the value in a tick may be old.
        del state["compensated_total"]
        total = {"compensated_total": 0}
        if old is None:
            change = update(keys.compensation(), state, adds=total, condition="attribute_not_exists(#pk)")
        else:
            where = "#generation = :old"
            change = update(keys.compensation(), state, adds=total, condition=where, old=old.generation)
        return self._table.try_write(change, *([audit_write(line)] if line else []))

    def count(self, generation: int, compensated: int, now: datetime) -> None:
        """Adds the number of starts of one poll to the total.

        The number is added only once, even if boto3 repeats a write whose answer was lost.
        """
        expires_at = int(now.timestamp()) + _COUNT_KEPT_SECONDS
        self._table.try_write(
            put_new(keys.compensated(generation) | {"expires_at": expires_at}),
            update(keys.compensation(), adds={"compensated_total": compensated}),
        )

    def overdue(
        self, now: float, late: float, until: float, limit: int, resume: Mapping[str, int] = _FROM_THE_START
    ) -> Overdue:
        """Returns the records that were due at `late` or before, oldest first.

        `resume`: the due time from which a shard is read. Other shards are read from their oldest record. Shard 0 also
        lists the other shards that may have records. Records that become due between `late` and `until` are read only
        for `upcoming`.
        """
        first = self._in_shard(0, resume.get("0", 0), late, until, limit, _PAGES)
        entries = first.entries if "0" not in resume else self._entries()
        # Divided among the shards, so that many records in one shard do not hide those in another.
        most, pages = max(1, limit // (1 + len(entries))), max(1, _PAGES // (1 + len(entries)))
        found, upcoming, empty, ends = first.found[:most], first.upcoming, [], {"0": first.ends_at}
        if len(first.found) > most:
            ends["0"] = int(first.found[most]["due_at"])
        for entry in entries:
            name = str(int(entry["shard"]))
            shard = self._in_shard(int(name), resume.get(name, 0), late, until, most, pages)
            found, ends[name] = [*found, *shard.found], shard.ends_at
            upcoming = min((moment for moment in (upcoming, shard.upcoming) if moment is not None), default=None)
            is_empty = not shard.found and shard.upcoming is None and name not in resume
            if is_empty and int(entry["opened_at"]) + SHARD_KEPT_SECONDS < now:
                empty.append(entry)
        # If more records are due in one second than a poll reads, continue with the next second. The others are read
        # when the first records of this second have moved.
        onward = {name: at + (at == resume.get(name)) for name, at in ends.items() if at is not None}
        return Overdue(sorted(found, key=lambda item: int(item["due_at"])), upcoming, empty, onward)

    def _entries(self) -> list[Item]:
        """Returns the entries of other shards, for a poll that does not read shard 0 from its beginning."""
        listed = self._table.query_all(keys.due_partition(0), index="due", sk_between=(0, 0))
        return [item for item in listed if item["due_kind"] == keys.SHARD_KIND]

    def _in_shard(self, shard: int, first: int, late: float, until: float, limit: int, pages: int) -> _Shard:
        found: list[Item] = []
        entries: list[Item] = []
        cursor: str | None = None
        at = first
        for _ in range(pages):
            page = self._table.query(
                keys.due_partition(shard), index="due", sk_between=(first, int(until)), project=_KEPT, cursor=cursor
            )
            for item in page.items:
                at = int(item["due_at"])
                if item.get("due_kind") == keys.SHARD_KIND:
                    entries.append(item)
                elif at > late:
                    return _Shard(found, entries, upcoming=at)
                elif len(found) >= limit:
                    return _Shard(found, entries, ends_at=at)
                else:
                    found.append(item)
            cursor = page.cursor
            if cursor is None:
                return _Shard(found, entries)
        return _Shard(found, entries, ends_at=at)

    def close_shards(self, empty_shards: Sequence[Item]) -> int:
        """Removes shards from the list of shards if they are still empty. Returns how many were removed.

        A shard that a process has opened again stays.
        """
        closed = 0
        for entry in empty_shards:
            if not self._table.query(keys.due_partition(int(entry["shard"])), index="due", limit=1).items:
                same = "#opened_at = :seen"
                closed += self._table.try_write(delete(_key(entry), same, seen=entry["opened_at"]))
        return closed

    def claim(self, item: Item, until: datetime, since: int) -> Item | None:
        """Moves the record's due time to `until`, and stores the time `since` at which the work was first due.

        Returns the record. None if its due time was changed meanwhile.
        """
        at = int(until.timestamp())
        sets = {"due_at": at, "due_claim": at, "due_since": since}
        try:
            return self._table.write(update(_key(item), sets, condition="#due_at = :seen", seen=item["due_at"]))
        except ConditionFailed:
            return None

    def remove_from_index(self, item: Item) -> bool:
        """Removes the record from the due index. False if the record's due time was changed meanwhile."""
        gone = update(_key(item), removes=keys.DUE_ATTRIBUTES, condition="#due_at = :seen", seen=item["due_at"])
        return self._table.try_write(gone)

    def claim_lane(self, lane: str, now: datetime) -> bool:
        """Returns whether the caller may start a record of the lane now. Only one caller may do so in LANE_SECONDS."""
        second = int(now.timestamp())
        return self._table.try_write(
            update(
                keys.lane(lane),
                {"last_start": second, "expires_at": second + _LANE_KEPT_SECONDS},
                condition="attribute_not_exists(#last_start) OR #last_start <= :free",
                free=second - LANE_SECONDS,
            )
        )


class TickQueue:
    """The queue of ticks. A tick is an SQS message that starts one poll. It is delayed by the current interval."""

    def __init__(self, ticks: SqsQueue, start_queue: SqsQueue) -> None:
        self._ticks = ticks
        self._start_queue = start_queue

    def send(self, poll: PollState, delay_seconds: int) -> None:
        self._ticks.send(Message(poll.as_data(), delay_seconds=delay_seconds))

    def start_queue_size(self) -> int:
        return self._start_queue.size()


# --- poll
# Finds overdue work and starts it through its normal start path.

logger = Logger(service="tidegate", child=True)

DueItem = dict[str, Any]
# Returned by a handler if the channel has no room for any of its requests. The channel itself is due from now on.
LANE_CLOSED = "lane closed"
# Starts an overdue record, given as it was when it was claimed. Returns False if there was nothing to do.
DueHandler = Callable[[DueItem], bool | str | None]

# The most overdue records that one poll reads. So many that those of one lane do not hide other work; a page of the
# index has about a thousand. If there are more, the next poll continues after them.
MOST_AT_ONCE = 20_000
# The most starts of one poll, and the most records that it removes from the index. It ends when the next one is due.
_STARTS = 500
# Work that is overdue for longer is started even if the start queue is not empty, because the queue may be blocked.
_QUEUE_TRUSTED_SECONDS = 300
_TRIES = 5


@dataclass(frozen=True, slots=True)
class PollReport:
    """The outcome of a poll. `found` counts overdue records, `compensated` counts the records that were started.

    `oldest_overdue_s`: the age of the oldest record that an earlier start did not help. Records that were never started
    count for `found` only.
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
        freeze: Freeze,
        clock: Clock,
        pace: Pace,
    ) -> None:
        self._store = store
        self._ticks = ticks
        self._handlers = handlers
        self._freeze = freeze
        self._clock = clock
        self._pace = pace

    def tick(self, poll: PollState) -> PollReport | None:
        """Polls once. Returns None for a duplicate tick.

        The new state is written first, so that only one of two ticks with the same generation starts anything. The
        next tick is also sent before the work, so that a failing start cannot end the polling.
        """
        now = self._clock()
        if self._freeze.now().frozen:
            return self._rest(poll, now)
        late = now.timestamp() - self._pace.overdue
        found, next_due, empty_shards, resume = self._store.overdue(
            now.timestamp(), late, late + self._pace.longest, MOST_AT_ONCE, poll.resume
        )
        overdue = self._without_queued(found, now)
        lanes = _by_lane(overdue)
        held_back = any(len(items) > 1 for items in lanes.values())
        upcoming = None if next_due is None else next_due - late
        following = after(poll, now, len(found), self._pace, held_back=held_back, upcoming=upcoming)
        following = replace(following, resume=resume)
        if not self._store.replace(poll, following):
            return None
        self._send(following, now)
        ends_at = self._clock() + (following.next_poll - now)
        compensated, left = 0, _STARTS
        for item in _in_turn(overdue, lanes)[:_STARTS]:
            # Two polls at once would make twice as many calls a second. The next one continues with what is left.
            if self._clock() >= ends_at:
                break
            outcome = self._start(item, now)
            compensated += outcome is True
            if outcome == LANE_CLOSED:
                left -= self._remove_from_index(lanes[str(item["due_lane"])][1:][: max(0, left)])
        if compensated:
            self._store.count(following.generation, compensated, now)
        self._store.close_shards(empty_shards)
        oldest = max((now.timestamp() - _since(item) for item in found if _was_tried(item)), default=0.0)
        return PollReport(following, len(found), compensated, oldest)

    def _rest(self, poll: PollState, now: datetime) -> PollReport | None:
        """Starts nothing, because the system is frozen, and plans the next poll soon.

        Returns None for a duplicate tick.
        """
        following = after(poll, now, 1, self._pace)
        if not self._store.replace(poll, following):
            return None
        self._send(following, now)
        return PollReport(following, 0, 0, 0.0)

    def _without_queued(self, found: list[DueItem], now: datetime) -> list[DueItem]:
        """Returns the records that this poll may start.

        While the start queue is not empty, records that may be in this queue are left out.
        """
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
        """Starts the record. Returns whether the record was started, or LANE_CLOSED.

        If the start raises an error, the error is only logged, and other records are still started.
        """
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
        """Returns the whole record if this poll may start it, otherwise None.

        If the start fails after that, the record is overdue again soon.
        """
        lane = item.get("due_lane")
        if lane and not self._store.claim_lane(str(lane), now):
            return None
        return self._store.claim(item, now + timedelta(seconds=self._pace.overdue), _since(item))

    def _remove_from_index(self, items: Sequence[DueItem]) -> int:
        """Removes requests whose channel has no room from the due index. Returns how many requests were given.

        From now on, the channel itself is due instead.
        """
        for item in items:
            try:
                self._store.remove_from_index(item)
            except Exception:
                logger.exception("a waiting request stays in the due index", record=item["pk"])
        return len(items)

    def revive(self) -> PollState:
        """Called once a minute.

        Starts a poll if a tick was lost, or if work is overdue and the next poll is far away.
        """
        now = self._clock()
        poll = self._store.read()
        if poll is not None and not self._is_wanted(poll, now):
            return poll
        return self._begin(poll, now) or poll or first(now, self._pace)

    def _is_wanted(self, poll: PollState, now: datetime) -> bool:
        if is_lost(poll, now, self._pace):
            return True
        late = now.timestamp() - self._pace.overdue
        return is_asleep(poll, now, self._pace) and bool(self._store.overdue(now.timestamp(), late, late, 1).found)

    def trigger(self, who: str = SYSTEM) -> PollState:
        """Starts a poll now. If a tick changes the state at the same moment, the call tries again."""
        line = act(NO_PROJECT, "compensation", self._clock(), who, "compensation.trigger")
        for _ in range(_TRIES):
            begun = self._begin(self._store.read(), self._clock(), line)
            if begun:
                return begun
        raise Busy("other calls change the state of the poll at the same time: trigger it again")

    def _begin(self, old: PollState | None, now: datetime, line: AuditLine | None = None) -> PollState | None:
        new = triggered(old or first(now, self._pace), now, self._pace)
        if not self._store.replace(old, new, line):
            return None
        self._send(new, now)
        return new

    def status(self) -> tuple[PollState, int]:
        poll = self._store.read() or first(self._clock(), self._pace)
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
    """Returns the records in the order in which they are started.

    The first record of each lane comes first. After that, the kinds take turns, so that no kind delays another.
    """
    heads = sorted((items[0] for items in lanes.values()), key=lambda item: int(item["due_at"]))
    kinds: dict[str, list[DueItem]] = defaultdict(list)
    for item in overdue:
        if not item.get("due_lane"):
            kinds[str(item.get("due_kind"))].append(item)
    return heads + [item for turn in zip_longest(*kinds.values()) for item in turn if item is not None]


def _since(item: DueItem) -> int:
    """Returns the time at which the work was first due.

    A claim moves the due time, and keeps the first one in `due_since`.
    """
    return int(item["due_since"]) if _was_tried(item) else int(item["due_at"])


def _was_tried(item: DueItem) -> bool:
    """Whether a poll has started the record without effect.

    That is so if the due time is still as the poll's claim set it.
    """
    return bool(item.get("due_claim") == item["due_at"])
