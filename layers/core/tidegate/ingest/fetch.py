"""Brings a URL's bytes into a multipart upload: several ranges at once, never whole in memory.

Parts that S3 has are not fetched again, neither by the next invocation nor by the next attempt, as long as the source
can tell that it is still the same version. A source that cannot is read in one stream.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from tidegate.aws.s3_multipart import MultipartStore
from tidegate.errors import ConnectionFailed, ContentTooLarge, DomainError, FetchError, FetchTimeout, LeaseLost
from tidegate.http.client import SafeHttp, Stream
from tidegate.http.credentials import Credential
from tidegate.http.model import Limits
from tidegate.ingest.model import MAX_BYTES, PARALLEL_FROM, PART_BYTES, Source, parts_of, source_of
from tidegate.ingest.politeness import NO_LIMITS, Pacer, Politeness
from tidegate.ingest.ports import Pulse
from tidegate.ingest.ranges import Ranged, SourceChanged, until_cut
from tidegate.ingest.unfinished import Unfinished, UnfinishedStore
from tidegate.queue.model import Request

# Parts in memory at once: being fetched, stored or waiting for their turn to be hashed.
WINDOW = 4
# So often a part is tried without a byte of it coming.
_TRIES = 5
# A source that asks for a longer pause is left alone: the next attempt goes on with what came.
_LONGEST_PAUSE = 20.0
_FIRST_PAUSE = 0.5
_LOOK_SECONDS = 1.0
# Left of an invocation when no new part is begun, so that those under way can end.
_RESERVE_SECONDS = 45.0

_Job = Callable[[], bytearray]


@dataclass(frozen=True, slots=True)
class Remote:
    url: str
    credential: Credential | None = None
    allow_private: bool = False
    project_id: str = ""
    # Other addresses of the same file, asked in this order where the first fails, and beside it where they agree.
    mirrors: tuple[str, ...] = ()
    politeness: Politeness = NO_LIMITS

    @property
    def urls(self) -> tuple[str, ...]:
        return (self.url, *self.mirrors)


@dataclass(frozen=True, slots=True)
class Wanted:
    """`signed`: the SHA-256 is announced and will be checked. `require_room` refuses a size that the project may not
    store."""

    request: Request
    key: str
    signed: bool = False
    require_room: Callable[[int], None] = lambda _size: None


@dataclass(frozen=True, slots=True)
class Fetched:
    """`small` holds content that fitted into one part; other content is in the upload. No digest: read it again."""

    size: int
    etag: str | None
    digest: str | None
    upload: tuple[str, str] | None = None
    small: bytearray | None = None
    # Whether the source could tell that all of it is of one version.
    validated: bool = True


class Fetcher:
    def __init__(
        self,
        http: SafeHttp,
        parts: MultipartStore,
        unfinished: UnfinishedStore,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._http = http
        self._parts = parts
        self._unfinished = unfinished
        self._monotonic = monotonic

    def fetch(self, remote: Remote, wanted: Wanted, pulse: Pulse, seconds: float) -> Fetched | None:
        """What came; None if the time is over, and another call goes on."""
        until = self._monotonic() + seconds
        begun = self._unfinished.get(wanted.request)
        if begun:
            run = _Run(self._http, self._parts, self._unfinished, remote, wanted, pulse, until, self._monotonic)
            try:
                return run.resume(begun)
            except SourceChanged:
                # Nothing of what came is of use: begin with the version that is there now.
                self.discard(wanted.request)
        return self._start(remote, wanted, pulse, until)

    def _start(self, remote: Remote, wanted: Wanted, pulse: Pulse, until: float) -> Fetched | None:
        """From the first of the URLs that works."""
        last: FetchError | None = None
        for number, url in enumerate(remote.urls):
            others = tuple(remote.urls[number + 1 :])
            now = replace(remote, url=url, mirrors=others)
            run = _Run(self._http, self._parts, self._unfinished, now, wanted, pulse, until, self._monotonic)
            try:
                return run.start()
            except (SourceChanged, ContentTooLarge):
                self.discard(wanted.request)
                raise
            except FetchError as error:
                if run.began or (error.retryable and not others):
                    raise
                last = last if last is not None and last.retryable else error
        raise last or ConnectionFailed("no URL was named")

    def discard(self, request: Request) -> None:
        """Gives up what came so far."""
        begun = self._unfinished.get(request)
        if begun:
            self._parts.abort(begun.key, begun.upload_id)
            self._unfinished.forget(request, begun)


class _Run:
    """One source in one invocation."""

    def __init__(
        self,
        http: SafeHttp,
        parts: MultipartStore,
        unfinished: UnfinishedStore,
        remote: Remote,
        wanted: Wanted,
        pulse: Pulse,
        until: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._http = http
        self._parts = parts
        self._unfinished = unfinished
        self._remote = remote
        self._wanted = wanted
        self._pulse = pulse
        self._until = until
        self._monotonic = monotonic
        self._digest = hashlib.sha256()
        self._over = threading.Event()
        self._pacer = Pacer(remote.politeness, self._rest_for, monotonic)
        self._at_once = min(WINDOW, remote.politeness.connections or WINDOW)
        self._taken = 0
        self._total: int | None = None
        self._urls = [remote.url]
        self.began = False

    def start(self) -> Fetched | None:
        with self._open(self._remote.url, {}) as stream:
            stream.raise_for_status()
            source = source_of(stream.headers)
            self._total = source.size
            if source.size is not None:
                if source.size > MAX_BYTES:
                    raise ContentTooLarge(f"{source.size} bytes announced, {MAX_BYTES} at most")
                self._wanted.require_room(source.size)
            source = self._probed(source)
            if not source.in_parts(signed=self._wanted.signed):
                return self._in_order(stream, source)
        self._find_mirrors(source)
        return self._in_parts(self._begin(source), {})

    def resume(self, begun: Unfinished) -> Fetched | None:
        stored = self._parts.parts(begun.key, begun.upload_id)
        self._total, self._urls = begun.size, [begun.url]
        if stored is None and self._parts.head(begun.key) is None:
            raise SourceChanged("the parts that had come are gone")
        # Without an upload, an earlier run completed it and died.
        return self._in_parts(begun, stored) if stored is not None else self._whole(begun, None)

    # --- one stream, for small files and for sources that cannot tell one version from another

    def _in_order(self, stream: Stream, source: Source) -> Fetched:
        pieces = self._pieces(stream, source)
        first = next(pieces, bytearray())
        if len(first) < PART_BYTES:
            return Fetched(len(first), source.etag, self._digest.hexdigest(), small=first)
        self.began = True
        upload_id = self._parts.begin(self._wanted.key)

        def jobs() -> Iterator[_Job]:
            yield lambda: self._store(self._wanted.key, upload_id, 1, first)
            for number, piece in enumerate(pieces, 2):
                yield lambda number=number, piece=piece: self._store(  # type: ignore[misc]
                    self._wanted.key, upload_id, number, piece
                )

        try:
            self._pump(jobs())
        except BaseException:
            self._parts.abort(self._wanted.key, upload_id)
            raise
        return Fetched(self._taken, source.etag, self._digest.hexdigest(), (self._wanted.key, upload_id))

    def _pieces(self, stream: Stream, source: Source) -> Iterator[bytearray]:
        piece, got = bytearray(), 0
        for chunk in self._resumed(stream, source):
            self._tell()
            self._pacer.after_bytes(len(chunk))
            self._digest.update(chunk)
            got += len(chunk)
            piece += chunk
            if len(piece) >= PART_BYTES:
                yield piece[:PART_BYTES]
                piece = piece[PART_BYTES:]
        if source.size is not None and got != source.size:
            raise ConnectionFailed(f"{got} of {source.size} bytes came")
        if piece:
            yield piece

    def _resumed(self, stream: Stream, source: Source) -> Iterator[bytes]:
        """The stream's bytes. A cut connection is opened again, and goes on where it broke."""
        got = 0
        for chunk in until_cut(stream, source):
            got += len(chunk)
            yield chunk
        cuts = 0
        while source.size is not None and got < source.size:
            cuts += 1
            if cuts > _TRIES:
                raise ConnectionFailed(f"the connection was cut after {got} of {source.size} bytes, {cuts} times")
            with self._rest(got, source) as rest:
                for chunk in (
                    self._after_what_came(rest, got, source) if rest.status == 200 else until_cut(rest, source)
                ):
                    got += len(chunk)
                    yield chunk

    def _rest(self, got: int, source: Source) -> AbstractContextManager[Stream]:
        if got and source.ranges and (source.validated or self._wanted.signed) and source.size is not None:
            return self._range(self._remote.url, got, source.size - 1, source)
        return self._open(self._remote.url, {})

    def _after_what_came(self, stream: Stream, got: int, source: Source) -> Iterator[bytes]:
        """A source without ranges sends everything again: what came before must be the same bytes."""
        stream.raise_for_status()
        again, left = hashlib.sha256(), got
        for chunk in until_cut(stream, source):
            self._tell()
            known, new = chunk[:left], chunk[left:]
            again.update(known)
            left -= len(known)
            if left == 0 and known and again.digest() != self._digest.digest():
                raise SourceChanged("the source changed while it was fetched: it sent other bytes the second time")
            if new:
                yield new

    # --- parts, several at once

    def _probed(self, source: Source) -> Source:
        """Not every server that can send ranges says so: a large file is worth asking."""
        asks = not source.ranges and source.size is not None and source.size >= PARALLEL_FROM and source.validated
        if not asks or source.size is None:
            return source
        able = replace(source, ranges=True)
        try:
            with self._range(self._remote.url, source.size - 1, source.size - 1, able):
                return able
        except FetchError:
            return source

    def _find_mirrors(self, source: Source) -> None:
        """Those that have the same version of the file, as size and validator say, share the work."""
        for url in self._remote.mirrors:
            try:
                with self._range(url, 0, 0, source) as stream:
                    told = stream.headers
                    same = source.strong_etag and told.get("etag") == source.strong_etag
                    if same or (source.last_modified and told.get("last-modified") == source.last_modified):
                        self._urls.append(url)
            except FetchError:
                continue

    def _begin(self, source: Source) -> Unfinished:
        self.began = True
        upload_id = self._parts.begin(self._wanted.key)
        told = (source.size, source.etag, source.last_modified, source.ranges)
        mine = Unfinished(self._wanted.key, upload_id, self._remote.url, *told)
        begun = self._unfinished.begin(self._wanted.request, mine)
        if begun.upload_id != upload_id:
            # Another run of this step was faster: its upload is the one that counts.
            self._parts.abort(self._wanted.key, upload_id)
            if begun.source != source:
                raise SourceChanged("another run of this step met another version of the source")
        return begun

    def _in_parts(self, begun: Unfinished, stored: Mapping[int, object]) -> Fetched | None:
        size, source = begun.size or 0, begun.source
        missing = [part for part in parts_of(size) if part[0] not in stored]
        self._taken = size - sum(last - start + 1 for _, start, last in missing)
        brought = False

        def jobs() -> Iterator[_Job]:
            for number, start, last in missing:
                if self._until - self._monotonic() < _RESERVE_SECONDS:
                    return
                yield lambda number=number, start=start, last=last: self._bring(  # type: ignore[misc]
                    begun, number, start, last, source
                )

        try:
            before = self._taken
            try:
                self._pump(jobs(), hashed=not stored)
            finally:
                brought = self._taken > before
        except DomainError as error:
            # An attempt that got further is not one of those that count against the request.
            error.progressed = brought and not isinstance(error, SourceChanged)
            raise
        return self._whole(begun, None if stored else self._digest.hexdigest()) if self._taken == size else None

    def _whole(self, begun: Unfinished, digest: str | None) -> Fetched:
        upload = (begun.key, begun.upload_id)
        return Fetched(begun.size or 0, begun.etag, digest, upload, validated=begun.source.validated)

    def _bring(self, begun: Unfinished, number: int, start: int, last: int, source: Source) -> bytearray:
        piece, failures = bytearray(), 0
        while len(piece) < last - start + 1:
            before = len(piece)
            url = self._urls[(number + failures) % len(self._urls)]
            try:
                with self._range(url, start + before, last, source) as stream:
                    for chunk in until_cut(stream, source):
                        if self._over.is_set():
                            raise LeaseLost("the fetch was stopped")
                        piece += chunk
                        self._pacer.after_bytes(len(chunk))
            except SourceChanged:
                raise
            except FetchError as error:
                self._pause_after(error, failures)
            failures = failures + 1 if len(piece) == before else 0
            if failures >= _TRIES:
                raise ConnectionFailed(f"part {number} was cut {failures} times without a byte of it coming")
        return self._store(begun.key, begun.upload_id, number, piece[: last - start + 1])

    def _pause_after(self, error: FetchError, failures: int) -> None:
        pause = max(_FIRST_PAUSE * 2**failures, error.retry_after or 0.0)
        if not error.retryable or pause > _LONGEST_PAUSE or failures + 1 >= _TRIES:
            raise error
        self._rest_for(pause)

    def _rest_for(self, seconds: float) -> None:
        if self._over.wait(seconds):
            raise LeaseLost("the fetch was stopped")

    # --- what both share

    def _store(self, key: str, upload_id: str, number: int, piece: bytearray) -> bytearray:
        self._parts.put_part(key, upload_id, number, piece)
        return piece

    def _pump(self, jobs: Iterator[_Job], *, hashed: bool = False) -> None:
        """Runs jobs side by side and takes their parts in order; at most WINDOW parts exist at once."""
        window: deque[Future[bytearray]] = deque()
        with ThreadPoolExecutor(self._at_once) as pool:
            try:
                for job in jobs:
                    window.append(pool.submit(job))
                    if len(window) >= self._at_once:
                        self._take(self._result(window.popleft()), hashed=hashed)
                while window:
                    self._take(self._result(window.popleft()), hashed=hashed)
            except BaseException:
                self._over.set()
                for future in window:
                    future.cancel()
                raise

    def _take(self, piece: bytearray, *, hashed: bool) -> None:
        if hashed:
            self._digest.update(piece)
        self._taken += len(piece)
        if self._taken > MAX_BYTES:
            raise ContentTooLarge(f"more than {MAX_BYTES} bytes")
        self._tell()

    def _result(self, future: Future[bytearray]) -> bytearray:
        """Waits, and meanwhile notices that the request was cancelled or paused."""
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self._tell()
        return future.result()

    def _tell(self) -> None:
        self._pulse({"bytes": self._taken, "total": self._total})

    def _open(self, url: str, headers: Mapping[str, str]) -> AbstractContextManager[Stream]:
        left = self._until - self._monotonic()
        if left <= 0:
            raise FetchTimeout("the source needs longer than one invocation has, and cannot go on where it stopped")
        self._pacer.before_request()
        return self._http.stream(
            "GET",
            url,
            headers=headers,
            credential=self._remote.credential,
            allow_private=self._remote.allow_private,
            limits=Limits(total=left, max_bytes=MAX_BYTES),
            project_id=self._remote.project_id,
        )

    def _range(self, url: str, start: int, last: int, source: Source) -> AbstractContextManager[Stream]:
        asked = self._open(url, {"range": f"bytes={start}-{last}", **source.conditions()})
        return Ranged(asked, start, source)
