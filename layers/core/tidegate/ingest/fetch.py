"""Brings a URL's bytes into a multipart upload: hashed as they pass, several ranges at once, never whole in memory."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from dataclasses import dataclass

from tidegate.aws.s3_multipart import MultipartStore
from tidegate.errors import ConnectionFailed, ContentTooLarge, FetchTimeout, LeaseLost
from tidegate.http.client import SafeHttp, Stream
from tidegate.http.credentials import Credential
from tidegate.http.model import Limits
from tidegate.ingest.model import MAX_BYTES, PART_BYTES, Source, Unfinished, parts_of, source_of
from tidegate.ingest.ports import Pulse
from tidegate.ingest.ranges import Ranged, same_version, until_cut

# Parts in memory at once: being fetched, stored or waiting for their turn to be hashed.
WINDOW = 4
_RESUMES = 5
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


@dataclass(frozen=True, slots=True)
class Fetched:
    """`small` holds content that fitted into one part; other content is in the upload. No digest: read it again."""

    size: int
    etag: str | None
    digest: str | None
    upload_id: str | None = None
    small: bytearray | None = None


class Fetcher:
    def __init__(self, http: SafeHttp, parts: MultipartStore, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._http = http
        self._parts = parts
        self._monotonic = monotonic

    def fetch(
        self, remote: Remote, key: str, pulse: Pulse, seconds: float, begun: Unfinished | None = None
    ) -> Fetched | Unfinished:
        run = _Run(self._http, self._parts, remote, key, pulse, self._monotonic() + seconds, self._monotonic)
        return run.go_on(begun) if begun else run.start()


class _Run:
    def __init__(
        self,
        http: SafeHttp,
        parts: MultipartStore,
        remote: Remote,
        key: str,
        pulse: Pulse,
        until: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._http = http
        self._parts = parts
        self._remote = remote
        self._key = key
        self._pulse = pulse
        self._until = until
        self._monotonic = monotonic
        self._digest = hashlib.sha256()
        self._over = threading.Event()
        self._taken = 0
        self._total: int | None = None

    def start(self) -> Fetched | Unfinished:
        with self._open({}) as stream:
            stream.raise_for_status()
            source = source_of(stream.headers)
            self._total = source.size
            if source.size is not None and source.size > MAX_BYTES:
                raise ContentTooLarge(f"{source.size} bytes announced, {MAX_BYTES} at most")
            if not source.parallel:
                return self._in_order(stream, source)
        upload_id = self._parts.begin(self._key)
        return self._aborting(upload_id, lambda: self._in_parallel(upload_id, source, 1))

    def go_on(self, begun: Unfinished) -> Fetched | Unfinished:
        source = Source(begun.size, begun.etag, ranges=True)
        self._total, self._taken = begun.size, (begun.next_part - 1) * PART_BYTES
        return self._aborting(begun.upload_id, lambda: self._in_parallel(begun.upload_id, source, begun.next_part))

    def _aborting(self, upload_id: str, act: Callable[[], Fetched | Unfinished]) -> Fetched | Unfinished:
        try:
            return act()
        except BaseException:
            self._parts.abort(self._key, upload_id)
            raise

    # --- one stream, for sources without ranges and small files

    def _in_order(self, stream: Stream, source: Source) -> Fetched | Unfinished:
        pieces = self._pieces(stream, source)
        first = next(pieces, bytearray())
        if len(first) < PART_BYTES:
            self._digest.update(first)
            return Fetched(len(first), source.etag, self._digest.hexdigest(), small=first)
        upload_id = self._parts.begin(self._key)

        def jobs() -> Iterator[_Job]:
            yield lambda: self._store(upload_id, 1, first)
            for number, piece in enumerate(pieces, 2):
                yield lambda number=number, piece=piece: self._store(upload_id, number, piece)  # type: ignore[misc]

        def act() -> Fetched:
            self._pump(jobs())
            return Fetched(self._taken, source.etag, self._digest.hexdigest(), upload_id)

        return self._aborting(upload_id, act)

    def _pieces(self, stream: Stream, source: Source) -> Iterator[bytearray]:
        """Parts of the stream. A cut connection is resumed where it broke, if the source can."""
        piece, got = bytearray(), 0
        for chunk in self._resumed(stream, source):
            self._tell()
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
        got = 0
        for chunk in until_cut(stream, source):
            got += len(chunk)
            yield chunk
        cuts = 0
        while source.size is not None and got < source.size:
            cuts += 1
            if cuts > _RESUMES or not source.ranges:
                raise ConnectionFailed(f"the connection was cut after {got} of {source.size} bytes")
            with self._range(got, source.size - 1, source) as rest:
                for chunk in until_cut(rest, source):
                    got += len(chunk)
                    yield chunk

    # --- several ranges at once

    def _in_parallel(self, upload_id: str, source: Source, first: int) -> Fetched | Unfinished:
        size = source.size or 0
        next_part = first

        def jobs() -> Iterator[_Job]:
            nonlocal next_part
            for number, start, last in parts_of(size, first):
                if self._until - self._monotonic() < _RESERVE_SECONDS:
                    return
                next_part = number + 1
                yield lambda number=number, start=start, last=last: self._bring(  # type: ignore[misc]
                    upload_id, number, start, last, source
                )

        self._pump(jobs())
        if self._taken < size:
            return Unfinished(upload_id, next_part, size, source.etag)
        return Fetched(size, source.etag, self._digest.hexdigest() if first == 1 else None, upload_id)

    def _bring(self, upload_id: str, number: int, start: int, last: int, source: Source) -> bytearray:
        piece = bytearray()
        for _ in range(_RESUMES):
            with self._range(start + len(piece), last, source) as stream:
                for chunk in until_cut(stream, source):
                    if self._over.is_set():
                        raise LeaseLost("the fetch was stopped")
                    piece += chunk
            if len(piece) == last - start + 1:
                return self._store(upload_id, number, piece)
        raise ConnectionFailed(f"part {number} was cut {_RESUMES} times")

    # --- what both share

    def _store(self, upload_id: str, number: int, piece: bytearray) -> bytearray:
        self._parts.put_part(self._key, upload_id, number, piece)
        return piece

    def _pump(self, jobs: Iterator[_Job]) -> None:
        """Runs jobs side by side and hashes their parts in order; at most WINDOW parts exist at once."""
        window: deque[Future[bytearray]] = deque()
        with ThreadPoolExecutor(WINDOW) as pool:
            try:
                for job in jobs:
                    window.append(pool.submit(job))
                    if len(window) >= WINDOW:
                        self._take(self._result(window.popleft()))
                while window:
                    self._take(self._result(window.popleft()))
            except BaseException:
                self._over.set()
                for future in window:
                    future.cancel()
                raise

    def _take(self, piece: bytearray) -> None:
        self._digest.update(piece)
        self._taken += len(piece)
        if self._taken > MAX_BYTES:
            raise ContentTooLarge(f"more than {MAX_BYTES} bytes")
        self._tell()

    def _result(self, future: Future[bytearray]) -> bytearray:
        """Waits, but not deaf: a request that was cancelled meanwhile stops here."""
        while not wait([future], timeout=_LOOK_SECONDS).done:
            self._tell()
        return future.result()

    def _tell(self) -> None:
        self._pulse({"bytes": self._taken, "total": self._total})

    def _open(self, headers: Mapping[str, str]) -> AbstractContextManager[Stream]:
        left = self._until - self._monotonic()
        if left <= 0:
            raise FetchTimeout("the invocation's time is over")
        return self._http.stream(
            "GET",
            self._remote.url,
            headers=headers,
            credential=self._remote.credential,
            allow_private=self._remote.allow_private,
            limits=Limits(total=left, max_bytes=MAX_BYTES),
            project_id=self._remote.project_id,
        )

    def _range(self, start: int, last: int, source: Source) -> AbstractContextManager[Stream]:
        return Ranged(self._open({"range": f"bytes={start}-{last}", **same_version(source)}), start)
