"""Requests in the table. A move writes the request, its place, slot, mutex, counts, audit line and notice together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, delete, put, put_new, update
from tidegate.common.ids import iso
from tidegate.common.listing import Listed
from tidegate.errors import Conflict, LeaseLost, QuotaExceeded
from tidegate.notifications.notice import Notice
from tidegate.notifications.outbox import notice_write
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.usage_store import queued_write
from tidegate.queue.admission.fairness import Turn, rank
from tidegate.queue.admission.group import AdmissionMove, admission_parts
from tidegate.queue.admission.standings import standing_write
from tidegate.queue.channels.model import Channel, Place
from tidegate.queue.items import as_text, due_of, place_item, place_key, request_from, request_item
from tidegate.queue.locks import renewed, slot_writes
from tidegate.queue.model import PENDING, QUEUED, RUNNING, WAITING, Request
from tidegate.queue.stats_store import stats_writes
from tidegate.queue.transaction import OTHER, PLACE, QUOTA, REQUEST, SLOT, STANDING, Refused

Part = tuple[str, Write]
# The Retry-After of a full queue.
_QUEUE_RETRY_SECONDS = 30


class RequestStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(
        self,
        request: Request,
        line: AuditLine,
        extra_writes: Sequence[Write] = (),
        queued_limit: int | None = None,
    ) -> Request:
        """Stores a request, or returns the existing one with its id. QuotaExceeded if `queued_limit` wait already."""
        item = request_item(request) | due_of(request, now=0, keep_seconds=0)
        counted = queued_write(request.project_id, 1, queued_limit)
        standing = standing_write(request.channel, request.project_id, waiting=1)
        records = [audit_write(line), *stats_writes(None, request)]
        writes = [put_new(item), counted, standing, put(place_item(request)), *records, *extra_writes]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            existing = self.get(request.project_id, request.request_id)
            if existing is not None and 0 in error.failed:
                return existing
            if writes.index(counted) in error.failed:
                raise QuotaExceeded.of("queued", queued_limit, _QUEUE_RETRY_SECONDS) from error
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

        With a `queued_limit`, QuotaExceeded if the request would begin to wait while as many wait already.
        """
        item = request_item(new) | due_of(new, now=now.timestamp(), keep_seconds=keep_seconds)
        rest: list[Part] = [
            (OTHER, audit_write(line)),
            *((OTHER, write) for write in stats_writes(old, new)),
            *([(OTHER, notice_write(notice))] if notice else []),
            *((OTHER, write) for write in extra_writes),
        ]
        request: Part = (REQUEST, put(item, "#version = :seen AND #status = :was", seen=old.version, was=old.status))
        extra = turn is not None and turn.extra
        slots = [part for part in slot_writes(old, new, now.timestamp(), extra=extra) if part[0] not in without]
        try:
            self._transact([request, *_queue_writes(old, new, without, turn, queued_limit), *slots, *rest])
        except Refused as refused:
            if QUOTA in refused.parts and REQUEST not in refused.parts:
                raise QuotaExceeded.of("queued", queued_limit, _QUEUE_RETRY_SECONDS) from refused
            if PLACE not in refused.parts or REQUEST in refused.parts:
                raise
            # Its place is in the lane that all projects shared in an older version, or is lost.
            if not self.move_to_project_lane(old):
                without |= {PLACE}
            self._transact([request, *_queue_writes(old, new, without, turn), *slots, *rest])

    def admit_group(self, moves: Sequence[AdmissionMove], channel: Channel, now: datetime) -> None:
        """Admits all of them or, if any condition fails (Refused), none."""
        self._transact(admission_parts(moves, channel, now))

    def move_to_project_lane(self, request: Request) -> bool:
        """Moves a waiting request's place out of the lane that all projects shared. False if it is not there."""
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

    def heartbeat(self, request: Request, now: datetime, due_at: float, progress: dict[str, Any] | None) -> None:
        """Stores a heartbeat and renews the mutex. LeaseLost if the attempt is outdated or has lost the mutex."""
        sets: dict[str, Any] = {"heartbeat_time": iso(now)} | keys.due(request.request_id, due_at, "request")
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

    def set_due(self, request: Request, due_at: float | None) -> None:
        """Sets when compensation checks the request (None: not at all), unless the request has changed."""
        key = keys.request(request.project_id, request.request_id)
        sets = keys.due(request.request_id, due_at, "request") if due_at is not None else None
        removes = () if sets else keys.DUE_ATTRIBUTES
        self._table.try_write(update(key, sets, removes=removes, condition="#version = :seen", seen=request.version))

    def note_wait(self, place: Place, reason: str) -> None:
        """Stores why a request waits, on the request for callers and on its place for the next admission."""
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

    def list(self, project_id: str, limit: int, cursor: str | None, **wanted: object) -> Listed[Request]:
        page = self._table.find(keys.requests_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        return Listed([request_from(item) for item in page.items], page.cursor)

    def of_subscription(self, project_id: str, subscription_id: str, limit: int, cursor: str | None) -> Listed[Request]:
        pk = keys.subscription_requests(project_id, subscription_id)
        page = self._table.query(pk, index="gsi2", newest_first=True, limit=limit, cursor=cursor)
        return Listed([request_from(item) for item in page.items], page.cursor)


def _queue_writes(
    old: Request, new: Request, without: frozenset[str], turn: Turn | None, queued_limit: int | None = None
) -> list[Part]:
    return [*_place_writes(old, new, without), *_counts(old, new, without, turn, queued_limit)]


def _place_writes(old: Request, new: Request, without: frozenset[str]) -> list[Part]:
    """The old place must exist, because the counts include it."""
    has_place, takes_place = old.status in WAITING and PLACE not in without, new.status in WAITING
    if has_place and takes_place and place_key(old) == place_key(new):
        return [(PLACE, put(place_item(new), "attribute_exists(#pk)"))]
    removed = [(PLACE, delete(place_key(old), "attribute_exists(#pk)"))] if has_place else []
    return [*removed, (PLACE, put(place_item(new)))] if takes_place else removed


def _counts(
    old: Request, new: Request, without: frozenset[str], turn: Turn | None, queued_limit: int | None
) -> list[Part]:
    waiting = (new.status in WAITING) - (old.status in WAITING and PLACE not in without)
    running = (new.status == RUNNING) - (old.status == RUNNING and SLOT not in without)
    parts: list[Part] = []
    if waiting:
        parts.append((QUOTA, queued_write(old.project_id, waiting, queued_limit if waiting > 0 else None)))
    if waiting or running:
        write = standing_write(old.channel, old.project_id, waiting=waiting, running=running, turn=turn)
        parts.append((STANDING, write))
    return parts
