"""State of one download within one invocation: time left, limits, progress and the running digest."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager

from tidegate.aws.s3_multipart import MultipartStore
from tidegate.errors import ContentTooLarge, FetchError, FetchTimeout, LeaseLost
from tidegate.http.client import SafeHttp, Stream
from tidegate.http.model import Limits
from tidegate.ingest.fetching.model import Remote, Wanted
from tidegate.ingest.fetching.politeness import Pacer
from tidegate.ingest.fetching.ranges import Ranged
from tidegate.ingest.model import MAX_BYTES, Source
from tidegate.ingest.ports import Heartbeat

# Parts in memory at once: being fetched, being stored, or waiting to be hashed.
WINDOW = 4
# How often a waiting run checks whether its request was cancelled or paused.
_LOOK_SECONDS = 1.0

# Fetches one part and stores it.
PartJob = Callable[[], bytearray]


class Run:
    def __init__(
        self,
        http: SafeHttp,
        store: MultipartStore,
        remote: Remote,
        wanted: Wanted,
        heartbeat: Heartbeat,
        until: float,
        monotonic: Callable[[], float],
    ) -> None:
        self._http = http
        self.store = store
        self.remote = remote
        self.wanted = wanted
        self._heartbeat = heartbeat
        self._until = until
        self._monotonic = monotonic
        self._stopped = threading.Event()
        self.pacer = Pacer(remote.politeness, self.rest, monotonic)
        self._at_once = min(WINDOW, remote.politeness.connections or WINDOW)
        self.digest = hashlib.sha256()
        # Bytes stored so far, and the expected total.
        self.taken = 0
        self.total: int | None = None
        # Whether a multipart upload was begun. Then no other URL is tried, because it would begin a second one.
        self.began = False

    @property
    def seconds_left(self) -> float:
        return self._until - self._monotonic()

    @contextmanager
    def open(self, url: str, headers: Mapping[str, str] | None = None) -> Iterator[Stream]:
        """Sends a GET. Passes a Retry-After of the answer to `Remote.on_pause`."""
        left = self.seconds_left
        if left <= 0:
            raise FetchTimeout(
                "the download takes longer than one invocation, and the source does not support ranges to continue it"
            )
        self.pacer.before_request()
        try:
            with self._http.stream(
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
        """The bytes from `start` to `last` of this version. SourceChanged if the source has another version."""
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
        self._heartbeat({"bytes": self.taken, "total": self.total})

    def put_part(self, key: str, upload_id: str, number: int, piece: bytearray) -> bytearray:
        self.store.put_part(key, upload_id, number, piece)
        return piece

    def pump(self, jobs: Iterator[PartJob], *, hashed: bool = False) -> None:
        """Runs jobs in parallel and takes their parts in order. At most WINDOW parts are in memory."""
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
                self._stopped.set()
                for future in window:
                    future.cancel()
                raise

    def _take(self, piece: bytearray, *, hashed: bool) -> None:
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
