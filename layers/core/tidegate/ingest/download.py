"""`download`: brings one file into the library, politely to its host."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.s3 import MultipartStore, StoredObject
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
from tidegate.files.reading import TurnReader, fault_of, saved_for_request
from tidegate.files.store import FileStore, Stored
from tidegate.http.guard import host_of, origin_of_text, read_url
from tidegate.ingest.fetch import Fetcher, SourceChanged, UnfinishedStore
from tidegate.ingest.model import ingested_object, part_count
from tidegate.ingest.values import Fetched, Heartbeat, Outcome, Politeness, Remote, Step, Wanted
from tidegate.projects.audit import act, audit_write
from tidegate.projects.projects import Projects
from tidegate.projects.secrets import CredentialStore
from tidegate.queue.model import Request

# --- host pauses
# Hosts that asked for a pause (Retry-After). The project sends them no requests until it is over.

# Shorter pauses are not stored: the download that got the answer waits by itself.
_SHORTEST = 5.0
# As in the queue's policies. A longer Retry-After is probably a mistake.
_LONGEST = 24 * 3600.0


class HostPause(NamedTuple):
    """The project sends no requests to the origin until the pause is over."""

    origin: str
    until: str


class HostPauses:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    @contextmanager
    def kept(self, project_id: str, url: str) -> Iterator[None]:
        """Wraps requests to a URL. NotSent while its host is pausing; stores a Retry-After that the host answers."""
        self.awake(project_id, [url])
        try:
            yield
        except NotSent:
            raise
        except FetchError as error:
            self.note(project_id, url, error.retry_after or 0.0)
            raise

    def awake(self, project_id: str, urls: Sequence[str]) -> list[str]:
        """The URLs whose hosts are not pausing. NotSent if all are, with the seconds until the first pause ends."""
        left = {origin: self._seconds_left(project_id, origin) for origin in dict.fromkeys(map(origin_of_text, urls))}
        found = [url for url in urls if left[origin_of_text(url)] <= 0]
        if not found:
            origin, seconds = min(left.items(), key=lambda one: one[1])
            error = NotSent(f"{origin} asked for a pause, which ends in {math.ceil(seconds)} s", retry_after=seconds)
            error.put_off = True
            raise error
        return found

    def list(self, project_id: str) -> list[HostPause]:
        """The pauses that are not over."""
        now = self._clock().timestamp()
        items = self._table.query_all(keys.host_pauses(project_id), consistent=True)
        return [
            HostPause(item["sk"], iso(datetime.fromtimestamp(int(item["until"]), UTC)))
            for item in items
            if int(item["until"]) > now
        ]

    def clear(self, project_id: str, given: str, who: str) -> None:
        """Ends a pause. `given` is the origin, with or without its slashes, which do not survive in a path."""
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
        """Stores the pause that the host asked for, unless it is short."""
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


# --- host slots
# Limits how many downloads a project runs from one host at once, over all functions. Each holds a slot as a lease.

# Renewed while bytes come. So the slot of a function that died is free after this time.
LEASE_SECONDS = 180
_RENEW_SECONDS = 30
# A request that found no slot is retried after this time, or after the delay of its type if that is longer.
_RETRY_SECONDS = 15


class HostSlots:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    @contextmanager
    def held(self, request: Request, url: str, most: int | None, heartbeat: Heartbeat) -> Iterator[Heartbeat]:
        """Holds a slot, and yields a heartbeat that also renews it. NotSent if `most` downloads run already.

        The slot is released at the end. The heartbeat raises NotSent if another download took the slot after a long
        freeze.
        """
        if most is None:
            yield heartbeat
            return
        host = host_of(read_url(url))
        key = self._take(request, host, most)
        renewed_at = self._now()

        def heartbeat_and_renew(progress: Mapping[str, Any]) -> None:
            nonlocal renewed_at
            heartbeat(progress)
            if self._now() - renewed_at >= _RENEW_SECONDS:
                if not self._write(request, key, "#owner = :me"):
                    raise _no_slot(host, most)
                renewed_at = self._now()

        try:
            yield heartbeat_and_renew
        finally:
            self._table.try_write(
                update(
                    key,
                    removes=("owner", "attempt", "until"),
                    condition="#owner = :me AND #attempt = :attempt",
                    me=request.request_id,
                    attempt=request.attempt,
                )
            )

    def _take(self, request: Request, host: str, most: int) -> dict[str, str]:
        free = "attribute_not_exists(#owner) OR #until <= :now OR #owner = :me"
        for number in range(most):
            key = keys.host_slot(request.project_id, host, number)
            if self._write(request, key, free, now=int(self._now())):
                return key
        raise _no_slot(host, most)

    def _write(self, request: Request, key: dict[str, str], condition: str, **values: Any) -> bool:
        until = int(self._now()) + LEASE_SECONDS
        sets = {"owner": request.request_id, "attempt": request.attempt, "until": until, "expires_at": until + 86400}
        return self._table.try_write(update(key, sets, condition=condition, me=request.request_id, **values))

    def _now(self) -> float:
        return self._clock().timestamp()


def _no_slot(host: str, most: int) -> NotSent:
    error = NotSent(f"{most} downloads from {host} run already (politeness.host_downloads)", retry_after=_RETRY_SECONDS)
    error.put_off = True
    return error


# --- download
# `download`: fetches a source URL into the library. The file appears only when it is complete and verified.


class Download:
    def __init__(
        self,
        fetcher: Fetcher,
        parts: MultipartStore,
        reader: TurnReader,
        files: FileStore,
        projects: Projects,
        credentials: CredentialStore,
        unfinished: UnfinishedStore,
        pauses: HostPauses,
        slots: HostSlots,
    ) -> None:
        self._fetcher = fetcher
        self._parts = parts
        self._reader = reader
        self._files = files
        self._projects = projects
        self._credentials = credentials
        self._unfinished = unfinished
        self._pauses = pauses
        self._slots = slots

    def __call__(self, step: Step) -> Outcome:
        request = step.request
        file = self._files.require(request.project_id, str(request.payload["file_id"]))
        if file.signature and (here := self._stored(request.project_id, file.signature)):
            return self._done(request, file, file.signature, here.size, etag=None, fetched=0)
        wanted = Wanted(
            request,
            ingested_object(request.project_id, request.request_id),
            signed=file.signature is not None,
            require_room=lambda size: self._require_room(request.project_id, size),
        )
        remote = self._remote(step)
        with self._slots.held(request, remote.url, remote.politeness.host_downloads, step.heartbeat) as heartbeat:
            got = self._fetcher.fetch(remote, wanted, heartbeat, step.seconds_left)
        if got is None:
            return Outcome(state={"goes_on": True})
        kept = self._keep(step, file, got)
        if kept is None:
            return Outcome(state={"goes_on": True})
        digest, stored = kept
        done = self._done(request, file, digest, got.size, got.etag, fetched=got.size, stored=stored)
        return replace(done, after=lambda: self._forget(request))

    def stored_since(self, request: Request, moment: datetime) -> bool:
        """Whether a part of the file was stored at that moment or later."""
        return self._fetcher.stored_since(request, moment)

    def discard(self, request: Request) -> None:
        """Deletes the parts of a request that has ended and cannot be retried."""
        self._fetcher.discard(request)
        self._forget(request)

    def _forget(self, request: Request) -> None:
        self._reader.forget(saved_for_request(request.project_id, request.request_id))

    def _require_room(self, project_id: str, size: int) -> None:
        try:
            self._files.require_room(project_id, size)
        except QuotaExceeded as error:
            raise NoSpace(f"the file's {size} bytes do not fit into the project's storage: {error.detail}") from error

    def _remote(self, step: Step) -> Remote:
        request = step.request
        url, name = str(request.payload["source_url"]), request.payload.get("credentials")
        credential = self._credentials.get(request.project_id, str(name)) if name else None
        allow_private = self._projects.get(request.project_id).allow_private_urls
        # A subscription's list may name files on other servers: these are fetched without its credential.
        if credential and not request.subscription_id:
            credential.require(url, plain_text=allow_private)
        named = [url, *(str(mirror) for mirror in request.payload.get("mirrors") or ())]
        first, *mirrors = self._pauses.awake(request.project_id, named)
        return Remote(
            first,
            credential,
            allow_private,
            request.project_id,
            tuple(mirrors),
            Politeness.of(request.payload),
            on_pause=lambda asked, seconds: self._pauses.note(request.project_id, asked, seconds),
        )

    def _is_here(self, project_id: str, signature: str) -> bool:
        return self._stored(project_id, signature) is not None

    def _stored(self, project_id: str, signature: str) -> StoredObject | None:
        """The project's object with this content, if it has one."""
        known = self._files.has_content(project_id, signature)
        return self._parts.head(self._files.object_of(project_id, signature)) if known else None

    def _keep(self, step: Step, file: File, got: Fetched) -> tuple[str, Stored | None] | None:
        """Verifies what was fetched. Returns its SHA-256 and its object; no object if the content is stored already.

        None if it must be read from S3 for its SHA-256, and another invocation must continue.
        """
        project_id = step.request.project_id
        if got.small is not None and got.digest is not None:
            check(file, got.size, got.digest)
            if self._is_here(project_id, got.digest):
                return got.digest, None
            # A key of its own: the deletion of an earlier file with this content may still be on its way to S3.
            key = ingested_object(project_id, step.request.request_id)
            return got.digest, Stored(key, self._parts.put(key, got.small))
        key, upload_id = got.upload or ("", "")
        try:
            if got.digest is not None:
                check(file, got.size, got.digest)
            whole = self._parts.complete(key, upload_id, part_count(got.size))
            return self._placed(step, key, file, got, whole)
        except SignatureMismatch:
            self._parts.abort_upload(key, upload_id)
            self.discard(step.request)
            raise
        except (Conflict, RecordNotFound) as error:
            # The step ran twice, and the other run has finished: the next attempt finds what that one stored.
            self.discard(step.request)
            raise WorkerLost(
                "another run of this request completed or deleted the upload; the next attempt continues"
            ) from error

    def _placed(
        self, step: Step, key: str, file: File, got: Fetched, whole: StoredObject
    ) -> tuple[str, Stored | None] | None:
        project_id = step.request.project_id
        digest = got.digest or self._read_again(step, key, whole)
        if digest is None:
            return None
        try:
            check(file, whole.size, digest)
        except SignatureMismatch as error:
            self._parts.delete(key)
            if got.validated:
                raise
            # The source sends no ETag or Last-Modified, so this may be a mixture of two versions: fetch it again.
            self.discard(step.request)
            raise SourceChanged(error.detail) from error
        if self._is_here(project_id, digest):
            # Unless it is the content's object: another run of this step may have stored it.
            if self._files.object_of(project_id, digest) != key:
                self._parts.delete(key)
            return digest, None
        return digest, Stored(key, whole.etag)

    def _read_again(self, step: Step, key: str, stored: StoredObject) -> str | None:
        """The SHA-256 of the object, read from S3, because its parts were fetched by several invocations.

        None if another invocation must continue.
        """
        turn = step.turn(lambda _: {"bytes": stored.size, "total": stored.size, "step": "verify"})
        read = self._reader.check(key, stored, turn, pieces=False)
        return read.signature if read else None

    def _done(
        self,
        request: Request,
        file: File,
        digest: str,
        size: int | None,
        etag: str | None,
        fetched: int,
        stored: Stored | None = None,
    ) -> Outcome:
        ready = replace(file, state=READY, signature=digest, size=size, source_etag=etag, error=None)
        result: dict[str, Any] = {"file_id": file.file_id, "signature": digest, "size": size, "fetched_bytes": fetched}
        try:
            writes = self._files.finish_writes(ready, was=(COMING, FAILED), stored=stored)
        except QuotaExceeded as error:
            raise NoSpace(f"the file's {size} bytes do not fit into the project's storage: {error.detail}") from error
        return Outcome(result, [*writes, self._unfinished.forget_write(request)])


def check(file: File, size: int, digest: str) -> None:
    """SignatureMismatch if the content is not what was announced."""
    if fault := fault_of(file, size, digest):
        raise SignatureMismatch(fault)
