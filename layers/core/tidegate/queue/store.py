"""Requests and channels in the table.

A move writes the request, its place, slot, mutex, counts, audit line and notice together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime
from typing import Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Item, Store, Table, Write, below, delete, noted, put, put_new, update
from tidegate.common.ids import iso
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, LeaseLost, QuotaExceeded
from tidegate.notifications.notices import Notice, notice_write
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.projects.limits import RUNNER_SECONDS, START_SECONDS, day_write, queued_write
from tidegate.queue.model import (
    LOOK_SECONDS,
    PENDING,
    QUEUED,
    RUNNING,
    WAITING,
    Channel,
    Request,
    Standing,
    Turn,
    Usage,
    WaitingPlace,
    change_of,
    rank,
)
from tidegate.records import item_of, record_from

REQUEST, CHANNEL, STANDING, SLOT = "request", "channel", "standing", "slot"
MUTEX, PLACE, QUOTA, OTHER = "mutex", "place", "quota", "other"


class Refused(Conflict):
    """Raised if a move's transaction is refused, because items have changed. `parts`: the parts that were refused."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        super().__init__(f"refused by: {', '.join(sorted(self.parts))}")


# --- items
# The items of a request: its record, its place in the lane, and when it is due.

# Stored as JSON text: callers' values may have larger numbers or deeper nesting than DynamoDB allows.
_TEXTS = ("payload", "result", "progress")
# Each function that works on the attempt has an attribute of its own. A move writes the item without them.
_BEAT = "beat_"
# After this time compensation checks whether the state machine of an admitted request was really started.
_FIRST_HEARTBEAT_SECONDS = 15


def as_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def request_item(request: Request) -> Item:
    item = item_of(request) | {name: as_text(getattr(request, name)) for name in _TEXTS}
    order = f"{request.created_at}#{request.request_id}"
    item |= keys.request(request.project_id, request.request_id)
    item |= {"gsi1pk": keys.requests_list(request.project_id), "gsi1sk": order}
    if request.subscription_id:
        pk = keys.subscription_requests(request.project_id, request.subscription_id)
        item |= {"gsi2pk": pk, "gsi2sk": order}
    return item


def request_from(item: Item) -> Request:
    texts = {name: json.loads(item[name]) for name in _TEXTS if item.get(name) is not None}
    beats = {name.removeprefix(_BEAT): int(at) for name, at in item.items() if name.startswith(_BEAT)}
    peak = max((int(value) for name, value in item.items() if name.startswith("peak_")), default=0)
    return record_from(Request, item, **texts, beats=beats, peak_mb=peak)


def due_of(request: Request, *, now: float, keep_seconds: int) -> dict[str, Any]:
    """The attributes that say when compensation checks the request. For an ended request: when retention removes it."""
    if request.status == PENDING:
        lane = {"due_lane": f"channel:{request.channel}"}
        return keys.due(request.request_id, max(now, request.not_before or _created(request)), "request") | lane
    if request.status == RUNNING:
        return keys.due(request.request_id, now + _FIRST_HEARTBEAT_SECONDS, "request")
    return keys.retained(request.request_id, now + keep_seconds) if request.is_over else {}


def _created(request: Request) -> float:
    return datetime.fromisoformat(request.created_at).timestamp()


def place_key(request: Request) -> dict[str, str]:
    lane = (request.channel, request.project_id)
    return keys.waiting_place(*lane, rank(request.priority, request.created_at), request.request_id)


def place_item(request: Request) -> Item:
    by_age = {"gsi1pk": keys.waiting_by_age(request.channel), "gsi1sk": f"{request.created_at}#{request.request_id}"}
    return place_key(request) | {
        **by_age,
        "channel": request.channel,
        "project_id": request.project_id,
        "request_id": request.request_id,
        "priority": request.priority,
        "since": request.created_at,
        "status": request.status,
        "reason": request.last_wait_reason,
        "not_before": request.not_before,
        "mutex": request.mutex,
        "slots": request.slots,
    }


def place_from(item: Item) -> WaitingPlace:
    return WaitingPlace(**{field.name: item.get(field.name) for field in fields(WaitingPlace)})  # type: ignore[arg-type]


# --- standings
# A project's standing in a channel: how many of its requests wait and run.
#
# The counts are written in the same transaction as the requests that they count, so a crash cannot make them differ.


def standing_from(item: Item) -> Standing:
    counts = {name: int(item.get(name, 0)) for name in ("waiting", "running", "turn", "changes")}
    return Standing(item["sk"], **counts)


def standing_write(
    channel: str, project_id: str, *, waiting: int = 0, running: int = 0, turn: Turn | None = None
) -> Write:
    """The write that adds to a project's counts in a channel.

    With a `turn`, the write is refused if the project would hold too many slots.
    """
    # With its slots, the project must not hold more than it may.
    most = turn.ceiling - running + 1 if turn else 0
    bound: dict[str, Any] = {"ceiling": most} if turn else {}
    return update(
        keys.standing(channel, project_id),
        {"turn": turn.number if turn else None},
        adds={name: value for name, value in (("waiting", waiting), ("running", running)) if value} | {"changes": 1},
        condition=below("running", "ceiling", allows_none=most > 0) if turn else "",
        **bound,
    )


# --- locks
# The locks of a running request: a slot of its channel and, within a subscription, a mutex with a lease.

# Heartbeats renew the lease, for at most two hours in total. So the mutex of a dead owner becomes free.
LEASE_SECONDS = 180
LONGEST_LEASE_SECONDS = 7200


def slot_writes(old: Request, new: Request, now: float, turn: Turn | None = None) -> list[tuple[str, Write]]:
    """A move's writes to the channel, the slot and the mutex."""
    if old.status != RUNNING and new.status == RUNNING:
        return _acquire_writes(new, now, turn)
    if old.status == RUNNING and new.status != RUNNING:
        return _release_writes(old)
    return []


def _acquire_writes(request: Request, now: float, turn: Turn | None) -> list[tuple[str, Write]]:
    slots = request.slots_held
    bound: dict[str, Any] = {}
    # Slots beyond the capacity are not marked: as others are released, `running` falls to the capacity again.
    has_room = "#running <= #capacity" if turn is not None and turn.extra else "#running < #capacity"
    if turn is not None and not turn.extra and slots > 1:
        bound = {"most": turn.capacity - slots, "seen": turn.capacity}
        has_room = "#running <= :most AND #capacity = :seen"
    channel = update(
        keys.channel(request.channel),
        adds={"running": slots, "slot_changes": 1},
        condition=f"{has_room} AND #paused = :no",
        no=False,
        **bound,
    )
    parts = [(CHANNEL, channel), (SLOT, slot_taken(request))]
    return [*parts, (MUTEX, _lock_write(request, now))] if request.subscription_id else parts


def slot_taken(request: Request) -> Write:
    slot = {"project_id": request.project_id, "request_id": request.request_id, "attempt": request.attempt}
    slot |= {"slots": request.slots_held}
    return put_new(keys.slot(request.channel, request.request_id) | slot)


def slots_taken(channel: Channel, count: int) -> Write:
    """The write that takes `count` slots. Refused if fewer are free, or if the channel's capacity has changed."""
    return update(
        keys.channel(channel.name),
        adds={"running": count, "slot_changes": count},
        condition="#running <= :most AND #capacity = :capacity AND #paused = :no",
        most=channel.capacity - count,
        capacity=channel.capacity,
        no=False,
    )


def _release_writes(request: Request) -> list[tuple[str, Write]]:
    channel = update(keys.channel(request.channel), adds={"running": -request.slots_held, "slot_changes": 1})
    slot = delete(keys.slot(request.channel, request.request_id), "#attempt = :attempt", attempt=request.attempt)
    parts = [(CHANNEL, channel), (SLOT, slot)]
    return [*parts, (MUTEX, _unlock_write(request))] if request.subscription_id else parts


def _lock_write(request: Request, now: float) -> Write:
    return update(
        keys.mutex(request.project_id, str(request.mutex)),
        {"owner": request.request_id, "attempt": request.attempt, "taken_at": now, "lease_until": now + LEASE_SECONDS},
        adds={"fence": 1},
        condition="attribute_not_exists(#owner) OR #lease_until <= :now",
        now=now,
    )


def _unlock_write(request: Request) -> Write:
    return update(
        keys.mutex(request.project_id, str(request.mutex)),
        removes=("owner", "attempt", "taken_at", "lease_until"),
        condition="#owner = :me AND #attempt = :attempt",
        me=request.request_id,
        attempt=request.attempt,
    )


def renewed(request: Request, now: float) -> Write:
    """The write that renews the lease of the request's mutex.

    Refused if another attempt holds the mutex, or if this attempt has held it for the longest time allowed.
    """
    return update(
        keys.mutex(request.project_id, str(request.mutex)),
        {"lease_until": now + LEASE_SECONDS},
        condition="#owner = :me AND #attempt = :attempt AND #taken_at > :oldest",
        me=request.request_id,
        attempt=request.attempt,
        # A batch may run for days, and holds its concurrency key for all that time.
        oldest=now - (request.timeout if request.type == "batch" else LONGEST_LEASE_SECONDS),
    )


# --- group
# Several admissions in one transaction: the channel and the counts, which they share, are written once.

# The limit of DynamoDB for one transaction.
_MAX_WRITES = 100
# The requests of one project that fit into a transaction.
MAX_GROUP = 19


def fits_one_transaction(requests: int, projects: int) -> bool:
    """Whether a group of this size fits into one transaction.

    It needs five writes for each request, three for each project, and one for the channel.
    """
    return 5 * requests + 3 * projects + 1 <= _MAX_WRITES


@dataclass(frozen=True, slots=True)
class AdmissionMove:
    """One admission: the request before and after, its audit line and its project's turn."""

    old: Request
    new: Request
    line: AuditLine
    turn: Turn


def admission_parts(moves: Sequence[AdmissionMove], channel: Channel, now: datetime) -> list[tuple[str, Write]]:
    """The writes that admit several requests of one channel. None of the requests may need a mutex.

    `channel`: the channel's state before these admissions.
    """
    parts: list[tuple[str, Write]] = [(CHANNEL, slots_taken(channel, sum(move.turn.slots for move in moves)))]
    counts = Counter(move.new.project_id for move in moves)
    slots: Counter[str] = Counter()
    for move in moves:
        slots[move.new.project_id] += move.turn.slots
    last_turns = {move.new.project_id: move.turn for move in moves}
    for project_id, count in counts.items():
        turn = last_turns[project_id]
        # All of them are counted at once, so there must be room below the ceiling for all.
        standing = standing_write(channel.name, project_id, waiting=-count, running=slots[project_id], turn=turn)
        parts += [(STANDING, standing), (OTHER, queued_write(project_id, -count))]
        parts.append((OTHER, day_write(project_id, now, {RUNNER_SECONDS: START_SECONDS * count})))
    stats: dict[tuple[Any, ...], Write] = {}
    for move in moves:
        item = request_item(move.new) | due_of(move.new, now=now.timestamp(), keep_seconds=0)
        seen = {"seen": move.old.version, "was": move.old.status}
        parts += [
            (REQUEST, put(item, "#version = :seen AND #status = :was", **seen)),
            (PLACE, delete(place_key(move.old), "attribute_exists(#pk)")),
            (SLOT, slot_taken(move.new)),
            (OTHER, audit_write(move.line)),
        ]
        for write in stats_writes(move.old, move.new):
            key = tuple(sorted(write.key.items()))
            stats[key] = _summed(stats[key], write) if key in stats else write
    return [*parts, *((OTHER, write) for write in stats.values())]


def _summed(first: Write, second: Write) -> Write:
    sums: Counter[str] = Counter()
    for write in (first, second):
        for name, value in (write.adds or {}).items():
            assert isinstance(value, int)
            sums[name] += value
    return replace(first, adds=dict(sums))


def audit_line(old: Request, new: Request, action: str, who: str, why: str, now: datetime) -> AuditLine:
    states = (old.status, new.status)
    return AuditLine(old.project_id, old.request_id, iso(now), who, action, *states, why, new.attempt, new.version)


Part = tuple[str, Write]
# The Retry-After of a full queue.
QUEUE_RETRY_SECONDS = 30


class RequestStore(Store):
    """Requests in the table. A move writes request, place, slot, mutex, counts, audit line and notice together."""

    def add(
        self, request: Request, line: AuditLine, extra_writes: Sequence[Write] = (), queued_limit: int | None = None
    ) -> Request:
        """Stores a request, or returns the existing one with its id.

        QuotaExceeded if `queued_limit` requests of the project are already waiting.
        """
        item = request_item(request) | due_of(request, now=0, keep_seconds=0)
        counted = queued_write(request.project_id, 1, queued_limit)
        standing = standing_write(request.channel, request.project_id, waiting=1)
        records = [audit_write(line), *stats_writes(None, request), *noted(request_id=request.request_id)]
        writes = [put_new(item), counted, standing, put(place_item(request)), *records, *extra_writes]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            existing = self.get(request.project_id, request.request_id)
            if existing is not None and 0 in error.failed:
                return existing
            if writes.index(counted) in error.failed:
                raise QuotaExceeded.for_limit("queued", queued_limit, QUEUE_RETRY_SECONDS) from error
            raise
        return request

    def get(self, project_id: str, request_id: str) -> Request | None:
        item = self._table.get(keys.request(project_id, request_id), consistent=True)
        return request_from(item) if item else None

    def get_many(self, wanted: Iterable[tuple[str, str]]) -> dict[tuple[str, str], Request]:
        """The requests that exist, by (project_id, request_id)."""
        items = self._table.batch_get((keys.request(*ids) for ids in wanted), consistent=True)
        found = [request_from(item) for item in items]
        return {(request.project_id, request.request_id): request for request in found}

    def move(
        self,
        old: Request,
        new: Request,
        line: AuditLine,
        *,
        now: datetime,
        keep_seconds: int = 0,
        notice: Notice | None = None,
        extra_writes: Sequence[Write] = (),
        without: frozenset[str] = frozenset(),
        turn: Turn | None = None,
        queued_limit: int | None = None,
    ) -> None:
        """Writes a change of state. Refused names the parts whose condition failed. An admission needs a `turn`.

        QuotaExceeded if the request would begin to wait while `queued_limit` requests of the project are already
        waiting.
        """
        item = request_item(new) | due_of(new, now=now.timestamp(), keep_seconds=keep_seconds)
        rest: list[Part] = [
            (OTHER, audit_write(line)),
            *((OTHER, write) for write in stats_writes(old, new)),
            *([(OTHER, notice_write(notice))] if notice else []),
            *((OTHER, write) for write in extra_writes),
        ]
        request: Part = (REQUEST, put(item, "#version = :seen AND #status = :was", seen=old.version, was=old.status))
        if turn is not None:
            rest.append((OTHER, day_write(new.project_id, now, {RUNNER_SECONDS: START_SECONDS})))
        slots = [part for part in slot_writes(old, new, now.timestamp(), turn) if part[0] not in without]
        try:
            self._transact([request, *_queue_writes(old, new, without, turn, queued_limit), *slots, *rest])
        except Refused as refused:
            if QUOTA in refused.parts and REQUEST not in refused.parts:
                raise QuotaExceeded.for_limit("queued", queued_limit, QUEUE_RETRY_SECONDS) from refused
            if PLACE not in refused.parts or REQUEST in refused.parts:
                raise
            # Its place is in the lane that all projects shared in an older version, or is lost.
            if not self.move_to_project_lane(old):
                without |= {PLACE}
            self._transact([request, *_queue_writes(old, new, without, turn), *slots, *rest])

    def admit_group(self, moves: Sequence[AdmissionMove], channel: Channel, now: datetime) -> None:
        """Admits all of these requests, or none. Refused if any condition fails."""
        self._transact(admission_parts(moves, channel, now))

    def move_to_project_lane(self, request: Request) -> bool:
        """Moves a waiting request's place out of the lane that all projects shared. False if the place is not there."""
        place = (request.channel, request.priority, request.created_at, request.request_id)
        return self._table.try_write(
            delete(keys.shared_waiting_place(*place), "attribute_exists(#pk)"),
            put_new(place_item(request)),
            standing_write(request.channel, request.project_id, waiting=1),
            queued_write(request.project_id, 1),
        )

    def _transact(self, parts: Sequence[Part]) -> None:
        try:
            self._table.transact([write for _, write in parts])
        except ConditionFailed as error:
            raise Refused(parts[index][0] for index in error.failed) from error

    def heartbeat(self, request: Request, now: datetime, worker: str, progress: dict[str, Any] | None) -> None:
        """Stores a heartbeat and renews the mutex. LeaseLost if the attempt is outdated or has lost the mutex.

        Compensation checks the request by its oldest heartbeat. So a silent worker is noticed even if others are not
        silent.
        """
        moment = int(now.timestamp())
        oldest = min([moment, *(at for name, at in request.beats.items() if name != worker)])
        sets: dict[str, Any] = {f"{_BEAT}{worker}": moment}
        sets |= keys.due(request.request_id, oldest + LOOK_SECONDS, "request")
        if progress is not None:
            sets["progress"] = as_text(progress)
        key = keys.request(request.project_id, request.request_id)
        condition = "#status = :running AND #attempt = :attempt"
        write = update(key, sets, condition=condition, running=RUNNING, attempt=request.attempt)
        try:
            if request.subscription_id:
                self._table.transact([write, renewed(request, now.timestamp())])
            else:
                self._table.write(write)
        except ConditionFailed as error:
            raise LeaseLost("the request has ended, or another attempt runs it") from error

    def rest(self, request: Request, now: datetime, worker: str, used: Usage) -> None:
        """Stores that a worker has ended its step and sends no more heartbeats. Also stores what the worker used."""
        key = keys.request(request.project_id, request.request_id)
        due = keys.due(request.request_id, now.timestamp() + LOOK_SECONDS, "request")
        same = "#status = :running AND #attempt = :attempt"
        gone = (f"{_BEAT}{worker}",)
        sets = due | {f"peak_{worker}": max(request.peak_mb, used.peak_mb)}
        adds = {"cpu_ms": used.cpu_ms, "moved_bytes": used.moved_bytes}
        write = update(key, sets, adds=adds, removes=gone, condition=same, running=RUNNING, attempt=request.attempt)
        self._table.try_write(write)

    def set_due(self, request: Request, due_at: float | None) -> None:
        """Sets when compensation checks the request; None: not at all. Does nothing if the request has changed."""
        key = keys.request(request.project_id, request.request_id)
        sets = keys.due(request.request_id, due_at, "request") if due_at is not None else None
        removes = () if sets else keys.DUE_ATTRIBUTES
        self._table.try_write(update(key, sets, removes=removes, condition="#version = :seen", seen=request.version))

    def note_wait(self, place: WaitingPlace, reason: str) -> None:
        """Stores why a request waits: on the request, for callers, and on its place, for the next admission."""
        request = keys.request(place.project_id, place.request_id)
        lane = (place.channel, place.project_id)
        waiting_place = keys.waiting_place(*lane, rank(place.priority, place.since), place.request_id)
        writes = [
            update(
                request,
                {"last_wait_reason": reason},
                condition="#status IN (:pending, :queued)",
                pending=PENDING,
                queued=QUEUED,
            ),
            update(waiting_place, {"reason": reason}),
        ]
        try:
            self._table.transact(writes)
        except Conflict:
            return

    def note_running(self, request: Request, reason: str | None) -> None:
        """Stores why a running request does not work at present, unless it has ended."""
        sets = {"last_wait_reason": reason} if reason else None
        removes = () if reason else ("last_wait_reason",)
        same = "#status = :running AND #attempt = :attempt"
        key = keys.request(request.project_id, request.request_id)
        write = update(key, sets, removes=removes, condition=same, running=RUNNING, attempt=request.attempt)
        self._table.try_write(write)

    def list(self, project_id: str, limit: int, cursor: str | None, **wanted: object) -> Listed[Request]:
        page = self._table.find(keys.requests_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        return Listed([request_from(item) for item in page.items], page.cursor)

    def of_subscription(self, project_id: str, subscription_id: str, limit: int, cursor: str | None) -> Listed[Request]:
        pk = keys.subscription_requests(project_id, subscription_id)
        page = self._table.page(pk, index="gsi2", newest_first=True, limit=limit, cursor=cursor)
        return Listed([request_from(item) for item in self._table.current(page.items)], page.cursor)


def _queue_writes(
    old: Request, new: Request, without: frozenset[str], turn: Turn | None, queued_limit: int | None = None
) -> list[Part]:
    return [*_place_writes(old, new, without), *_counts(old, new, without, turn, queued_limit)]


def _place_writes(old: Request, new: Request, without: frozenset[str]) -> list[Part]:
    """The writes that add, change or remove the request's place.

    They fail if the old place does not exist, because the counts include it. With PLACE in `without`, no old place is
    expected.
    """
    has_place, takes_place = old.status in WAITING and PLACE not in without, new.status in WAITING
    if has_place and takes_place and place_key(old) == place_key(new):
        return [(PLACE, put(place_item(new), "attribute_exists(#pk)"))]
    removed = [(PLACE, delete(place_key(old), "attribute_exists(#pk)"))] if has_place else []
    return [*removed, (PLACE, put(place_item(new)))] if takes_place else removed


def _counts(
    old: Request, new: Request, without: frozenset[str], turn: Turn | None, queued_limit: int | None
) -> list[Part]:
    waiting = (new.status in WAITING) - (old.status in WAITING and PLACE not in without)
    taken = new.slots_held if new.status == RUNNING else 0
    running = taken - (old.slots_held if old.status == RUNNING and SLOT not in without else 0)
    parts: list[Part] = []
    if waiting:
        parts.append((QUOTA, queued_write(old.project_id, waiting, queued_limit if waiting > 0 else None)))
    if waiting or running:
        write = standing_write(old.channel, old.project_id, waiting=waiting, running=running, turn=turn)
        parts.append((STANDING, write))
    return parts


# Admission rarely needs more places of a project than this. If it does, most of them are blocked, so it reads the rest
# in pages of 1 MB.
_LANE_PAGE = 100
# Projects whose places are counted in one recount, and pages of 1 MB that are read of each.
_RECOUNTED, _RECOUNTED_PAGES = 50, 2


class Held(NamedTuple):
    """The slots of a channel that an attempt of a request holds."""

    project_id: str
    request_id: str
    attempt: int
    slots: int = 1


class ChannelStore(Store):
    """Channels in the table: their records, the places of waiting requests, the slots of running ones.

    Reads consistently, because admission decides by what it reads.
    """

    def get(self, name: str) -> Channel | None:
        item = self._table.get(keys.channel(name), consistent=True)
        return record_from(Channel, item) if item else None

    def all(self) -> list[Channel]:
        return [record_from(Channel, item) for item in self._table.query_all(keys.channels(), consistent=True)]

    def ensure(self, name: str, capacity: int) -> Channel:
        """The channel. It is created with this capacity if it does not exist."""
        channel = self.get(name)
        if channel is None:
            new = {"name": name, "capacity": capacity, "running": 0, "paused": False, "slot_changes": 0}
            self._table.try_write(put_new(keys.channel(name) | new))
            channel = self.get(name)
        return channel or Channel(name, capacity)

    def begin_run(self, name: str) -> None:
        """Counts a run of admission. Call it before the run's first read: see `runs_begun`."""
        self._table.write(update(keys.admission_runs(name), adds={"runs": 1}, condition=""))

    def runs_begun(self, name: str) -> int:
        """How many admission runs of the channel have begun. The next run sees all writes from before this call."""
        item = self._table.get(keys.admission_runs(name), consistent=True)
        return int(item["runs"]) if item else 0

    def set_capacity(self, name: str, capacity: int, now: float, line: AuditLine) -> None:
        change = update(keys.channel(name), {"capacity": capacity} | keys.due(name, now, "channel"))
        self._table.transact([change, audit_write(line)])

    def set_paused(self, name: str, paused: bool, now: float, line: AuditLine) -> None:
        """Pauses or resumes the channel. Also makes it due now: compensation then replaces a lost message."""
        change = update(keys.channel(name), {"paused": paused} | keys.due(name, now, "channel"))
        self._table.transact([change, audit_write(line)])

    def waiting(self, name: str, project_id: str) -> Iterator[list[WaitingPlace]]:
        """Pages of a project's places, in the order of admission."""
        limit: int | None = _LANE_PAGE
        cursor: str | None = None
        while limit or cursor:
            page = self._table.query(keys.waiting(name, project_id), consistent=True, limit=limit, cursor=cursor)
            yield [place_from(item) for item in page.items]
            limit, cursor = None, page.cursor

    def held_mutexes(self, project_id: str, names: Iterable[str], now: float) -> set[str]:
        """The mutexes among `names` that a request of the project holds."""
        wanted = {keys.mutex(project_id, name)["pk"]: name for name in names}
        items = self._table.batch_get((keys.mutex(project_id, name) for name in wanted.values()), consistent=True)
        return {wanted[item["pk"]] for item in items if "owner" in item and float(item["lease_until"]) > now}

    def shared_places(self, name: str) -> Iterator[WaitingPlace]:
        """Places that an older version wrote to the lane that all projects shared."""
        return (place_from(item) for item in self._table.query_all(keys.shared_waiting(name), consistent=True))

    def standings(self, name: str) -> list[Standing]:
        """The projects that have waiting or running requests in the channel, or had some recently."""
        return [standing_from(item) for item in self._table.query_all(keys.standings(name), consistent=True)]

    def standing(self, name: str, project_id: str) -> Standing:
        item = self._table.get(keys.standing(name, project_id), consistent=True)
        return standing_from(item) if item else Standing(project_id)

    def count_waiting(self, name: str) -> int:
        return sum(standing.waiting for standing in self.standings(name))

    def queue_of(self, name: str) -> tuple[int, str | None]:
        """The number of waiting requests, and when the oldest was created; None if none waits.

        Reads counts and one place, not all places.
        """
        length = self.count_waiting(name)
        if not length:
            return 0, None
        oldest = self._table.query(keys.waiting_by_age(name), index="gsi1", limit=1).items
        return length, oldest[0]["since"] if oldest else None

    def drop_place(self, place: WaitingPlace) -> None:
        """Removes a place whose request does not exist any more."""
        lane = (place.channel, place.project_id)
        key = keys.waiting_place(*lane, rank(place.priority, place.since), place.request_id)
        self._table.try_write(
            delete(key, "attribute_exists(#pk)"), standing_write(*lane, waiting=-1), queued_write(place.project_id, -1)
        )

    def drop_shared_place(self, place: WaitingPlace) -> None:
        key = keys.shared_waiting_place(place.channel, place.priority, place.since, place.request_id)
        self._table.write(delete(key))

    def slots(self, name: str) -> list[Held]:
        items = self._table.query_all(keys.slots(name), consistent=True)
        return [
            Held(item["project_id"], item["request_id"], int(item["attempt"]), int(item.get("slots", 1)))
            for item in items
        ]

    def drop_slot(self, name: str, held: Held) -> bool:
        """Releases the slots of an attempt that does not run any more. False if they were released already."""
        return self._table.try_write(
            delete(keys.slot(name, held.request_id), "#attempt = :attempt", attempt=held.attempt),
            update(keys.channel(name), adds={"running": -held.slots, "slot_changes": 1}),
            standing_write(name, held.project_id, running=-held.slots),
        )

    def recount(self, channel: Channel, running: int) -> bool:
        """Corrects how many slots the channel counts as taken. False if that count changed since `channel` was read."""
        return self._table.try_write(
            update(
                keys.channel(channel.name),
                {"running": running},
                adds={"slot_changes": 1},
                condition="#slot_changes = :seen",
                seen=channel.slot_changes,
            )
        )

    def recount_running(self, name: str) -> None:
        """Sets each project's count to the number of its slots, unless the count has changed since it was read."""
        standings = {standing.project_id: standing for standing in self.standings(name)}
        held: Counter[str] = Counter()
        for one in self.slots(name):
            held[one.project_id] += one.slots
        for project_id in standings.keys() | held.keys():
            standing = standings.get(project_id, Standing(project_id))
            if standing.running != held[project_id]:
                self._table.try_write(self._set_count(name, standing, "running", held[project_id]))

    def recount_waiting(self, name: str, turn: int) -> None:
        """Corrects the counts of waiting requests of some projects, and removes idle projects.

        Each `turn` checks other projects. Of a long lane, only the first pages are read. So the count of a long lane is
        only ever raised: to the number of places on these pages.
        """
        standings = self.standings(name)
        start = turn * _RECOUNTED % max(1, len(standings))
        for standing in (standings[start:] + standings[:start])[:_RECOUNTED]:
            lane = keys.waiting(name, standing.project_id)
            waiting, are_all = self._table.count(lane, pages=_RECOUNTED_PAGES, consistent=True)
            if standing.waiting < waiting or (are_all and standing.waiting != waiting):
                counted = queued_write(standing.project_id, waiting - standing.waiting)
                self._table.try_write(self._set_count(name, standing, "waiting", waiting), counted)
            elif not standing.is_active:
                unchanged = "#changes = :seen"
                self._table.try_write(
                    delete(keys.standing(name, standing.project_id), unchanged, seen=standing.changes)
                )

    @staticmethod
    def _set_count(name: str, standing: Standing, count: str, value: int) -> Write:
        return update(
            keys.standing(name, standing.project_id),
            {count: value},
            adds={"changes": 1},
            condition="attribute_not_exists(#changes) OR #changes = :seen",
            seen=standing.changes,
        )

    def set_due(self, name: str, due_at: float | None) -> None:
        """Sets when compensation checks the channel; None: not at all."""
        sets = keys.due(name, due_at, "channel") if due_at is not None else None
        self._table.try_write(update(keys.channel(name), sets, removes=() if sets else keys.DUE_ATTRIBUTES))


# --- stats store
# Counts of a project's requests, by type and by the hour of their creation.
#
# The counts are written in the same transaction as the requests that they count.

# Longer than any ended request is kept.
_KEPT_SECONDS = 35 * 86400
_NOT_COUNTS = frozenset({"pk", "sk", "expires_at"})


def stats_writes(old: Request | None, new: Request) -> list[Write]:
    changes = change_of(old, new)
    if not changes:
        return []
    expires_at = int(datetime.fromisoformat(new.created_at).timestamp()) + _KEPT_SECONDS
    key = keys.request_stats(new.project_id, hour_of(new.created_at), new.type, new.request_id)
    return [update(key, {"expires_at": expires_at}, adds=changes, condition="")]


def hour_of(moment: str) -> str:
    """The hour of an ISO 8601 time in UTC, as `2026-11-16T21`."""
    return moment[:13]


def counts_since(table: Table, project_id: str, moment: str) -> Iterator[tuple[str, dict[str, int]]]:
    """Pairs of request type and counts, for requests created in the hour of this moment or later."""
    bounds = (hour_of(moment), "~")
    for item in table.query_all(keys.requests_stats(project_id), sk_between=bounds):
        counts = {name: int(value) for name, value in item.items() if name not in _NOT_COUNTS}
        yield keys.type_of_stats(item["sk"]), counts
