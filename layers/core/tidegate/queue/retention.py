"""Retention: archives and removes ended requests, and removes objects and uploads that crashed functions left."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from itertools import dropwhile, islice, takewhile
from typing import Annotated, Any

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.aws.s3 import Found, Upload
from tidegate.aws.table import Item, Store, Table, delete, put, update
from tidegate.common.ids import Clock, digest, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import Invalid, WrongState
from tidegate.files.model import PARTS_SECONDS
from tidegate.queue.model import Request
from tidegate.queue.queue import Queue
from tidegate.queue.store import request_from
from tidegate.records import F, item_of, record_from

logger = Logger(service="tidegate", child=True)


class RetentionStore(Store):
    """Requests past their retention time, in partitions of the sparse index that only the clean-up reads."""

    def past(self, now: float, limit: int) -> Iterator[Request]:
        """At most `limit` requests whose retention is over. Skips malformed records, which would stop the others."""
        return islice(self._all_past(now), limit)

    def _all_past(self, now: float) -> Iterator[Request]:
        for shard in range(keys.RETENTION_SHARDS):
            partition, bounds = keys.retention_partition(shard), (0, int(now))
            for item in self._table.query_all(partition, index="due", sk_between=bounds):
                try:
                    request = request_from(item)
                except (KeyError, TypeError, ValueError):
                    logger.exception("a record past its retention is malformed and stays", record=item["pk"])
                    continue
                yield request

    def remove(self, request: Request) -> bool:
        key = keys.request(request.project_id, request.request_id)
        return self._table.try_write(delete(key, "#version = :seen", seen=request.version))

    def expire(self, request: Request, expires_at: float) -> bool:
        """Marks the request as expired. The table's TTL removes it at `expires_at`."""
        key = keys.request(request.project_id, request.request_id)
        sets = {"expired_at": request.expired_at, "expires_at": int(expires_at)}
        removes = keys.DUE_ATTRIBUTES
        return self._table.try_write(
            update(key, sets, removes=removes, condition="#version = :seen", seen=request.version)
        )


# --- identity
# Whether the table and the bucket belong together, and the runs of the clean-up that stopped themselves.
#
# Both have the same marker. Before anything is deleted, both are read, consistently: with another table, an empty one
# or another bucket, every object would look as if it belonged to no record.

# The object with the bucket's marker. No prefix of the lifecycle rules or of the sweep includes it.
MARKER = "tidegate-identity.json"
FOREIGN, TOO_MANY = "foreign", "too_many"


@dataclass(frozen=True, slots=True)
class StoppedRun:
    """A clean-up that stopped itself, for one of two reasons.

    Either the table and the bucket do not belong together. Or the clean-up would have deleted too much in some
    projects: it deleted nothing of these."""

    run_id: Annotated[str, F("id of the run, for `confirm`")]
    kind: str
    reason: Annotated[str, F("why it stopped")]
    stopped_at: Annotated[str, F("when it stopped, ISO 8601 UTC")]
    examined: Annotated[int, F("objects that it looked at")] = 0
    orphans: Annotated[int, F("objects among them that belong to no record")] = 0
    confirmed_by: Annotated[str | None, F("the key that confirmed it")] = None
    # The key where its scan began. The run that carries it out after a confirmation begins there, too.
    after: str = ""


class StoppedRuns:
    """Stores the last clean-up that stopped itself.

    It is kept until a person has confirmed it and a clean-up has carried it out, or until it is no longer needed."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def get(self) -> StoppedRun | None:
        item = self._table.get(keys.stopped_sweep(), consistent=True)
        return record_from(StoppedRun, item) if item else None

    def stop(self, kind: str, reason: str, examined: int = 0, orphans: int = 0, after: str = "") -> StoppedRun:
        now = self._clock()
        run = StoppedRun(new_id("sweep", now), kind, reason, iso(now), examined, orphans, after=after)
        self._table.write(put(keys.stopped_sweep() | item_of(run)))
        logger.error("the clean-up stopped itself", run_id=run.run_id, why=reason, examined=examined, orphans=orphans)
        return run

    def confirm(self, run_id: str, who: str) -> StoppedRun:
        """Lets the next clean-up delete what this run did not. WrongState if another run has stopped since."""
        write = update(keys.stopped_sweep(), {"confirmed_by": who}, condition="#run_id = :run_id", run_id=run_id)
        if not self._table.try_write(write):
            raise WrongState(f"no stopped clean-up has the id {run_id}: look at the last one, and confirm that")
        run = self.get()
        if run is None or run.run_id != run_id:
            raise WrongState(f"the clean-up {run_id} was repeated meanwhile: look at the last one")
        return run

    def clear(self, run: StoppedRun) -> None:
        self._table.try_write(delete(keys.stopped_sweep(), "#run_id = :run_id", run_id=run.run_id))


def stopped_runs(queue: Queue) -> StoppedRuns:
    return StoppedRuns(queue.table, queue.clock)


def foreign_store(queue: Queue) -> StoppedRun | None:
    """None if the table and the bucket belong together. If not, stores and returns the run that stops for that reason.

    If neither has a marker yet, both get one, provided that all projects with objects are in the table.
    """
    reason = _foreign(queue)
    stopped = stopped_runs(queue).get()
    if reason is not None:
        known = stopped is not None and (stopped.kind, stopped.reason) == (FOREIGN, reason)
        return stopped if known else stopped_runs(queue).stop(FOREIGN, reason)
    if stopped and stopped.kind == FOREIGN:
        stopped_runs(queue).clear(stopped)
    return None


def mark_again(queue: Queue, run: StoppedRun) -> None:
    """Gives the table and the bucket a new marker, after a person confirmed that they belong together."""
    _write_table(queue, new_id("tide", queue.clock()), replace=True)
    own = _in_table(queue)
    queue.bucket.put(MARKER, _content(own or ""))
    stopped_runs(queue).clear(run)


def _foreign(queue: Queue) -> str | None:
    table, bucket = _in_table(queue), _in_bucket(queue)
    if table and table == bucket:
        return None
    if bucket:
        found = f"the table's is {table}" if table else "the table has none"
        return f"the bucket belongs to another table: its marker is {bucket}, and {found}"
    unknown = _unknown_projects(queue)
    if unknown:
        return (
            f"the bucket has no marker, but objects of {len(unknown)} projects that are not in the table, "
            f"such as {unknown[0]}"
        )
    # The table first: if the function dies now, the next one finds a table with a marker and adds the bucket's.
    _write_table(queue, new_id("tide", queue.clock()))
    own = _in_table(queue) or ""
    queue.bucket.put_new(MARKER, _content(own))
    return None if _in_bucket(queue) == own else "another table has just marked the bucket as its own"


def _in_table(queue: Queue) -> str | None:
    item = queue.table.get(keys.store_identity(), consistent=True)
    return str(item["identity"]) if item else None


def _in_bucket(queue: Queue) -> str | None:
    data = queue.bucket.get_if_any(MARKER)
    return str(json.loads(data)["identity"]) if data else None


def _write_table(queue: Queue, identity: str, *, replace: bool = False) -> None:
    condition = "" if replace else "attribute_not_exists(#pk)"
    queue.table.try_write(update(keys.store_identity(), {"identity": identity}, condition=condition))


def _unknown_projects(queue: Queue) -> list[str]:
    """The projects that have objects in the bucket and no record in the table."""
    owners = {project for owner in queue.object_owners() for project in queue.bucket.folders(owner.prefix)}
    known = queue.table.batch_get([keys.project(project) for project in owners], consistent=True)
    found: set[Any] = {item["project_id"] for item in known}
    return sorted(owners - found)


def _content(identity: str) -> bytes:
    return json.dumps({"identity": identity}).encode()


# --- archive
# A compressed archive in S3 of the requests that retention removes from the table.


def _prefix(project_id: str, day: date) -> str:
    return f"archive/{project_id}/{day.isoformat().replace('-', '/')}/"


def archive(queue: Queue, requests: Sequence[Request]) -> None:
    """Writes one object of requests per project. Archiving the same requests again replaces the object."""
    by_project: dict[str, list[Request]] = defaultdict(list)
    for request in requests:
        by_project[request.project_id].append(request)
    today = queue.clock().date()
    for project_id, group in by_project.items():
        lines = "".join(json.dumps(request.view(), ensure_ascii=False) + "\n" for request in group)
        name = digest(*(request.request_id for request in group), length=24)
        queue.bucket.put(f"{_prefix(project_id, today)}{name}.ndjson.gz", gzip.compress(lines.encode(), mtime=0))


def read_archive(
    queue: Queue, project_id: str, day: date, limit: int, cursor: str | None, **wanted: str
) -> Listed[dict[str, Any]]:
    """A page of requests that were archived on this day and have the `wanted` values, sorted by id.

    `cursor`: the last id of the previous page."""
    if cursor is not None and not cursor.isprintable():
        raise Invalid(
            "the cursor does not belong to this list: leave it out to start again",
            errors=[{"loc": ["query", "cursor"], "msg": "unknown"}],
        )
    page: dict[str, dict[str, Any]] = {}
    for key in queue.bucket.keys(_prefix(project_id, day)):
        for record in map(json.loads, gzip.decompress(queue.bucket.get(key)).splitlines()):
            if record["request_id"] > (cursor or "") and wanted.items() <= record.items():
                page[record["request_id"]] = record
        # Objects are not sorted, so all are read; only the page and one more record are kept in memory.
        page = dict(sorted(page.items())[: limit + 1])
    records = list(page.values())
    return Listed(records[:limit], records[limit - 1]["request_id"] if len(records) > limit else None)


KeyOf = Callable[[str, str], dict[str, str]]
Needs = Callable[[Item, str], bool]


class RecordOwners:
    """Finds out which objects still belong to a record.

    An object named `{prefix}{project}/{id}…` belongs to the record with that id while `needs(record, key)` is true."""

    def __init__(self, table: Table, prefix: str, key_of: KeyOf, needs: Needs = lambda *_: True) -> None:
        self._table = table
        self.prefix = prefix
        self._key_of = key_of
        self._needs = needs

    def orphans(self, keys: Collection[str]) -> set[str]:
        """The keys of those objects that no record needs. Leaves out objects whose names Tidegate did not give."""
        owners = {key: owner for key in keys if (owner := self._owner(key)) is not None}
        wanted = {owner["pk"]: owner for owner in owners.values()}
        records = {item["pk"]: item for item in self._table.batch_get(wanted.values(), consistent=True)}
        return {
            key
            for key, owner in owners.items()
            if owner["pk"] not in records or not self._needs(records[owner["pk"]], key)
        }

    def project_of(self, key: str) -> str:
        return key.removeprefix(self.prefix).partition("/")[0]

    def _owner(self, key: str) -> dict[str, str] | None:
        project_id, _, rest = key.removeprefix(self.prefix).partition("/")
        record_id = rest.partition("/")[0].partition(".")[0]
        return self._key_of(project_id, record_id) if project_id and record_id else None


# --- retention
# Removes requests after their retention time, with the objects that belong to them alone.

# Without threads, the daily function would remove fewer records than a busy day adds.
_THREADS = 16


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How many records and objects were removed, and whether there may be more."""

    removed: int
    objects: int
    more: bool


def clean(queue: Queue, limit: int = 1000) -> Cleaned:
    """Removes up to `limit` records: archives them, then deletes their objects, then the records.

    Because of this order, the next run repeats what a failed run did not complete. A record that cannot be removed is
    logged and does not stop the others.
    """
    now = queue.clock()
    past = list(RetentionStore(queue.table).past(now.timestamp(), limit))
    archive(queue, [request for request in past if not request.expired_at])
    with ThreadPoolExecutor(_THREADS) as threads:
        outcomes = list(threads.map(lambda request: _try_to_remove(queue, request, now), past))
    done = [outcome for outcome in outcomes if outcome is not None]
    removed, objects = sum(gone for gone, _ in done), sum(count for _, count in done)
    logger.info("cleaned", removed=removed, objects=objects, failed=len(past) - len(done))
    return Cleaned(removed, objects, more=len(past) >= limit and bool(done))


def _try_to_remove(queue: Queue, request: Request, now: datetime) -> tuple[bool, int] | None:
    """The result of `_remove_request`. None if the request could not be removed."""
    try:
        return _remove_request(queue, request, now)
    except Exception:
        logger.exception("a request past its retention was not removed", request_id=request.request_id)
        return None


def _remove_request(queue: Queue, request: Request, now: datetime) -> tuple[bool, int]:
    """Removes a request or marks it as expired. Returns whether that was done, and the number of deleted objects."""
    keys = tuple(queue.objects_of[request.type](request)) if request.type in queue.objects_of else ()
    if keys:
        queue.bucket.delete(*keys)
    keep = queue.policies[request.type].keep_expired if request.status == "completed" else 0
    if keep and not request.expired_at:
        until = now + timedelta(seconds=keep)
        return RetentionStore(queue.table).expire(replace(request, expired_at=iso(now)), until.timestamp()), len(keys)
    return RetentionStore(queue.table).remove(request), len(keys)


# --- sweep
# Removes what crashed functions left in the bucket: unfinished multipart uploads and objects without a record.

# Younger uploads and objects may belong to a function that is still working.
STALE = timedelta(days=1)
# Callers may take this long for the parts of a file.
_STALE_PARTS = timedelta(seconds=PARTS_SECONDS)
_CALLERS = "content/"
_GROUP = 100


# A run does not delete more than this many objects if they are more than this share of those that it looked at. A
# project with too many is left out first, so that it does not stop the sweep of the others.
MOST_ORPHANS = 100
MOST_PERCENT = 5
# The most orphans of one run, because they are kept in memory until the end of the scan. The next run continues.
_MOST_KEPT = 10_000


@dataclass(frozen=True, slots=True)
class Swept:
    uploads: int
    orphans: int
    # The run that stopped itself and deleted nothing.
    stopped: StoppedRun | None = None


@dataclass(slots=True)
class _Scan:
    """What a scan of the bucket found: objects without a record, by owner.

    `cursor`: where the next scan begins. Empty if this scan reached the last object."""

    orphans: list[tuple[RecordOwners, list[str]]] = field(default_factory=list)
    # By project: the objects that were looked at, and those of them without a record whose content would be lost.
    examined: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    cursor: str = ""

    @property
    def count(self) -> int:
        return sum(len(found) for _, found in self.orphans)

    def doubtful(self, confirmed: int) -> tuple[int, int, list[str]]:
        """Returns (lost objects, examined objects, projects): what must not be deleted without a confirmation.

        Returns (0, 0, []) if everything may be deleted."""
        held = [name for name in self.losses if _is_too_much(self.losses[name], self.examined[name], confirmed)]
        others = self.losses.total() - sum(self.losses[name] for name in held)
        looked_at = self.examined.total() - sum(self.examined[name] for name in held)
        if _is_too_much(others, looked_at, confirmed):
            held = sorted(self.losses)
        return sum(self.losses[name] for name in held), sum(self.examined[name] for name in held), sorted(held)


def _is_too_much(losses: int, examined: int, confirmed: int) -> bool:
    return losses > confirmed + MOST_ORPHANS and losses * 100 > examined * MOST_PERCENT


def sweep(queue: Queue, has_time: Callable[[], bool] = lambda: True) -> Swept:
    """Deletes unfinished uploads and objects without a record. If the time runs out, the next sweep continues.

    Deletes nothing if the table and the bucket do not belong together. Deletes no objects of a project if it would
    delete too many of them. In both cases it stores a stopped run, which a person must confirm.
    """
    if foreign := foreign_store(queue):
        return Swept(0, 0, foreign)
    runs, before = stopped_runs(queue), queue.clock() - STALE
    uploads = _abort_uploads(queue, has_time)
    waiting = runs.get()
    is_confirmed = waiting is not None and waiting.confirmed_by is not None
    stored = queue.table.get(keys.sweep_cursor(), consistent=True) or {}
    start = waiting.after if waiting and is_confirmed else str(stored.get("after", ""))
    scan = _scan(queue, start, before, has_time)
    confirmed = waiting.orphans if waiting and is_confirmed else 0
    losses, examined, held = scan.doubtful(confirmed)
    # Checked again, because the scan takes minutes, in which the table may have been replaced.
    if foreign := foreign_store(queue):
        return Swept(uploads, 0, foreign)
    orphans = sum(_remove(queue, owner, found, held) for owner, found in scan.orphans)
    queue.table.write(update(keys.sweep_cursor(), {"after": scan.cursor}, condition=""))
    logger.info("swept", uploads=uploads, orphans=orphans, held=held[:20])
    if held:
        share = f"{losses} of {examined} objects of {_named(held)} have no record"
        reason = f"{share}: more than {MOST_ORPHANS}, and more than {MOST_PERCENT} %"
        return Swept(uploads, orphans, runs.stop(TOO_MANY, reason, examined, losses, start))
    if waiting and (is_confirmed or not scan.cursor):
        runs.clear(waiting)
    return Swept(uploads, orphans)


def _abort_uploads(queue: Queue, has_time: Callable[[], bool]) -> int:
    now = queue.clock()

    def is_stale(upload: Upload) -> bool:
        return now - upload.begun_at > (_STALE_PARTS if upload.key.startswith(_CALLERS) else STALE)

    stale = filter(is_stale, queue.bucket.uploads())
    aborted = 0
    for upload in takewhile(lambda _: has_time(), stale):
        queue.bucket.abort_upload(upload.key, upload.upload_id)
        aborted += 1
    return aborted


def _scan(queue: Queue, start: str, before: datetime, has_time: Callable[[], bool]) -> _Scan:
    cursor, scan = start, _Scan()
    for owner in dropwhile(lambda owner: start and not start.startswith(owner.prefix), queue.object_owners()):
        cursor = cursor or owner.prefix
        for found in _groups(queue.bucket.list(owner.prefix, cursor)):
            if scan.count >= _MOST_KEPT or not has_time():
                scan.cursor = cursor
                return scan
            old = {one.key: one.size for one in found if one.changed_at < before}
            scan.examined.update(owner.project_of(one.key) for one in found)
            if old and (orphans := owner.orphans(old)):
                scan.orphans.append((owner, sorted(orphans)))
                scan.losses.update(owner.project_of(key) for key in _with_content(queue, owner, orphans, old))
            cursor = found[-1].key
        cursor = ""
    return scan


def _with_content(queue: Queue, owner: RecordOwners, orphans: set[str], sizes: Mapping[str, int]) -> Iterator[str]:
    """The orphans whose content would be lost. The sweep counts these to judge whether it would delete too much.

    Two kinds do not count, because a caller can make any number of them: empty objects, which replace deleted uploads,
    and uploads that were never completed."""
    uploads = {
        key: keys.open_upload(owner.project_of(key), key.rsplit("/", 1)[-1])
        for key in orphans
        if sizes[key] and owner.prefix == _CALLERS
    }
    found = queue.table.batch_get(uploads.values(), consistent=True)
    still_open = [{"pk": item["pk"], "sk": item["sk"]} for item in found]
    return (key for key in orphans if sizes[key] and uploads.get(key) not in still_open)


def _remove(queue: Queue, owner: RecordOwners, found: Sequence[str], held: Collection[str]) -> int:
    """Deletes the found objects that still have no record, except those of the projects in `held`."""
    orphans = owner.orphans([key for key in found if owner.project_of(key) not in held])
    if orphans:
        queue.bucket.delete(*sorted(orphans))
    return len(orphans)


def _named(projects: Sequence[str]) -> str:
    more = f" and {len(projects) - 3} more" if len(projects) > 3 else ""
    return f"the project{'s' if len(projects) > 1 else ''} {', '.join(projects[:3])}{more}"


def _groups(listed: Iterator[Found]) -> Iterator[list[Found]]:
    while group := list(islice(listed, _GROUP)):
        yield group
