"""Subscriptions: create, change, preview, and scan by hand or by schedule."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from aws_lambda_powertools import Logger

from tidegate.aws import keys
from tidegate.common.ids import digest, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import Conflict, FetchError, InUse, LeaseLost, NotSent, RecordNotFound, UrlNotAllowed, WrongState
from tidegate.files.library import Announcement
from tidegate.http.guard import Credential, origin_of_text
from tidegate.http.model import Limits
from tidegate.ingest import Step, StepOutcome
from tidegate.ingest.feeds import Entry
from tidegate.ingest.fetch import Pacer, Politeness
from tidegate.ingest.model import MAX_BYTES
from tidegate.ingest.sources import (
    DELETING,
    FileVersion,
    SeenEntry,
    Selection,
    SourceList,
    Subscription,
    read_source,
    version_of,
)
from tidegate.ingest.submit import check_url, download, scan, subscription_of
from tidegate.projects.audit import SYSTEM, act, named_at
from tidegate.queue import control
from tidegate.queue.model import BY_HAND, BY_SCHEDULE, TERMINAL, Request
from tidegate.queue.schedules import (
    ACTIVE,
    PAUSED,
    ScheduleKind,
    Schedules,
    check_revision,
    request_id_of_run,
    request_is_active,
)

if TYPE_CHECKING:
    from tidegate.ingest import Ingest

# --- subscriptions
# Subscriptions: create, change, preview, scan by hand or by schedule, and delete them with their queued requests.

# An API call must end within half a minute.
_PREVIEW_LIMITS = Limits(total=20, max_bytes=32 * 1024 * 1024)
logger = Logger(service="tidegate", child=True)

_PAGE = 100
# The call that deletes a subscription cancels this many of its requests; compensation cancels the rest.
CANCELLED_AT_ONCE = 5
# How long compensation works on one deletion at a time, and how many requests it cancels in parallel.
DELETE_SECONDS = 20.0
_CANCELS_TOGETHER = 16


def create(ingest: Ingest, described: Subscription, *, who: str = SYSTEM) -> Subscription:
    """Creates a subscription and returns it. `described` has everything but its id, times and next run.

    QuotaExceeded if the project already has as many subscriptions as its quota allows.
    """
    check_url(ingest, described.project_id, described.source_url)
    now = ingest.clock()
    made = replace(described, subscription_id=new_id("sub", now), created_at=iso(now), counted=True)
    made = made.rescheduled(replace(made, schedule=None), now)
    why = named_at(made.name, made.source_url)
    line = act(made.project_id, made.subscription_id, now, who, "subscription.create", why)
    ingest.store.add(made, line, ingest.queue.project_store.quotas(made.project_id).subscriptions)
    return made


def change(
    ingest: Ingest,
    project_id: str,
    subscription_id: str,
    changes: Mapping[str, Any],
    *,
    revision: int | None = None,
    who: str,
) -> Subscription:
    """Changes fields of a subscription. None removes a field. Conflict if `revision` is given and outdated."""
    old = subscription_of(ingest, project_id, subscription_id)
    check_revision(old, revision, "subscription")
    if "source_url" in changes:
        check_url(ingest, project_id, str(changes["source_url"]))
    new = replace(old, **changes)
    if new == old:
        return old
    if set(changes) == {"status"}:
        return _write(ingest, old, new, who, f"subscription.{'pause' if new.status == PAUSED else 'resume'}")
    return _write(ingest, old, new, who, "subscription.change", ", ".join(sorted(changes)))


def switch(ingest: Ingest, project_id: str, subscription_id: str, *, paused: bool, who: str) -> Subscription:
    """Pauses or resumes the schedule of a subscription. Scans by hand work in both states. Idempotent."""
    return change(ingest, project_id, subscription_id, {"status": PAUSED if paused else ACTIVE}, who=who)


def _write(ingest: Ingest, old: Subscription, new: Subscription, who: str, action: str, why: str = "") -> Subscription:
    now = ingest.clock()
    new = replace(new.rescheduled(old, now), revision=old.revision + 1)
    line = act(new.project_id, new.subscription_id, now, who, action, why)
    reads = ("source_url", "format", "include", "exclude", "file_path", "credentials", "compare", "recursive")
    read_again = any(getattr(new, name) != getattr(old, name) for name in reads)
    if not ingest.store.change(old, new, line, read_again=read_again):
        raise Conflict("the subscription was changed by another request meanwhile: read it and try again")
    return new


def preview(ingest: Ingest, project_id: str, url: str, selection: Selection) -> SourceList:
    """Returns the files that a scan of this source would find now. Nothing is queued."""
    allow_private = check_url(ingest, project_id, url)
    return read_source(ingest.http, project_id, url, selection, allow_private=allow_private, limits=_PREVIEW_LIMITS)


class Plan(NamedTuple):
    """The URLs that a scan would find new, changed or gone, if only the list is compared."""

    new: set[str]
    changed: set[str]
    gone: list[str]


def plan_of(ingest: Ingest, project_id: str, subscription_id: str, found: SourceList) -> Plan:
    """Returns what a scan of the subscription would find new, changed and gone in this list."""
    subscription_of(ingest, project_id, subscription_id)
    seen = ingest.store.seen(project_id, subscription_id)
    entries = found.entries or []
    changed = {entry.url for entry in entries if entry.url in seen and not seen[entry.url].is_queued(entry)}
    return Plan({entry.url for entry in entries if entry.url not in seen}, changed, sorted(gone_of(found, seen)))


def scan_now(
    ingest: Ingest, project_id: str, subscription_id: str, who: str, confirm_trash: int | None = None
) -> Request:
    """Queues a scan now and returns its request. `confirm_trash`: how many vanished files may go into the trash."""
    subscription_of(ingest, project_id, subscription_id)
    return scan(ingest, project_id, subscription_id, priority=BY_HAND, who=who, confirm_trash=confirm_trash)


def tasks(ingest: Ingest, project_id: str, subscription_id: str, limit: int, cursor: str | None) -> Listed[Request]:
    """Returns the requests of a subscription: its scans and downloads, newest first."""
    subscription_of(ingest, project_id, subscription_id)
    return ingest.queue.store.of_subscription(project_id, subscription_id, limit, cursor)


def runs(
    ingest: Ingest, project_id: str, subscription_id: str, limit: int, cursor: str | None
) -> Listed[dict[str, Any]]:
    """Returns the runs of a subscription's schedule, newest first, each with the present state of its scan."""
    subscription_of(ingest, project_id, subscription_id)
    return ingest.scans.runs(project_id, subscription_id, limit, cursor)


def delete(ingest: Ingest, project_id: str, subscription_id: str, who: str) -> None:
    """Deletes a subscription and cancels its requests. If there are many requests, compensation does the rest."""
    subscription_of(ingest, project_id, subscription_id)
    now = ingest.clock()
    line = act(project_id, subscription_id, now, who, "subscription.delete")
    ingest.store.begin_delete(project_id, subscription_id, now.timestamp(), line)
    some = list(islice(_open_requests(ingest, project_id, subscription_id), CANCELLED_AT_ONCE + 1))
    for request in some[:CANCELLED_AT_ONCE]:
        _cancel(ingest, request, who)
    # A scan may have queued downloads that the index does not show yet: compensation cancels those.
    if len(some) <= CANCELLED_AT_ONCE and not any(request.type == "scan" for request in some):
        ingest.store.delete(project_id, subscription_id)


def finish_delete(ingest: Ingest, project_id: str, subscription_id: str, who: str = SYSTEM) -> None:
    """Cancels the open requests of a deleted subscription, then deletes its records. Idempotent.

    Stops after DELETE_SECONDS. The subscription stays due until its records are deleted, so that compensation calls
    this again.
    """
    until = ingest.monotonic() + DELETE_SECONDS
    left = _open_requests(ingest, project_id, subscription_id)
    with ThreadPoolExecutor(_CANCELS_TOGETHER) as threads:
        while some := list(islice(left, _PAGE)):
            if ingest.monotonic() >= until:
                return
            list(threads.map(lambda request: _cancel(ingest, request, who), some))
    ingest.store.delete(project_id, subscription_id)


def _open_requests(ingest: Ingest, project_id: str, subscription_id: str) -> Iterator[Request]:
    cursor: str | None = None
    while True:
        page = ingest.queue.store.of_subscription(project_id, subscription_id, _PAGE, cursor)
        yield from (request for request in page.items if request.status not in TERMINAL)
        cursor = page.next_cursor
        if cursor is None:
            return


def _cancel(ingest: Ingest, request: Request, who: str) -> None:
    try:
        control.cancel(ingest.queue, request.project_id, request.request_id, who, "its subscription was deleted")
    except (WrongState, RecordNotFound):
        logger.info("the request had ended already", request_id=request.request_id)


def scan_schedules(ingest: Ingest) -> Schedules[Subscription, None]:
    """Returns the schedules of scans. Each run queues a scan. The record of a schedule is the subscription itself."""

    def start(schedules: Schedules[Subscription, None], subscription: Subscription, request_id: str) -> None:
        scan(
            ingest,
            subscription.project_id,
            subscription.subscription_id,
            priority=subscription.priority or BY_SCHEDULE,
            who="schedule",
            request_id=request_id,
            extra_writes=schedules.started_writes(subscription, request_id),
            by_schedule=True,
        )

    kind: ScheduleKind[Subscription, None] = ScheduleKind(
        record=Subscription,
        keys=keys.SUBSCRIPTIONS,
        noun="subscription",
        id_name="subscription_id",
        work_name="request_id",
        work_id=lambda subscription: f"req-{request_id_of_run(subscription.subscription_id, subscription)}",
        works=ingest.queue.views_by_id,
        is_active=partial(request_is_active, ingest.queue),
        start=start,
    )
    return Schedules(ingest.queue, kind)


# --- scan

_AT_ONCE = 8
_PUT_OFF_NAMED = 10


def scan_source(ingest: Ingest, step: Step) -> StepOutcome:
    """`scan`: reads the list of a subscription's source and queues downloads of its new and changed files."""
    request = step.request
    subscription = ingest.store.get(request.project_id, str(request.subscription_id))
    if subscription is None or subscription.status == DELETING:
        raise RecordNotFound(f"the subscription {request.subscription_id} was deleted: there is nothing to scan")
    with ingest.host_pauses.respected(subscription.project_id, subscription.source_url):
        found = _read(ingest, step, subscription)
    now = iso(ingest.clock())
    if found.entries is None:
        return StepOutcome(
            {"unchanged": True, "listed": 0, "queued": 0}, [ingest.store.scanned_write(subscription, found.etag, now)]
        )
    seen = ingest.store.seen(subscription.project_id, subscription.subscription_id)
    fresh = [entry for entry in found.entries if entry.url not in seen or not seen[entry.url].is_queued(entry)]
    put_off: list[str] = []
    if request.payload.get("by_schedule"):
        scan = subscription.scans + 1
        put_off = [entry.url for entry in fresh if entry.url in seen and seen[entry.url].puts_off(entry, scan)]
        late = set(put_off)
        fresh = [entry for entry in fresh if entry.url not in late]
    compared = _Comparison(ingest, step, subscription, seen)
    fresh += compared.changed(found.entries)
    # While entries are put off or compared, the list must be read: a 304 would hide them.
    read_again = put_off or subscription.on_delete == "trash" or any(map(compared.asks_for, found.entries))
    written = ingest.store.scanned_write(subscription, None if read_again else found.etag, now)
    refused = _queue_all(ingest, step, subscription, fresh, compared)
    result: dict[str, Any] = {"listed": found.listed, "queued": len(fresh) - refused, "refused": refused}
    result |= compared.notes() | _follow_deletions(ingest, step, subscription, found, seen)
    if put_off:
        result |= {"put_off": len(put_off), "put_off_entries": put_off[:_PUT_OFF_NAMED]}
    if found.skipped:
        result |= {"skipped": len(found.skipped), "skipped_entries": found.first_skipped}
    return StepOutcome(result | {"format": found.format}, [written])


def _access(ingest: Ingest, subscription: Subscription) -> tuple[Credential | None, bool]:
    """Returns (credential of the source or None, whether private addresses are allowed)."""
    allow_private = ingest.projects.get(subscription.project_id).allow_private_urls
    credential = None
    if subscription.credentials:
        credential = ingest.credentials.get(subscription.project_id, subscription.credentials)
        credential.require(subscription.source_url, plain_text=allow_private)
    return credential, allow_private


def _read(ingest: Ingest, step: Step, subscription: Subscription) -> SourceList:
    credential, allow_private = _access(ingest, subscription)
    return read_source(
        ingest.http,
        subscription.project_id,
        subscription.source_url,
        subscription.selection,
        etag=subscription.known_etag,
        credential=credential,
        allow_private=allow_private,
        on_page=lambda: step.heartbeat({}),
    )


# --- deletions
# Follows what the source has deleted, if the subscription says so.

# How long files stay in the library after the source no longer lists them.
TRASH_SECONDS = 7 * 86400
# If more files than this number and this share are gone at once, a person must confirm it: the list may be wrong.
MOST_GONE, MOST_GONE_PERCENT = 10, 20


def _follow_deletions(
    ingest: Ingest, step: Step, subscription: Subscription, found: SourceList, seen: Mapping[str, SeenEntry]
) -> dict[str, Any]:
    """Marks entries that are gone, and deletes the files of entries that have been gone for long.

    Returns notes for the result of the scan.
    """
    now = int(ingest.clock().timestamp())
    follows = subscription.on_delete == "trash"
    back = [url for url, entry in seen.items() if entry.gone_at and (url in found.urls or not follows)]
    for url in back:
        ingest.store.mark_gone(subscription, url, None)
    notes: dict[str, Any] = {"restored": len(back)} if back else {}
    gone = gone_of(found, seen) if follows else {}
    if not gone:
        return notes
    fresh = [url for url, entry in gone.items() if not entry.gone_at]
    held_back = _held_back(fresh, len(seen), found, step.request.payload.get("confirm_trash"))
    if held_back:
        notes |= {"trash_held_back": len(fresh), "trash_reason": held_back}
        fresh = []
    for url in fresh:
        step.heartbeat({})
        ingest.store.mark_gone(subscription, url, now)
    over = [(url, entry) for url, entry in gone.items() if entry.gone_at and entry.gone_at <= now - TRASH_SECONDS]
    # A list that may be wrong deletes nothing, whatever was gone before.
    deleted = sum(_delete_gone(ingest, step, subscription, *one) for one in over) if not held_back else 0
    in_trash = sum(1 for entry in gone.values() if entry.gone_at) + len(fresh) - deleted
    counts = {"trashed": len(fresh), "deleted": deleted, "in_trash": in_trash}
    return notes | {name: count for name, count in counts.items() if count}


def gone_of(found: SourceList, seen: Mapping[str, SeenEntry]) -> dict[str, SeenEntry]:
    """Returns the entries that were listed before and are not listed now, by URL.

    Leaves out entries in folders that are no longer read. Empty if a folder could not be read, because the missing
    files may be there.
    """
    gone = {url: entry for url, entry in seen.items() if url not in found.urls} if found.complete else {}
    return {url: entry for url, entry in gone.items() if not url.startswith(found.unread)}


def _held_back(fresh: Sequence[str], known: int, found: SourceList, confirmed: object) -> str | None:
    """Returns why vanished files are not put into the trash. None if they are put there."""
    if not found.urls:
        return "the source lists nothing at all"
    many = len(fresh) > max(MOST_GONE, known * MOST_GONE_PERCENT // 100)
    if not (many or found.unreadable) or (isinstance(confirmed, int) and confirmed >= len(fresh)):
        return None
    if found.unreadable:
        entries = "1 entry" if found.unreadable == 1 else f"{found.unreadable} entries"
        return (
            f"{entries} of the list cannot be read, and may be files that look gone. Correct the list; or, if they are "
            f"gone, scan with confirm_trash={max(1, len(fresh))}"
        )
    share = f"{len(fresh)} of {known} files are gone: more than {MOST_GONE}, and more than {MOST_GONE_PERCENT} %"
    return f"{share}. If that is right, scan with confirm_trash={len(fresh)}"


def _delete_gone(ingest: Ingest, step: Step, subscription: Subscription, url: str, entry: SeenEntry) -> bool:
    """Deletes the files that this subscription fetched from a URL.

    False if one of them is in use: a later scan then tries again.
    """
    step.heartbeat({})
    biz_id = subscription.biz_id if entry.biz_id is None else entry.biz_id
    app_id = subscription.app_id if entry.app_id is None else entry.app_id
    place = (int(biz_id), int(app_id), entry.path or "")
    cursor: str | None = None
    while entry.path:
        page = ingest.files.find(subscription.project_id, place, _PAGE, cursor)
        for file in page.items:
            if file.source_url == url and file.subscription_id == subscription.subscription_id:
                try:
                    ingest.library().delete(subscription.project_id, file.file_id, who="subscription")
                except RecordNotFound:
                    continue
                except (InUse, WrongState):
                    return False
        cursor = page.next_cursor
        if cursor is None:
            break
    ingest.store.drop_gone(subscription, url, entry.gone_at)
    return True


# --- comparison
# Asks servers whether files have changed, where the list does not show it.

# The most files and seconds in one scan. The next scan continues with the files that were compared longest ago.
COMPARED_AT_ONCE = 500
_COMPARE_SECONDS = 120.0
# The pause between two requests, unless the subscription's politeness sets one.
_COMPARE_PAUSE = 0.1
_COMPARE_LIMITS = Limits(total=20, max_bytes=MAX_BYTES)
# A server that fails this often in one scan is not asked again by that scan.
_COMPARE_FAILURES = 3
# Statuses of servers that do not allow HEAD: they are asked for one byte of the file instead.
_NO_HEAD = frozenset({400, 403, 405, 501})


class _Comparison:
    def __init__(self, ingest: Ingest, step: Step, subscription: Subscription, seen: Mapping[str, SeenEntry]) -> None:
        self._ingest, self._step, self._subscription, self._seen = ingest, step, subscription, seen
        self._scan = subscription.scans + 1
        self._failures: Counter[str] = Counter()
        self._faults: list[str] = []
        self._asked = self._left = 0
        # For each URL whose file was found changed: the fingerprint in the list.
        self.listed: dict[str, str] = {}

    def asks_for(self, entry: Entry) -> bool:
        return self._subscription.compare == "head" or not entry.dated

    def notes(self) -> dict[str, Any]:
        """Returns notes for the result of the scan."""
        if not self._asked and not self._left:
            return {}
        notes: dict[str, Any] = {"compared": self._asked, "changed": len(self.listed), "compared_later": self._left}
        if self._faults:
            notes |= {"not_comparable": len(self._faults), "not_comparable_entries": self._faults[:_PUT_OFF_NAMED]}
        return notes

    def changed(self, entries: Sequence[Entry]) -> list[Entry]:
        """Returns the entries whose server says that their file has changed. They have new fingerprints.

        Only entries that were queued before are compared.
        """
        queued = (entry for entry in entries if entry.url in self._seen and self._seen[entry.url].is_queued(entry))
        asked = [entry for entry in queued if self.asks_for(entry)]
        asked.sort(key=lambda entry: self._seen[entry.url].compared)
        if not asked:
            return []
        ingest, subscription = self._ingest, self._subscription
        how = dict(zip(("credential", "allow_private"), _access(ingest, subscription), strict=True))
        ends_in = (self._step.request.deadline or math.inf) - ingest.clock().timestamp()
        until = ingest.monotonic() + min(_COMPARE_SECONDS, self._step.seconds_left / 2, ends_in / 2)
        polite = Politeness.from_payload({"politeness": subscription.politeness})
        pacer = Pacer(Politeness(delay_s=polite.delay_s or _COMPARE_PAUSE), time.sleep, ingest.monotonic)
        found: list[Entry] = []
        for entry in asked:
            origin = origin_of_text(entry.url)
            if self._asked >= COMPARED_AT_ONCE or ingest.monotonic() >= until:
                break
            if self._failures[origin] >= _COMPARE_FAILURES:
                continue
            self._step.heartbeat({"compared": self._asked, "to_compare": len(asked)})
            pacer.before_request()
            self._asked += 1
            version = self._ask(entry, origin, how)
            if version is None:
                continue
            known = self._seen[entry.url]
            fingerprint = digest(entry.fingerprint, *map(str, version), length=32)
            if not known.version.differs(version):
                ingest.store.compared(subscription, entry.url, version, self._scan)
            elif fingerprint != known.fingerprint:
                # With an equal fingerprint, an earlier scan has queued the download, and it has not ended.
                self.listed[entry.url] = entry.fingerprint
                found.append(replace(entry, fingerprint=fingerprint, size=None))
        self._left = len(asked) - self._asked
        return found

    def _ask(self, entry: Entry, origin: str, how: Mapping[str, Any]) -> FileVersion | None:
        project_id = self._subscription.project_id
        try:
            self._ingest.host_pauses.not_pausing(project_id, [entry.url])
            version = self._head(entry, how)
        except FetchError as error:
            self._ingest.host_pauses.note(project_id, entry.url, error.retry_after or 0.0)
            # A pause or a failure of the server concerns its other files, too.
            self._failures[origin] += _COMPARE_FAILURES if isinstance(error, NotSent) or error.retry_after else 1
            self._faults.append(f"{entry.url}: {error.detail}")
            return None
        except UrlNotAllowed as error:
            self._faults.append(f"{entry.url}: {error.detail}")
            return None
        self._failures[origin] = 0
        known = self._seen[entry.url].version
        if not version.known() or (known.known() and known.differs(version) is None):
            self._faults.append(f"{entry.url}: the server sends neither ETag, Content-Length nor Last-Modified")
            return None
        return version

    def _head(self, entry: Entry, how: Mapping[str, Any]) -> FileVersion:
        http, more = self._ingest.http, {**how, "limits": _COMPARE_LIMITS, "project_id": self._subscription.project_id}
        plain = {"accept-encoding": "identity"}
        reply = http.send("HEAD", entry.url, headers=plain, **more)
        if reply.status not in _NO_HEAD:
            reply.raise_for_status()
            return version_of(reply.headers)
        known = self._seen[entry.url].version
        headers = plain | {"range": "bytes=0-0"} | ({"if-none-match": known.etag} if known.etag else {})
        with http.stream("GET", entry.url, headers=headers, **more) as stream:
            if stream.status == 304:
                return known
            stream.raise_for_status()
            return version_of(stream.headers)


def _queue_all(
    ingest: Ingest, step: Step, subscription: Subscription, fresh: list[Entry], compared: _Comparison
) -> int:
    """Queues downloads of the entries, several in parallel. Returns how many URLs were refused."""
    refused = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        try:
            # Spread evenly over the lanes, so that as many run at once as the subscription allows.
            lanes = (number % subscription.concurrency for number in range(len(fresh)))
            asked = pool.map(
                lambda entry, lane: _queue(ingest, step, subscription, entry, lane, compared), fresh, lanes
            )
            for number, queued in enumerate(asked):
                refused += not queued
                step.heartbeat({"new": len(fresh), "queued": number + 1 - refused})
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return refused


def _queue(
    ingest: Ingest, step: Step, subscription: Subscription, entry: Entry, lane: int, compared: _Comparison
) -> bool:
    """Queues the download of an entry. False if its URL may not be fetched."""
    announced = Announcement(
        subscription.biz_id, subscription.app_id, entry.path, entry.name, entry.signature, entry.size
    )
    try:
        download(
            ingest,
            subscription.project_id,
            announced,
            entry.url,
            credentials=subscription.credentials,
            channel=step.request.channel,
            priority=step.request.priority,
            fingerprint=entry.fingerprint,
            politeness=subscription.politeness,
            subscription_id=subscription.subscription_id,
            lane=lane,
            compared=compared.asks_for(entry),
            extra_writes=ingest.store.seen_writes(subscription, entry, compared.listed.get(entry.url)),
        )
    except UrlNotAllowed:
        return False
    except Conflict as error:
        _again_or_gone(ingest, subscription, error)
    return True


def _again_or_gone(ingest: Ingest, subscription: Subscription, error: Conflict) -> None:
    """Raises LeaseLost if the subscription was deleted.

    Otherwise an earlier run of this scan has queued the entry, and nothing is left to do.
    """
    present = ingest.store.get(subscription.project_id, subscription.subscription_id)
    if present is None or present.status == DELETING:
        raise LeaseLost("the subscription was deleted") from error
