"""Uploads of local files to presigned URLs: in one request, or in parts that can be resumed."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Optional

import urllib3
from urllib3.exceptions import HTTPError

from tidegate_client.config import state_path
from tidegate_client.errors import LinkExpired, TransferError, without_queries

# --- content
# Local files: their SHA-256, and their upload to a presigned URL in one request.

Progress = Callable[[int, Optional[int]], None]
CHUNK = 256 * 1024
UPLOAD_ATTEMPTS = 4


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return sha256_of_stream(file)


def sha256_of_stream(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    for chunk in iter(lambda: file.read(CHUNK), b""):
        digest.update(chunk)
    return digest.hexdigest()


def upload(
    pool: urllib3.PoolManager,
    url: str,
    source: Path,
    *,
    headers: Mapping[str, str] | None = None,
    on_progress: Progress | None = None,
) -> None:
    """Uploads the file with one PUT request.

    A PUT cannot be resumed. It is sent again after a broken connection, a 5xx, or a 409 (another PUT at the same
    time)."""
    size = source.stat().st_size
    failure: Exception | None = None
    for attempt in range(UPLOAD_ATTEMPTS):
        if attempt:
            time.sleep(min(0.3 * 2**attempt, 5))
        try:
            response = pool.request(
                "PUT",
                url,
                body=_chunks(source, size, on_progress),
                headers={"Content-Length": str(size), **(headers or {})},
                timeout=urllib3.Timeout(connect=5, read=120),
                retries=False,
            )
        except HTTPError as error:
            failure = TransferError(without_queries(error))
            continue
        # 412: an earlier attempt has stored the object, and its answer was lost. `complete` checks the bytes.
        if response.status < 300 or response.status == 412:
            return
        if response.status == 403:
            raise LinkExpired(
                f"S3 refused the URL for the upload of {source} (HTTP 403): it has expired; upload the file again",
                status=403,
            )
        if response.status < 500 and response.status != 409:
            raise TransferError(f"S3 refused the upload of {source} (HTTP {response.status})", status=response.status)
        failure = TransferError(f"HTTP {response.status}", status=response.status)
    raise TransferError(f"the upload of {source} failed {UPLOAD_ATTEMPTS} times: {failure}") from failure


def _chunks(source: Path, size: int, on_progress: Progress | None) -> Iterator[bytes]:
    sent = 0
    with source.open("rb") as file:
        while chunk := file.read(CHUNK):
            yield chunk
            sent += len(chunk)
            if on_progress:
                on_progress(sent, size)


# --- multipart
# Uploads in parts: several at a time, resumed by the next run after a crash.

# A file over this size is sent in parts.
PARTS_FROM = 64 * 1024 * 1024
PARALLEL = 4
# Presigned URLs requested in one call. The API gives at most 100; they are valid for an hour.
_URLS_A_CALL = 16

# Returns the presigned URLs of the given part numbers.
UrlsOfParts = Callable[[list[int]], Mapping[int, str]]


@dataclass
class Journal:
    """Keeps a record on disk of the parts of a local file that were sent, so that the next run can resume the
    upload."""

    path: Path
    file_id: str = ""
    signature: str = ""
    part_size: int = 0
    etags: dict[int, str] = field(default_factory=dict)

    @classmethod
    def for_upload(cls, source: Path, target: Mapping[str, Any]) -> Journal:
        """Returns the journal of this upload.

        If file, size, time stamp and target are those of an earlier run, this is the journal of that run."""
        status = source.stat()
        identity = [str(source.resolve()), status.st_size, status.st_mtime_ns, sorted(target.items())]
        name = hashlib.sha256(json.dumps(identity, default=str).encode()).hexdigest()[:32]
        journal = cls(state_path() / "uploads" / f"{name}.jsonl")
        journal._read()
        return journal

    def _read(self) -> None:
        try:
            lines = self.path.read_text().splitlines()
            head = json.loads(lines[0])
            self.file_id, self.signature, self.part_size = head["file_id"], head["signature"], head["part_size"]
        except (OSError, ValueError, KeyError, IndexError, TypeError):
            return
        for line in lines[1:]:
            # The last line is incomplete if the process was killed while it wrote it.
            try:
                number, etag = json.loads(line)
            except ValueError:
                continue
            self.etags[number] = etag

    def begin(self, file_id: str, signature: str, part_size: int) -> None:
        """Starts the journal of a new upload."""
        self.file_id, self.signature, self.part_size, self.etags = file_id, signature, part_size, {}
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.write_text(json.dumps({"file_id": file_id, "signature": signature, "part_size": part_size}) + "\n")

    def sent(self, number: int, etag: str) -> None:
        """Notes a part that S3 has stored."""
        self.etags[number] = etag
        with self.path.open("a") as file:
            # Starts with a line break, in case a killed process left the line before incomplete.
            file.write("\n" + json.dumps([number, etag]) + "\n")

    def forget(self) -> None:
        """Deletes the journal once the upload has ended."""
        self.file_id, self.etags = "", {}
        self.path.unlink(missing_ok=True)


def send_parts(
    pool: urllib3.PoolManager,
    source: Path,
    journal: Journal,
    get_urls: UrlsOfParts,
    on_progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Uploads the missing parts. Returns the number and ETag of every part, as `files.complete` needs them."""
    size = source.stat().st_size
    numbers = range(1, max(1, -(-size // journal.part_size)) + 1)
    missing = [number for number in numbers if number not in journal.etags]
    lock = threading.Lock()
    meter = _Meter(size, sum(_length(number, journal.part_size, size) for number in journal.etags), on_progress)
    failed = threading.Event()

    def send(number: int, url: str) -> None:
        if failed.is_set():
            return
        try:
            start = (number - 1) * journal.part_size
            part = _Part(source, start, _length(number, journal.part_size, size))
            etag = _put(pool, url, part, lambda: get_urls([number])[number], meter, failed)
            with lock:
                journal.sent(number, etag)
        except _Stopped:
            return
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(PARALLEL) as workers:
        try:
            for group in (missing[at : at + _URLS_A_CALL] for at in range(0, len(missing), _URLS_A_CALL)):
                urls = get_urls(group)
                for future in [workers.submit(send, number, urls[number]) for number in group]:
                    future.result()
        except BaseException:
            # Also for Ctrl-C, which only this thread receives: otherwise the workers would send the whole group first.
            failed.set()
            raise
    return [{"number": number, "etag": journal.etags[number]} for number in numbers]


class _Stopped(Exception):
    """This part is aborted because another part failed."""


@dataclass(frozen=True)
class _Part:
    source: Path
    start: int
    length: int

    def chunks(self, on_sent: Callable[[int], None], stopped: threading.Event) -> Iterator[bytes]:
        left = self.length
        with self.source.open("rb") as file:
            file.seek(self.start)
            while left:
                if stopped.is_set():
                    # If the body ended early, S3 and this client would wait for the rest until a time-out.
                    raise _Stopped
                chunk = file.read(min(CHUNK, left))
                if not chunk:
                    raise TransferError(f"{self.source} became shorter during the upload; upload it again")
                left -= len(chunk)
                yield chunk
                on_sent(len(chunk))


class _Meter:
    """Adds up the bytes that all threads have sent, and reports the progress."""

    def __init__(self, size: int, done: int, on_progress: Progress | None) -> None:
        self._size = size
        self._done = done
        self._on_progress = on_progress
        self._lock = threading.Lock()
        self.add(0)

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            if self._on_progress:
                self._on_progress(self._done, self._size)


def _length(number: int, part_size: int, size: int) -> int:
    return min(part_size, size - (number - 1) * part_size)


def _put(
    pool: urllib3.PoolManager,
    url: str,
    part: _Part,
    fresh_url: Callable[[], str],
    meter: _Meter,
    stopped: threading.Event,
) -> str:
    failure: Exception | None = None
    for attempt in range(UPLOAD_ATTEMPTS):
        if attempt:
            time.sleep(min(0.3 * 2**attempt, 5))
        attempt_bytes = _AttemptBytes(meter)
        try:
            answer = pool.request(
                "PUT",
                url,
                body=part.chunks(attempt_bytes.add, stopped),
                headers={"Content-Length": str(part.length)},
                timeout=urllib3.Timeout(connect=5, read=120),
                retries=False,
            )
        except HTTPError as error:
            failure = TransferError(without_queries(error))
        else:
            etag = answer.headers.get("ETag")
            if answer.status < 300 and etag:
                return str(etag)
            failure = TransferError(f"S3 answered HTTP {answer.status}", status=answer.status)
            if answer.status == 403:
                url = fresh_url()
            elif answer.status < 500 and answer.status not in (408, 409, 429):
                raise failure
        attempt_bytes.undo()
        if stopped.is_set():
            break
    raise TransferError(
        f"a part of {part.source} could not be uploaded: {failure}; run the upload again to resume it"
    ) from failure


class _AttemptBytes:
    """The bytes that one attempt has sent.

    If the attempt fails, these bytes are subtracted, so that the progress stays correct."""

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter
        self._count = 0

    def add(self, count: int) -> None:
        self._count += count
        self._meter.add(count)

    def undo(self) -> None:
        self._meter.add(-self._count)
