"""Fetches pieces and lists from S3 with ranged GETs of a presigned URL. All calls block: they run in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import urllib3
from urllib3.exceptions import HTTPError

from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.download import ONLY_REDIRECTS, TRANSIENT, Stalled, UrlSource
from tidegate_client.errors import TransferError
from tidegate_client.swarm.store import CHUNK

_TIMEOUT = urllib3.Timeout(connect=5, read=20)


class OriginFailed(Exception):
    """This attempt failed; a later one may succeed."""


class Origin:
    def __init__(self, pool: urllib3.PoolManager, get_url: UrlSource, download: RateLimit | None) -> None:
        """`get_url` returns a presigned URL, and a fresh one if it is called with a URL that was refused."""
        self._pool = pool
        self._get_url = get_url
        self._download = download
        self._url: str | None = None
        # Held while a fresh URL is awaited, which may take 45 s: transfers that run meanwhile must not need it.
        self._url_lock = threading.Lock()
        self._count_lock = threading.Lock()
        self.received = 0

    def fetch(self, start: int, length: int, keep: Callable[[bytes], None], cancelled: threading.Event) -> None:
        """Passes exactly these bytes of the file to `keep`, in order. Returns early when `cancelled` is set."""
        url = self._current()
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + length - 1}"}
        try:
            response = self._pool.request(
                "GET", url, headers=headers, preload_content=False, timeout=_TIMEOUT, retries=ONLY_REDIRECTS
            )
        except HTTPError as error:
            raise OriginFailed(str(error)) from error
        left = length
        try:
            self._check(response.status, response.headers.get("Content-Range", ""), start, url)
            for chunk in response.stream(CHUNK, decode_content=False):
                left -= len(chunk)
                if left < 0:
                    raise OriginFailed("S3 sent more bytes than were asked for")
                self._count(len(chunk))
                if cancelled.wait(self._download.reserve(len(chunk)) if self._download else 0.0):
                    return
                keep(chunk)
            if left:
                raise OriginFailed(f"S3 closed the connection {left} bytes before the end of the range")
        except HTTPError as error:
            raise OriginFailed(str(error)) from error
        finally:
            if left or cancelled.is_set():
                # The rest of the body would be read as the answer to the next request on this connection.
                response.close()
            else:
                response.release_conn()

    def list_at(self, url: str, length: int) -> bytes:
        """The object at this URL, which must have this length. Raises OriginFailed, or TransferError if S3 refuses."""
        try:
            response = self._pool.request("GET", url, timeout=_TIMEOUT, retries=ONLY_REDIRECTS, preload_content=False)
            try:
                content = response.read(length + 1, decode_content=False)
            finally:
                response.close()
        except HTTPError as error:
            raise OriginFailed(str(error)) from error
        if response.status in TRANSIENT:
            raise OriginFailed(f"S3 answered HTTP {response.status}")
        if response.status != 200:
            raise TransferError(f"S3 answered HTTP {response.status}", status=response.status)
        self._count(len(content))
        if len(content) != length:
            raise OriginFailed(f"S3 sent {len(content)} bytes or more; {length} were expected")
        return content

    def _check(self, status: int, content_range: str, start: int, url: str) -> None:
        if status == 403:
            self._renew(url)
            raise OriginFailed("the URL was refused (HTTP 403)")
        if status in TRANSIENT:
            raise OriginFailed(f"S3 answered HTTP {status}")
        if status != 206 or not content_range.startswith(f"bytes {start}-"):
            raise TransferError(f"S3 answered HTTP {status} to a ranged request", status=status)

    def _current(self) -> str:
        with self._url_lock:
            if self._url is None:
                self._url = self._get_url(None)
            return self._url

    def _renew(self, refused: str) -> None:
        with self._url_lock:
            if self._url == refused:
                try:
                    self._url = self._get_url(refused)
                except Stalled as error:
                    # Peers may have the pieces: without S3 the transfer continues as long as bytes arrive at all.
                    raise OriginFailed(str(error)) from error

    def _count(self, length: int) -> None:
        with self._count_lock:
            self.received += length
