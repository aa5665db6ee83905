"""Downloads that resume after an interruption. A file gets its name only when it is complete and verified."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, Optional

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

if sys.platform != "win32":
    import fcntl

from tidegate_client.errors import ChecksumMismatch, LinkExpired, TransferError, without_queries
from tidegate_client.uploads import CHUNK, Progress

# Returns a presigned URL. The argument is None at first, later the URL that S3 has refused.
UrlSource = Callable[[Optional[str]], str]
# Called with the number of bytes received and a check for cancellation; returns when more may be received.
Throttle = Callable[[int, Callable[[], bool]], None]
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
ONLY_REDIRECTS = Retry(total=3, connect=0, read=0, status=0, other=0, redirect=3)
LONGEST_PAUSE = 8.0


class Cancelled(Exception):
    """The download was cancelled. The received bytes stay on disk, and the next attempt resumes from them."""


class Stalled(TransferError):
    """No byte was received for a long time. The received bytes stay on disk, and a later attempt resumes from them."""


class _Interrupted(Exception):
    """This attempt ended before the file was complete; the next attempt resumes."""


class ResumingDownload:
    """Downloads a URL into an open file; bytes that the file already has are not requested again."""

    def __init__(
        self,
        pool: urllib3.PoolManager,
        file: BinaryIO,
        *,
        size: int | None = None,
        on_progress: Progress | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        patience: float = 60.0,
        throttle: Throttle | None = None,
        on_bytes: Callable[[int], None] = lambda _count: None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pool = pool
        self._file = file
        self._size = size
        self._on_progress = on_progress or (lambda _done, _total: None)
        self._cancelled = cancelled
        self._patience = patience
        self._throttle = throttle
        self._on_bytes = on_bytes
        self._sleep = sleep
        self._digest = hashlib.sha256()
        self.offset = 0
        self._hash_existing()

    def run(self, get_url: UrlSource) -> str:
        """Downloads the missing bytes and returns the SHA-256 of the whole file.

        Raises Stalled after `patience` seconds without a byte, and Cancelled if the download was cancelled."""
        url = get_url(None)
        progress_at, pauses = time.monotonic(), 0
        while self._size is None or self.offset < self._size:
            before = self.offset
            try:
                self._attempt(url)
                break
            except LinkExpired:
                url = get_url(url)
                reason = "S3 refused the URL (HTTP 403)"
            except (_Interrupted, HTTPError) as error:
                reason = without_queries(error)
            if self.offset > before:
                progress_at, pauses = time.monotonic(), 0
            elif time.monotonic() - progress_at > self._patience:
                raise Stalled(f"no byte was received for {self._patience:.0f} s: {reason}")
            self._pause(pauses)
            pauses += 1
        self._file.flush()
        if self._size is not None and self.offset < self._size:
            raise ChecksumMismatch(f"S3 has only {self.offset} of the {self._size} bytes that were announced")
        return self._digest.hexdigest()

    def restart(self) -> None:
        """Discards the bytes received so far."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self.offset = 0

    def _hash_existing(self) -> None:
        self._file.seek(0)
        while chunk := self._file.read(CHUNK):
            self._digest.update(chunk)
            self.offset += len(chunk)
        if self._size is not None and self.offset > self._size:
            self.restart()

    def _attempt(self, url: str) -> None:
        headers = {"Accept-Encoding": "identity"}
        if self.offset:
            headers["Range"] = f"bytes={self.offset}-"
        timeout = urllib3.Timeout(connect=5, read=20)
        response = self._pool.request(
            "GET", url, headers=headers, preload_content=False, timeout=timeout, retries=ONLY_REDIRECTS
        )
        try:
            self._check(response)
            for chunk in response.stream(CHUNK, decode_content=False):
                self._keep(chunk)
        finally:
            # Otherwise the pool would read the rest of the body before it reuses the connection.
            response.close()

    def _check(self, response: BaseHTTPResponse) -> None:
        status = response.status
        if status == 403:
            raise LinkExpired("S3 refused the URL (HTTP 403): it has expired", status=status)
        if status in TRANSIENT:
            raise _Interrupted(f"HTTP {status}")
        if status == 416 and self.offset:
            self.restart()
            raise _Interrupted("the part file was longer than the object (HTTP 416)")
        if status not in {200, 206}:
            raise TransferError(f"S3 answered HTTP {status}", status=status)
        continues = status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {self.offset}-")
        if self.offset and not continues:
            self.restart()
            if status == 206:
                raise _Interrupted("S3 sent a range that was not requested")

    def _keep(self, chunk: bytes) -> None:
        if self._cancelled():
            raise Cancelled
        if self._size is not None and self.offset + len(chunk) > self._size:
            raise ChecksumMismatch(f"S3 sent more than the {self._size} bytes that were announced")
        self._file.write(chunk)
        self._digest.update(chunk)
        self.offset += len(chunk)
        self._on_bytes(len(chunk))
        self._on_progress(self.offset, self._size)
        if self._throttle:
            self._throttle(len(chunk), self._cancelled)

    def _pause(self, pauses: int) -> None:
        if self._cancelled():
            raise Cancelled
        if pauses:
            self._sleep(random.uniform(0.5, 1) * min(0.2 * 2**pauses, LONGEST_PAUSE))  # noqa: S311


def fetch_verified(download: ResumingDownload, get_url: UrlSource, signature: str | None) -> None:
    """Downloads the file and checks its SHA-256.

    If the file already had bytes of an earlier run and the SHA-256 is wrong, downloads the whole file again, once."""
    if download.offset:
        with contextlib.suppress(ChecksumMismatch):
            return _run_checked(download, get_url, signature)
        download.restart()
    return _run_checked(download, get_url, signature)


def _run_checked(download: ResumingDownload, get_url: UrlSource, signature: str | None) -> None:
    digest = download.run(get_url)
    if signature and digest != signature.lower():
        raise ChecksumMismatch(f"the SHA-256 is {digest}, expected {signature.lower()}")


def part_name(name: str) -> str:
    """Returns the name of the hidden part file, which is a digest if the name would exceed 255 bytes."""
    part = f".{name}.tidegate-part"
    if len(os.fsencode(part)) <= 255:
        return part
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.tidegate-part"


def download_to(
    pool: urllib3.PoolManager,
    get_url: UrlSource,
    destination: Path,
    *,
    size: int | None = None,
    signature: str | None = None,
    on_progress: Progress | None = None,
) -> None:
    """Downloads into a hidden part file beside `destination`, verifies it, then renames it to `destination`.

    An earlier part file is resumed only if the SHA-256 is known and no other process has locked the part file."""

    def fetch(file: BinaryIO) -> None:
        fetch_verified(ResumingDownload(pool, file, size=size, on_progress=on_progress), get_url, signature)
        os.fsync(file.fileno())

    part = destination.with_name(part_name(destination.name))
    if signature and (locked := _locked(part)):
        with locked:
            fetch(locked)
            # Renamed before the lock is released: another run would resume a file that is about to go.
            part.replace(destination)
        return
    own = destination.with_name(f".{secrets.token_hex(12)}.tidegate-part")
    try:
        with own.open("x+b") as file:
            fetch(file)
        own.replace(destination)
    finally:
        own.unlink(missing_ok=True)


def _locked(part: Path) -> BinaryIO | None:
    """Opens and locks the part file.

    Returns None if another process has locked the part file or has just renamed it, and always on Windows."""
    if sys.platform == "win32":
        return None
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(part.stat(), os.fstat(file.fileno())):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    file.close()
    return None
