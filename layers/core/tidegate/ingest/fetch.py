"""Fetches a file over HTTP, from mirrors too, as one stream or in parallel ranges. Later invocations can continue."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, Write, delete, put
from tidegate.common.ids import Clock
from tidegate.common.token_bucket import TokenBucket
from tidegate.errors import (
    ConnectionFailed,
    ContentTooLarge,
    DomainError,
    FetchError,
    FetchTimeout,
    LeaseLost,
    NotSent,
    UpstreamError,
)
from tidegate.http.client import Stream
from tidegate.http.guard import Credential
from tidegate.http.model import Limits
from tidegate.ingest import Heartbeat, model
from tidegate.ingest.model import MAX_BYTES, Source, parts_of, range_of, source_of, total_of
from tidegate.queue.model import Request

if TYPE_CHECKING:
    from tidegate.ingest import Ingest


@dataclass(frozen=True, slots=True)
class Politeness:
    """Limits of a download, for the sake of its host. None means no limit, and so does a delay of 0.

    The operator's limits for hosts apply as well.
    """

    connections: int | None = None
    bytes_per_s: int | None = None
    delay_s: float = 0.0
    # Parallel downloads of the project from the host. The other limits are per download.
    host_downloads: int | None = None

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> Politeness:
        given = payload.get("politeness") or {}
        delay_s = float(given.get("delay_s") or 0)
        return cls(given.get("connections"), given.get("bytes_per_s"), delay_s, given.get("host_downloads"))


NO_LIMITS = Politeness()


class Pacer:
    """Keeps all threads of one download within its limits."""

    def __init__(
        self, politeness: Politeness, wait: Callable[[float], object], monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        """`wait` sleeps for the given number of seconds, or raises an error if the download must stop."""
        self._politeness = politeness
        self._wait = wait
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._next_request = 0.0
        rate = politeness.bytes_per_s
        self._bucket = TokenBucket(rate, monotonic()) if rate else None

    def before_request(self) -> None:
        """Waits until the delay since the previous request is over."""
        if not self._politeness.delay_s:
            return
        with self._lock:
            now = self._monotonic()
            at = max(now, self._next_request)
            self._next_request = at + self._politeness.delay_s
        if at > now:
            self._wait(at - now)

    def after_bytes(self, count: int) -> None:
        """Waits until more bytes may be read. TCP's flow control slows the source down during the wait."""
        if self._bucket is None:
            return
        while True:
            with self._lock:
                seconds = self._bucket.take(self._monotonic(), count)
            if seconds <= 0:
                return
            self._wait(min(max(seconds, 0.001), 1.0))


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    credential: Credential | None = None
    allow_private: bool = False
    project_id: str = ""
    # Other URLs of the file: used in this order if the first fails; in parallel with it if they have the same version.
    mirrors: tuple[str, ...] = ()
    politeness: Politeness = NO_LIMITS
    # Called with the URL and the seconds if a host asks for a pause.
    on_pause: Callable[[str, float], None] = lambda _url, _seconds: None

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.mirrors)


@dataclass(frozen=True, slots=True)
class Wanted:
    """Where to store a download. `signed`: its SHA-256 was announced and will be verified.

    `require_room` raises an error if the size exceeds the quota.
    """

    request: Request
    key: str
    signed: bool = False
    require_room: Callable[[int], None] = lambda _size: None


@dataclass(frozen=True, slots=True)
class Fetched:
    """Fetched content. It is in `small` if it fits into one part, else in `upload`, as (key, upload id).

    If `digest` is None, the content has to be read from S3 to get its SHA-256.
    """

    size: int
    etag: str | None
    digest: str | None
    upload: tuple[str, str] | None = None
    small: bytearray | None = None
    # Whether ETag or Last-Modified showed that all parts are of one version.
    validated: bool = True


# --- ranges
# Checks that answers are the requested ranges, of one version of a file.

_CHUNK = 256 * 1024


class SourceChanged(UpstreamError):
    """The source sent another version of the file than before, or did not send the requested bytes."""


class Ranged(AbstractContextManager[Stream]):
    """A stream that must have the requested range, of the same version as the other parts.

    If it has not, entering the context raises SourceChanged.
    """

    def __init__(self, opened: AbstractContextManager[Stream], start: int, last: int, source: Source) -> None:
        self._opened = opened
        self._start = start
        self._last = last
        self._source = source

    def __enter__(self) -> Stream:
        stream = self._opened.__enter__()
        try:
            self._check(stream)
        except BaseException as error:
            self._opened.__exit__(type(error), error, error.__traceback__)
            raise
        return stream

    def _check(self, stream: Stream) -> None:
        if stream.status == 412:
            raise SourceChanged("the source changed while it was fetched: it answered 412")
        if stream.status == 416:
            raise SourceChanged("the source became shorter while it was fetched: it answered 416")
        stream.raise_for_status()
        start, last = range_of(stream.headers) or (None, 0)
        # The range may end earlier: the rest is requested again.
        if stream.status != 206 or start != self._start or last > self._last:
            raise SourceChanged(f"the source answered {stream.status} instead of the requested range")
        if not self._source.is_same(stream.headers):
            raise SourceChanged("the source changed while it was fetched: its ETag, Last-Modified or size differs")

    def __exit__(self, *error: object) -> bool | None:
        return self._opened.__exit__(*error)  # type: ignore[arg-type]


def chunks_until_break(stream: Stream, source: Source, most: int | None) -> Iterator[bytes]:
    """Yields the chunks of a stream, until its end or until the connection breaks.

    If the size is known, a break raises no error, because the caller sees how many bytes are missing. If the size is
    not known, the error is raised. SourceChanged as soon as more than `most` bytes come; None allows any number.
    """
    got = 0
    try:
        for chunk in stream.chunks(_CHUNK):
            got += len(chunk)
            if most is not None and got > most:
                # It does not implement ranges or lengths correctly, so none of its bytes can be trusted.
                raise SourceChanged(f"the source sent more than the {most} bytes that were requested or announced")
            yield chunk
    except (ConnectionFailed, FetchTimeout):
        if source.size is None:
            raise


# --- unfinished
# Unfinished downloads: what a later invocation or attempt needs to continue them.
#
# The parts are in S3, which also lists them, so nothing is stored in the table for a single part.

# A paused or failed request can be resumed for this long.
_KEPT_SECONDS = 30 * 86400


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A multipart upload, and the version of the source that its parts belong to."""

    key: str
    upload_id: str
    url: str
    size: int | None
    etag: str | None
    last_modified: str | None
    ranges: bool

    @property
    def source(self) -> Source:
        return Source(self.size, self.etag, self.ranges, self.last_modified)


_FIELDS = tuple(field.name for field in fields(Unfinished))


class UnfinishedStore:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def get(self, request: Request) -> Unfinished | None:
        item = self._table.get(keys.unfinished(request.project_id, request.request_id), consistent=True)
        return _from(item) if item else None

    def begin(self, request: Request, begun: Unfinished) -> Unfinished:
        """Stores `begun`, unless another run of the same step was first. Returns the record that is stored then."""
        key = keys.unfinished(request.project_id, request.request_id)
        item = key | asdict(begun) | {"expires_at": int(self._clock().timestamp()) + _KEPT_SECONDS}
        try:
            self._table.write(put(item, "attribute_not_exists(#pk)"))
        except ConditionFailed as error:
            return _from(error.item) if error.item else begun
        return begun

    def forget(self, request: Request, begun: Unfinished) -> None:
        """Deletes the record of this download. If a newer download has stored a record, that one stays."""
        key = keys.unfinished(request.project_id, request.request_id)
        try:
            self._table.write(delete(key, "#upload_id = :mine", mine=begun.upload_id))
        except ConditionFailed:
            return

    def forget_write(self, request: Request) -> Write:
        return delete(keys.unfinished(request.project_id, request.request_id))


def _from(item: dict[str, Any]) -> Unfinished:
    return Unfinished(**{name: item.get(name) for name in _FIELDS})  # type: ignore[arg-type]


# How many parts are in memory at once: being fetched, being stored, or waiting to be hashed.
WINDOW = 4
# How often a waiting run checks whether its request was cancelled or paused.
_LOOK_SECONDS = 1.0

# Fetches one part and stores it.
PartJob = Callable[[], bytearray]


class FetchRun:
    """The state of a download within one invocation: time left, limits, progress and the digest so far."""

    def __init__(self, ingest: Ingest, remote: Remote, wanted: Wanted, heartbeat: Heartbeat, until: float) -> None:
        self.ingest = ingest
        self.store = ingest.parts
        self.remote = remote
        self.wanted = wanted
        self._heartbeat = heartbeat
        self._until = until
        self._monotonic = ingest.monotonic
        self._stopped = threading.Event()
        self.pacer = Pacer(remote.politeness, self.rest, ingest.monotonic)
        self._at_once = min(WINDOW, remote.politeness.connections or WINDOW)
        self.digest = hashlib.sha256()
        # Bytes stored so far, and the expected total.
        self.taken = 0
        self.total: int | None = None
        # The bytes that earlier runs had stored, and the time when this run began.
        self.resumed, self._began_at = 0, ingest.monotonic()
        # Whether a multipart upload was begun. Then no other URL is tried, because it would begin a second one.
        self.began = False

    @property
    def seconds_left(self) -> float:
        return self._until - self._monotonic()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Stream]:
        """Sends a GET and yields its answer. Passes a Retry-After to `Remote.on_pause`."""
        left = self.seconds_left
        if left <= 0:
            raise FetchTimeout(
                "the download takes longer than one invocation, and the source does not support ranges to continue it"
            )
        self.pacer.before_request()
        try:
            with self.ingest.http.stream(
                "GET",
                url,
                headers=headers or {},
                credential=self.remote.credential,
                allow_private=self.remote.allow_private,
                limits=Limits(total=left, max_bytes=MAX_BYTES),
                project_id=self.remote.project_id,
            ) as stream:
                yield stream
        except FetchError as error:
            if error.retry_after:
                self.remote.on_pause(url, error.retry_after)
            raise

    def range(self, url: str, start: int, last: int, source: Source) -> AbstractContextManager[Stream]:
        """Requests the bytes `start` to `last` of this version. SourceChanged if the source has another version."""
        asked = self.open(url, {"range": f"bytes={start}-{last}", **source.conditions()})
        return Ranged(asked, start, last, source)

    def rest(self, seconds: float) -> None:
        if self._stopped.wait(seconds):
            raise LeaseLost("the download was stopped")

    def require_running(self) -> None:
        if self._stopped.is_set():
            raise LeaseLost("the download was stopped")

    def report_progress(self) -> None:
        """Reports the progress. Raises if the request was cancelled or paused."""
        seconds = self._monotonic() - self._began_at
        speed = round((self.taken - self.resumed) / seconds) if seconds > 0 else 0
        fetched = self.taken - self.resumed
        self._heartbeat({"bytes": self.taken, "total": self.total, "bytes_per_s": speed, "fetched": fetched})

    def put_part(self, key: str, upload_id: str, number: int, piece: bytearray) -> bytearray:
        self.store.put_part(key, upload_id, number, piece)
        return piece

    def pump(self, jobs: Iterator[PartJob], *, hashed: bool = False) -> None:
        """Runs jobs in parallel and counts their parts in order. At most WINDOW parts are in memory."""
        window: deque[Future[bytearray]] = deque()
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                for job in jobs:
                    window.append(pool.submit(job))
                    if len(window) >= self._at_once:
                        self._count(self._result(window.popleft()), hashed=hashed)
                while window:
                    self._count(self._result(window.popleft()), hashed=hashed)
            except BaseException:
                self._stopped.set()
                for future in window:
                    future.cancel()
                raise

    def _count(self, piece: bytearray, *, hashed: bool) -> None:
        if hashed:
            self.digest.update(piece)
        self.taken += len(piece)
        if self.taken > MAX_BYTES:
            raise ContentTooLarge(f"the source sent more than {MAX_BYTES} bytes, the most that a file may have")
        self.report_progress()

    def _result(self, future: Future[bytearray]) -> bytearray:
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self.report_progress()
        return future.result()


# If a source asks for a longer pause, a mirror or the next attempt continues.
LONGEST_PAUSE = 20.0
# A URL that failed this often in a row is not used again while there are others.
_MOST_FAILURES = 2


@dataclass(slots=True)
class Address:
    """A URL of the file. `source` is what this URL says of the file: mirrors may have different ETags for one file."""

    url: str
    source: Source
    failures: int = 0


class Mirrors:
    """The URLs from which a file's parts are fetched: the first one, and mirrors with the same version of the file."""

    def __init__(self, run: FetchRun, url: str, source: Source, *, rests: bool = False) -> None:
        """`rests`: the host of `url` asked for a pause, so only mirrors may be used."""
        self._run = run
        self._source = source
        self._first = url
        self._addresses = [] if rests else [Address(url, source)]
        self._lock = threading.Lock()

    def find(self, urls: Iterable[str]) -> None:
        """Adds those URLs that have the same version of the file: the same size, and the same ETag or Last-Modified."""
        for url in urls:
            if url == self._first:
                continue
            try:
                with self._run.open(url, {"range": "bytes=0-0"}) as stream:
                    mirror = replace(source_of(stream.headers), size=total_of(stream.headers), ranges=True)
                    if stream.status == 206 and _agree(self._source, mirror):
                        self._addresses.append(Address(url, mirror))
            except FetchError:
                continue

    def __len__(self) -> int:
        return len(self._addresses)

    def at(self, number: int) -> Address:
        """Returns the address for part `number`. Parts are spread evenly over the addresses."""
        with self._lock:
            return self._addresses[number % len(self._addresses)]

    def worked(self, address: Address) -> None:
        address.failures = 0

    def leave_out(self, address: Address, error: FetchError) -> bool:
        """Counts a failure of an address. Returns whether it was removed, so that another one can be used at once."""
        with self._lock:
            address.failures += 1
            changed = isinstance(error, SourceChanged)
            hopeless = changed or not error.retryable or (error.retry_after or 0.0) > LONGEST_PAUSE
            others = [other for other in self._addresses if other is not address]
            if not others or (changed and address.url == self._first):
                return False
            if hopeless or address.failures >= _MOST_FAILURES:
                self._addresses = others
                return True
            return False


def _agree(one: Source, other: Source) -> bool:
    """Whether two URLs have the same version: the same size, and the same ETag or Last-Modified.

    Mirrors often have the same Last-Modified, but other ETags.
    """
    same_etag = one.strong_etag is not None and one.strong_etag == other.strong_etag
    same_time = one.last_modified is not None and one.last_modified == other.last_modified
    return one.size == other.size and (same_etag or same_time)


# --- one stream
# Fetches a file as one stream: small files, and sources without ranges or without ETag and Last-Modified.

# How often a broken connection is opened again.
_MOST_CUTS = 5


def _fetch_stream(run: FetchRun, source: Source, stream: Stream) -> Fetched:
    """Reads the stream to its end and returns the content. If the connection breaks, continues with a new one."""
    pieces = _pieces(run, source, stream)
    first = next(pieces, bytearray())
    if len(first) < model.PART_BYTES:
        run.taken = len(first)
        run.report_progress()
        return Fetched(len(first), source.etag, run.digest.hexdigest(), small=first)
    run.began = True
    key = run.wanted.key
    upload_id = run.store.begin_upload(key)

    def jobs() -> Iterator[PartJob]:
        yield lambda: run.put_part(key, upload_id, 1, first)
        for number, piece in enumerate(pieces, 2):
            yield lambda number=number, piece=piece: run.put_part(  # type: ignore[misc]
                key, upload_id, number, piece
            )

    try:
        run.pump(jobs())
    except BaseException:
        run.store.abort_upload(key, upload_id)
        raise
    return Fetched(run.taken, source.etag, run.digest.hexdigest(), (key, upload_id))


def _pieces(run: FetchRun, source: Source, stream: Stream) -> Iterator[bytearray]:
    piece, got = bytearray(), 0
    for chunk in _chunks(run, source, stream):
        run.report_progress()
        run.pacer.after_bytes(len(chunk))
        run.digest.update(chunk)
        got += len(chunk)
        piece += chunk
        if len(piece) >= model.PART_BYTES:
            yield piece[: model.PART_BYTES]
            piece = piece[model.PART_BYTES :]
    if source.size is not None and got != source.size:
        raise ConnectionFailed(f"the source sent {got} of {source.size} bytes")
    if piece:
        yield piece


def _chunks(run: FetchRun, source: Source, stream: Stream) -> Iterator[bytes]:
    """Yields the stream's bytes. If the connection breaks, opens a new one and continues at the same byte."""
    got, cuts = 0, 0
    for chunk in chunks_until_break(stream, source, source.size):
        got += len(chunk)
        yield chunk
    while source.size is not None and got < source.size:
        cuts += 1
        if cuts > _MOST_CUTS:
            raise ConnectionFailed(
                f"the connection broke {cuts} times, the last time after {got} of {source.size} bytes"
            )
        with _rest(run, source, got) as rest:
            again = rest.status == 200
            for chunk in (
                _after_known(run, source, rest, got) if again else chunks_until_break(rest, source, source.size - got)
            ):
                got += len(chunk)
                yield chunk


def _rest(run: FetchRun, source: Source, got: int) -> AbstractContextManager[Stream]:
    if got and source.ranges and (source.validated or run.wanted.signed) and source.size is not None:
        return run.range(run.remote.url, got, source.size - 1, source)
    return run.open(run.remote.url)


def _after_known(run: FetchRun, source: Source, stream: Stream, got: int) -> Iterator[bytes]:
    """Yields the bytes after the first `got`, from a source that sends the whole file again.

    SourceChanged if the first `got` bytes are not the same as before.
    """
    stream.raise_for_status()
    again, left = hashlib.sha256(), got
    for chunk in chunks_until_break(stream, source, source.size):
        run.report_progress()
        known, new = chunk[:left], chunk[left:]
        again.update(known)
        left -= len(known)
        if left == 0 and known and again.digest() != run.digest.digest():
            raise SourceChanged(
                "the source changed while it was fetched: after a broken connection it sent other bytes"
            )
        if new:
            yield new


# --- parts
# Fetches ranges of one version of a file in parallel. Parts that S3 has are not fetched again.

# How often in a row a part is requested without receiving a byte of it.
_TRIES = 5
_FIRST_PAUSE = 0.5
# No part is begun when fewer seconds of the invocation are left, so that running ones can finish.
_RESERVE_SECONDS = 45.0
# A function reads from S3 and hashes at least this many bytes per second.
_HASHED_PER_SECOND = 50 * 1024 * 1024


def _probed(run: FetchRun, source: Source) -> Source:
    """Returns the source, with `ranges` set if it answers a request for a range.

    Not every server that can send ranges says so.
    """
    size = source.size
    if source.ranges or size is None or size < model.PARALLEL_FROM or not source.validated:
        return source
    able = replace(source, ranges=True)
    try:
        with run.range(run.remote.url, size - 1, size - 1, able):
            return able
    except FetchError:
        return source


def _start_parts(run: FetchRun, source: Source) -> Fetched | None:
    mirrors = Mirrors(run, run.remote.url, source)
    mirrors.find(run.remote.mirrors)
    return _fetch_parts(run, _begin(run, source), {}, mirrors)


def _resume_parts(run: FetchRun, begun: Unfinished) -> Fetched | None:
    stored = run.store.parts(begun.key, begun.upload_id)
    run.total = begun.size
    if stored is None:
        if run.store.head(begun.key) is None:
            raise SourceChanged("the stored parts are gone: the download starts again")
        # An earlier run completed the upload, then died.
        return _whole(begun, None)
    mirrors = Mirrors(run, begun.url, begun.source, rests=begun.url not in run.remote.urls)
    mirrors.find(run.remote.urls)
    if not mirrors:
        error = NotSent(
            "the source asked for a pause, and no mirror has the same version of the file", retry_after=LONGEST_PAUSE
        )
        error.put_off = True
        raise error
    return _fetch_parts(run, begun, stored, mirrors)


def _begin(run: FetchRun, source: Source) -> Unfinished:
    run.began = True
    upload_id = run.store.begin_upload(run.wanted.key)
    version = (source.size, source.etag, source.last_modified, source.ranges)
    mine = Unfinished(run.wanted.key, upload_id, run.remote.url, *version)
    begun = run.ingest.unfinished.begin(run.wanted.request, mine)
    if begun.upload_id != upload_id:
        # Another run of this step began an upload first: continue that one.
        run.store.abort_upload(run.wanted.key, upload_id)
        if begun.source != source:
            raise SourceChanged(
                "another run of this request found another version of the source: the download starts again"
            )
    return begun


def _fetch_parts(run: FetchRun, begun: Unfinished, stored: Mapping[int, object], mirrors: Mirrors) -> Fetched | None:
    size = begun.size or 0
    missing = [part for part in parts_of(size) if part[0] not in stored]
    before = run.taken = run.resumed = size - sum(last - start + 1 for _, start, last in missing)

    def jobs() -> Iterator[PartJob]:
        for number, start, last in missing:
            if run.seconds_left < _RESERVE_SECONDS:
                return
            yield lambda number=number, start=start, last=last: _fetch_part(
                run,  # type: ignore[misc]
                begun,
                mirrors,
                number,
                start,
                last,
            )

    try:
        run.pump(jobs(), hashed=not stored)
    except DomainError as error:
        # An attempt that fetched more bytes does not count against the retries.
        error.progressed = run.taken > before and not isinstance(error, SourceChanged)
        raise
    if run.taken < size:
        return None
    if stored and missing and run.seconds_left < _RESERVE_SECONDS + size / _HASHED_PER_SECOND:
        # The whole object must be read for its digest, which the next invocation has time for.
        return None
    return _whole(begun, None if stored else run.digest.hexdigest())


def _whole(begun: Unfinished, digest: str | None) -> Fetched:
    upload = (begun.key, begun.upload_id)
    return Fetched(begun.size or 0, begun.etag, digest, upload, validated=begun.source.validated)


def _fetch_part(run: FetchRun, begun: Unfinished, mirrors: Mirrors, number: int, start: int, last: int) -> bytearray:
    piece, failures, size = bytearray(), 0, last - start + 1
    while len(piece) < size:
        before = len(piece)
        address = mirrors.at(number + failures)
        try:
            with run.range(address.url, start + before, last, address.source) as stream:
                for chunk in chunks_until_break(stream, address.source, size - before):
                    run.require_running()
                    piece += chunk
                    run.pacer.after_bytes(len(chunk))
            mirrors.worked(address)
        except FetchError as error:
            if isinstance(error, SourceChanged):
                # Another address may continue here, so drop all that this one has sent for the range.
                del piece[before:]
            if not mirrors.leave_out(address, error):
                _pause_after(run, error, failures)
        failures = failures + 1 if len(piece) == before else 0
        if failures >= _TRIES:
            raise ConnectionFailed(f"the connection broke {failures} times before a byte of part {number} arrived")
    return run.put_part(begun.key, begun.upload_id, number, piece)


def _pause_after(run: FetchRun, error: FetchError, failures: int) -> None:
    pause = max(_FIRST_PAUSE * 2**failures, error.retry_after or 0.0)
    hopeless = isinstance(error, SourceChanged) or not error.retryable
    if hopeless or pause > LONGEST_PAUSE or failures + 1 >= _TRIES:
        raise error
    run.rest(pause)


# --- fetcher
# Fetches a URL into a multipart upload: several ranges in parallel, never the whole file in memory.
#
# Parts that S3 has are not fetched again by the next invocation or attempt, as long as the source shows that the file
# has not changed. A source without ETag or Last-Modified is read in one stream.


def fetch(ingest: Ingest, remote: Remote, wanted: Wanted, heartbeat: Heartbeat, seconds: float) -> Fetched | None:
    """Fetches the file. Returns what was fetched. None if the time is over and another call must continue."""
    until = ingest.monotonic() + seconds
    begun = ingest.unfinished.get(wanted.request)
    if begun:
        run = FetchRun(ingest, remote, wanted, heartbeat, until)
        try:
            return _resume_parts(run, begun)
        except SourceChanged:
            # The parts are of another version: start again with the present one.
            discard_parts(ingest, wanted.request)
    return _start_anywhere(ingest, remote, wanted, heartbeat, until)


def _start_anywhere(
    ingest: Ingest, remote: Remote, wanted: Wanted, heartbeat: Heartbeat, until: float
) -> Fetched | None:
    """Fetches the file from the first URL that works."""
    last: FetchError | None = None
    for number, url in enumerate(remote.urls):
        others = tuple(remote.urls[number + 1 :])
        now = replace(remote, url=url, mirrors=others)
        run = FetchRun(ingest, now, wanted, heartbeat, until)
        try:
            return _start(run)
        except (SourceChanged, ContentTooLarge):
            discard_parts(ingest, wanted.request)
            raise
        except FetchError as error:
            if run.began or (error.retryable and not others):
                raise
            last = last if last is not None and last.retryable else error
    raise last or ConnectionFailed("the request has no URL")


def _start(run: FetchRun) -> Fetched | None:
    with run.open(run.remote.url) as stream:
        stream.raise_for_status()
        source = source_of(stream.headers)
        run.total = source.size
        if source.size is not None:
            if source.size > MAX_BYTES:
                raise ContentTooLarge(f"the source has {source.size} bytes, but a file may have at most {MAX_BYTES}")
            run.wanted.require_room(source.size)
        source = _probed(run, source)
        if not source.in_parts(signed=run.wanted.signed):
            return _fetch_stream(run, source, stream)
    return _start_parts(run, source)


def stored_since(ingest: Ingest, request: Request, moment: datetime) -> bool:
    """Whether a part of the request's file was stored at that moment or later."""
    begun = ingest.unfinished.get(request)
    parts = ingest.parts.parts(begun.key, begun.upload_id) if begun else None
    return any(part.at is not None and part.at >= moment for part in (parts or {}).values())


def discard_parts(ingest: Ingest, request: Request) -> None:
    """Deletes those parts of the request's file that are stored."""
    begun = ingest.unfinished.get(request)
    if begun:
        ingest.parts.abort_upload(begun.key, begun.upload_id)
        ingest.unfinished.forget(request, begun)
