"""Downloads which continue where they were cut, and appear only when they are whole and right."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import urllib3
from urllib3.exceptions import HTTPError
from urllib3.response import BaseHTTPResponse
from urllib3.util.retry import Retry

from tidegate_client.content import CHUNK, Progress
from tidegate_client.errors import ChecksumMismatch, LinkExpired, TransferError

# Gives a URL; asked again with the one that was refused, it gives another.
Link = Callable[[str | None], str]
# Told of bytes that came; returns when the next may come, or when the second argument says that it is called off.
Throttle = Callable[[int, Callable[[], bool]], None]
TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
ONLY_REDIRECTS = Retry(total=3, connect=0, read=0, status=0, other=0, redirect=3)
LONGEST_PAUSE = 8.0


class Cancelled(Exception):
    """The download was called off; what has arrived stays for the next try."""


class Stalled(TransferError):
    """No byte came for a long time; what has arrived stays, and a later try may go on from it."""


class _Interrupted(Exception):
    pass


class ResumingDownload:
    """Fills an open file from a URL; bytes already in the file are kept and asked for no more."""

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
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pool = pool
        self._file = file
        self._size = size
        self._on_progress = on_progress or (lambda _done, _total: None)
        self._cancelled = cancelled
        self._patience = patience
        self._throttle = throttle
        self._sleep = sleep
        self._digest = hashlib.sha256()
        self.offset = 0
        self._take_over()

    def run(self, link: Link) -> str:
        """Download all of it and return its SHA-256. Gives up after `patience` seconds without one new byte."""
        url = link(None)
        progress_at, pauses = time.monotonic(), 0
        while self._size is None or self.offset < self._size:
            before = self.offset
            try:
                self._attempt(url)
                break
            except LinkExpired:
                url = link(url)
                reason = "the link is not accepted"
            except (_Interrupted, HTTPError) as error:
                reason = str(error)
            if self.offset > before:
                progress_at, pauses = time.monotonic(), 0
            elif time.monotonic() - progress_at > self._patience:
                raise Stalled(f"no byte for {self._patience:.0f} s: {reason}")
            self._pause(pauses)
            pauses += 1
        self._file.flush()
        if self._size is not None and self.offset < self._size:
            raise ChecksumMismatch(f"only {self.offset} of the announced {self._size} bytes exist")
        return self._digest.hexdigest()

    def restart(self) -> None:
        self._file.seek(0)
        self._file.truncate()
        self._digest = hashlib.sha256()
        self.offset = 0

    def _take_over(self) -> None:
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
            # What is unread would otherwise be read by the pool before it reuses the connection.
            response.close()

    def _check(self, response: BaseHTTPResponse) -> None:
        status = response.status
        if status == 403:
            raise LinkExpired("the link is not accepted (any more)", status=status)
        if status in TRANSIENT:
            raise _Interrupted(f"HTTP {status}")
        if status == 416 and self.offset:
            self.restart()
            raise _Interrupted("the store holds less than the part file")
        if status not in {200, 206}:
            raise TransferError(f"the store answered HTTP {status}", status=status)
        continues = status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {self.offset}-")
        if self.offset and not continues:
            self.restart()
            if status == 206:
                raise _Interrupted("the store sent another range than asked")

    def _keep(self, chunk: bytes) -> None:
        if self._cancelled():
            raise Cancelled
        if self._size is not None and self.offset + len(chunk) > self._size:
            raise ChecksumMismatch(f"more than the announced {self._size} bytes arrive")
        self._file.write(chunk)
        self._digest.update(chunk)
        self.offset += len(chunk)
        self._on_progress(self.offset, self._size)
        if self._throttle:
            self._throttle(len(chunk), self._cancelled)

    def _pause(self, pauses: int) -> None:
        if self._cancelled():
            raise Cancelled
        if pauses:
            self._sleep(random.uniform(0.5, 1) * min(0.2 * 2**pauses, LONGEST_PAUSE))  # noqa: S311


def fetch_verified(download: ResumingDownload, link: Link, signature: str | None) -> None:
    """Run the download and check it; a part inherited from another run gets one second chance from byte 0."""
    if download.offset:
        with contextlib.suppress(ChecksumMismatch):
            return _run_checked(download, link, signature)
        download.restart()
    return _run_checked(download, link, signature)


def _run_checked(download: ResumingDownload, link: Link, signature: str | None) -> None:
    digest = download.run(link)
    if signature and digest != signature.lower():
        raise ChecksumMismatch(f"SHA-256 is {digest}, announced was {signature.lower()}")


def part_name(name: str) -> str:
    """The hidden name of a part file; of a name near the file system's limit of 255 bytes, a digest."""
    part = f".{name}.tidegate-part"
    if len(os.fsencode(part)) <= 255:
        return part
    return f".{hashlib.sha256(os.fsencode(name)).hexdigest()}.tidegate-part"


def download_to(
    pool: urllib3.PoolManager,
    link: Link,
    destination: Path,
    *,
    size: int | None = None,
    signature: str | None = None,
    on_progress: Progress | None = None,
) -> None:
    """Download into a hidden part file beside `destination`, then rename."""
    part = destination.with_name(part_name(destination.name))
    # Without a digest nothing tells a part of this content from a part of another.
    with part.open("r+b" if signature and part.exists() else "w+b") as file:
        fetch_verified(ResumingDownload(pool, file, size=size, on_progress=on_progress), link, signature)
        os.fsync(file.fileno())
    part.replace(destination)
