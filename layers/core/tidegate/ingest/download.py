"""`download`: fetches one file into the library, within the limits that its host asks for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.s3 import StoredObject
from tidegate.aws.table import Table, delete, update
from tidegate.common.ids import Clock, iso
from tidegate.errors import (
    Conflict,
    FetchError,
    NoSpace,
    NotSent,
    QuotaExceeded,
    RecordNotFound,
    SignatureMismatch,
    WorkerLost,
)
from tidegate.files.model import COMING, FAILED, READY, File
from tidegate.files.reading import fault_of, saved_for_request
from tidegate.files.store import Stored
from tidegate.http.guard import host_of, origin_of_text, read_url
from tidegate.ingest import Heartbeat, Step, StepOutcome
from tidegate.ingest.fetch import Fetched, Politeness, Remote, SourceChanged, Wanted, discard_parts, fetch
from tidegate.ingest.model import ingested_object, part_count
from tidegate.ingest.sources import FileVersion
from tidegate.projects.audit import act, audit_write
from tidegate.queue.model import Request
from tidegate.records import F

if TYPE_CHECKING:
    from tidegate.ingest import Ingest

# Shorter pauses are not stored: the download that got the answer waits by itself.
_SHORTEST = 5.0
# The longest pause, as in the queue's policies. A longer Retry-After is probably a mistake.
_LONGEST = 24 * 3600.0


class HostPause(NamedTuple):
    """A pause that a host asked for. Until its end, the project sends no requests to `origin`."""

    origin: Annotated[str, F("scheme, host and, if it is not the usual one, port")]
    until: Annotated[str, F("when the pause is over, ISO 8601 UTC")]


class HostPauses:
    """Stores which hosts asked for a pause (Retry-After). During a pause, the project sends the host no requests."""

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    @contextmanager
    def respected(self, project_id: str, url: str) -> Iterator[None]:
        """Wraps requests to a URL. NotSent during a pause of its host. If the host now asks for a pause, stores it."""
        self.not_pausing(project_id, [url])
        try:
            yield
        except NotSent:
            raise
        except FetchError as error:
            self.note(project_id, url, error.retry_after or 0.0)
            raise

    def not_pausing(self, project_id: str, urls: Sequence[str]) -> list[str]:
        """Returns the URLs whose hosts are not pausing.

        If all hosts are pausing, raises NotSent, to be retried when the first pause ends.
        """
        left = {origin: self._seconds_left(project_id, origin) for origin in dict.fromkeys(map(origin_of_text, urls))}
        found = [url for url in urls if left[origin_of_text(url)] <= 0]
        if not found:
            origin, seconds = min(left.items(), key=lambda one: one[1])
            error = NotSent(f"{origin} asked for a pause, which ends in {math.ceil(seconds)} s", retry_after=seconds)
            error.put_off = True
            raise error
        return found

    def list(self, project_id: str) -> list[HostPause]:
        """Returns the pauses that are not over."""
        now = self._clock().timestamp()
        items = self._table.query_all(keys.host_pauses(project_id), consistent=True)
        return [
            HostPause(item["sk"], iso(datetime.fromtimestamp(int(item["until"]), UTC)))
            for item in items
            if int(item["until"]) > now
        ]

    def clear(self, project_id: str, given: str, who: str) -> None:
        """Ends a pause. `given`: the origin. Its slashes may be missing, because they get lost in the path of a URL."""
        scheme, _, host = given.partition(":")
        origin = origin_of_text(f"{scheme}://{host.lstrip('/')}")
        line = act(project_id, origin, self._clock(), who, "host_pause.clear")
        gone = delete(keys.host_pause(project_id, origin), "attribute_exists(#pk)")
        if not self._table.try_write(gone, audit_write(line)):
            raise RecordNotFound(f"this project makes no pause for {given[:200]}: GET /v1/host-pauses lists the pauses")

    def _seconds_left(self, project_id: str, origin: str) -> float:
        item = self._table.get(keys.host_pause(project_id, origin), consistent=True) or {}
        return float(item.get("until", 0)) - self._clock().timestamp()

    def note(self, project_id: str, url: str, seconds: float) -> None:
        """Stores the pause of `seconds` that the host of a URL asked for. Does nothing if the pause is short."""
        if seconds < _SHORTEST:
            return
        until = math.ceil(self._clock().timestamp() + min(seconds, _LONGEST))
        longer = "attribute_not_exists(#until) OR #until < :new"
        write = update(
            keys.host_pause(project_id, origin_of_text(url)),
            {"until": until, "expires_at": until},
            condition=longer,
            new=until,
        )
        self._table.try_write(write)


# A slot is renewed while bytes come: after this time, the slot of a function that died is free.
LEASE_SECONDS = 180
_RENEW_SECONDS = 30
# A request that found no slot is retried after this time, or after the delay of its type if that is longer.
_RETRY_SECONDS = 15


@contextmanager
def host_slot(
    ingest: Ingest, request: Request, url: str, most: int | None, heartbeat: Heartbeat
) -> Iterator[Heartbeat]:
    """Holds one of the `most` slots for downloads from a host, and yields a heartbeat that also renews the slot.

    NotSent if all slots are taken. The slot is released at the end. If this function was frozen for long, another
    download may have taken the slot: the heartbeat then raises NotSent.
    """
    if most is None:
        yield heartbeat
        return
    host = host_of(read_url(url))
    key = _take_slot(ingest, request, host, most)
    renewed_at = ingest.clock().timestamp()

    def heartbeat_and_renew(progress: Mapping[str, Any]) -> None:
        nonlocal renewed_at
        heartbeat(progress)
        if ingest.clock().timestamp() - renewed_at >= _RENEW_SECONDS:
            if not _write_slot(ingest, request, key, "#owner = :me"):
                raise _no_slot(host, most)
            renewed_at = ingest.clock().timestamp()

    try:
        yield heartbeat_and_renew
    finally:
        ingest.table.try_write(
            update(
                key,
                removes=("owner", "attempt", "until"),
                condition="#owner = :me AND #attempt = :attempt",
                me=request.request_id,
                attempt=request.attempt,
            )
        )


def _take_slot(ingest: Ingest, request: Request, host: str, most: int) -> dict[str, str]:
    free = "attribute_not_exists(#owner) OR #until <= :now OR #owner = :me"
    for number in range(most):
        key = keys.host_slot(request.project_id, host, number)
        if _write_slot(ingest, request, key, free, now=int(ingest.clock().timestamp())):
            return key
    raise _no_slot(host, most)


def _write_slot(ingest: Ingest, request: Request, key: dict[str, str], condition: str, **values: Any) -> bool:
    until = int(ingest.clock().timestamp()) + LEASE_SECONDS
    sets = {"owner": request.request_id, "attempt": request.attempt, "until": until, "expires_at": until + 86400}
    return ingest.table.try_write(update(key, sets, condition=condition, me=request.request_id, **values))


def _no_slot(host: str, most: int) -> NotSent:
    error = NotSent(f"{most} downloads from {host} run already (politeness.host_downloads)", retry_after=_RETRY_SECONDS)
    error.put_off = True
    return error


# --- download
# `download`: fetches a source URL into the library. The file appears only when it is complete and verified.


def download(ingest: Ingest, step: Step) -> StepOutcome:
    """Fetches the file, verifies it and makes it ready. If the time is over, returns a state for another invocation."""
    request = step.request
    file = ingest.files.require(request.project_id, str(request.payload["file_id"]))
    if file.signature and (here := _stored(ingest, request.project_id, file.signature)):
        return _done(ingest, request, file, file.signature, here.size, etag=None, fetched=0)
    wanted = Wanted(
        request,
        ingested_object(request.project_id, request.request_id),
        signed=file.signature is not None,
        require_room=lambda size: _require_room(ingest, request.project_id, size),
    )
    remote = _remote(ingest, step)
    with host_slot(ingest, request, remote.url, remote.politeness.host_downloads, step.heartbeat) as heartbeat:
        got = fetch(ingest, remote, wanted, heartbeat, step.seconds_left)
    if got is None:
        return StepOutcome(state={"goes_on": True})
    kept = _keep(ingest, step, file, got)
    if kept is None:
        return StepOutcome(state={"goes_on": True})
    digest, stored = kept
    done = _done(ingest, request, file, digest, got.size, got.etag, fetched=got.size, stored=stored)

    def after() -> None:
        _forget(ingest, request)
        if request.payload.get("compared") and request.subscription_id:
            of = (request.project_id, request.subscription_id, remote.url, str(request.payload["fingerprint"]))
            etag = got.etag.removeprefix("W/") if got.etag else None
            ingest.store.fetched(*of, FileVersion(etag, got.size))

    return replace(done, after=after)


def discard(ingest: Ingest, request: Request) -> None:
    """Deletes the parts of a request that has ended and cannot be retried."""
    discard_parts(ingest, request)
    _forget(ingest, request)


def _forget(ingest: Ingest, request: Request) -> None:
    ingest.reader.forget(saved_for_request(request.project_id, request.request_id))


def _require_room(ingest: Ingest, project_id: str, size: int) -> None:
    try:
        ingest.files.require_room(project_id, size)
    except QuotaExceeded as error:
        raise NoSpace(f"the file's {size} bytes do not fit into the project's storage: {error.detail}") from error


def _remote(ingest: Ingest, step: Step) -> Remote:
    request = step.request
    url, name = str(request.payload["source_url"]), request.payload.get("credentials")
    credential = ingest.credentials.get(request.project_id, str(name)) if name else None
    allow_private = ingest.projects.get(request.project_id).allow_private_urls
    # A subscription's list may name files on other servers: these are fetched without its credential.
    if credential and not request.subscription_id:
        credential.require(url, plain_text=allow_private)
    named = [url, *(str(mirror) for mirror in request.payload.get("mirrors") or ())]
    first, *mirrors = ingest.host_pauses.not_pausing(request.project_id, named)
    return Remote(
        first,
        credential,
        allow_private,
        request.project_id,
        tuple(mirrors),
        Politeness.from_payload(request.payload),
        on_pause=lambda asked, seconds: ingest.host_pauses.note(request.project_id, asked, seconds),
    )


def _is_here(ingest: Ingest, project_id: str, signature: str) -> bool:
    return _stored(ingest, project_id, signature) is not None


def _stored(ingest: Ingest, project_id: str, signature: str) -> StoredObject | None:
    """Returns the project's object with this content. None if the project has no such object."""
    key = ingest.files.ready_object(project_id, signature)
    return ingest.parts.head(key) if key else None


def _keep(ingest: Ingest, step: Step, file: File, got: Fetched) -> tuple[str, Stored | None] | None:
    """Verifies and stores what was fetched. Returns (SHA-256, object).

    The object is None if the content was stored before. Returns None if another invocation must continue: it reads the
    object from S3 to get its SHA-256.
    """
    project_id = step.request.project_id
    if got.small is not None and got.digest is not None:
        check_announced(file, got.size, got.digest)
        if _is_here(ingest, project_id, got.digest):
            return got.digest, None
        # Use a new key: the deletion of an earlier file with this content may still be on its way to S3.
        key = ingested_object(project_id, step.request.request_id)
        return got.digest, Stored(key, ingest.parts.put(key, got.small))
    key, upload_id = got.upload or ("", "")
    try:
        if got.digest is not None:
            check_announced(file, got.size, got.digest)
        whole = ingest.parts.complete(key, upload_id, part_count(got.size))
        return _placed(ingest, step, key, file, got, whole)
    except SignatureMismatch:
        ingest.parts.abort_upload(key, upload_id)
        discard(ingest, step.request)
        raise
    except (Conflict, RecordNotFound) as error:
        # The step ran twice, and the other run has finished: the next attempt finds what that one stored.
        discard(ingest, step.request)
        raise WorkerLost(
            "another run of this request completed or deleted the upload; the next attempt continues"
        ) from error


def _placed(
    ingest: Ingest, step: Step, key: str, file: File, got: Fetched, whole: StoredObject
) -> tuple[str, Stored | None] | None:
    project_id = step.request.project_id
    digest = got.digest or _read_again(ingest, step, key, whole)
    if digest is None:
        return None
    try:
        check_announced(file, whole.size, digest)
    except SignatureMismatch as error:
        ingest.parts.delete(key)
        if got.validated:
            raise
        # The source sends no ETag or Last-Modified, so this may be a mixture of two versions: fetch it again.
        discard(ingest, step.request)
        raise SourceChanged(error.detail) from error
    if _is_here(ingest, project_id, digest):
        # Keep it if it is the content's object: another run of this step may have stored it.
        if ingest.files.object_of(project_id, digest) != key:
            ingest.parts.delete(key)
        return digest, None
    return digest, Stored(key, whole.etag)


def _read_again(ingest: Ingest, step: Step, key: str, stored: StoredObject) -> str | None:
    """Reads the object from S3 and returns its SHA-256. Needed because several invocations have fetched its parts.

    None if another invocation must continue.
    """
    turn = step.turn(lambda _: {"bytes": stored.size, "total": stored.size, "step": "verify"})
    read = ingest.reader.check(key, stored, turn, pieces=False)
    return read.signature if read else None


def _done(
    ingest: Ingest,
    request: Request,
    file: File,
    digest: str,
    size: int | None,
    etag: str | None,
    fetched: int,
    stored: Stored | None = None,
) -> StepOutcome:
    ready = replace(file, state=READY, signature=digest, size=size, source_etag=etag, error=None)
    result: dict[str, Any] = {"file_id": file.file_id, "signature": digest, "size": size, "fetched_bytes": fetched}
    try:
        writes = ingest.files.finish_writes(ready, was=(COMING, FAILED), stored=stored)
    except QuotaExceeded as error:
        raise NoSpace(f"the file's {size} bytes do not fit into the project's storage: {error.detail}") from error
    return StepOutcome(result, [*writes, ingest.unfinished.forget_write(request)])


def check_announced(file: File, size: int, digest: str) -> None:
    """Raises SignatureMismatch if size or SHA-256 of the content are not as announced."""
    if fault := fault_of(file, size, digest):
        raise SignatureMismatch(fault)
