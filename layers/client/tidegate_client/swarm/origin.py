"""Pieces from S3: ranged GETs of the presigned link, in threads, with a new link when one has expired."""

from __future__ import annotations

import threading
from collections.abc import Callable

import urllib3
from urllib3.exceptions import HTTPError

from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.download import ONLY_REDIRECTS, TRANSIENT, Link
from tidegate_client.errors import TransferError
from tidegate_client.swarm.store import CHUNK

_TIMEOUT = urllib3.Timeout(connect=5, read=20)


class OriginFailed(Exception):
    """Not this time; worth another try."""


class Origin:
    def __init__(self, pool: urllib3.PoolManager, link: Link, download: RateLimit | None) -> None:
        self._pool = pool
        self._link = link
        self._download = download
        self._url: str | None = None
        self._lock = threading.Lock()
        self.received = 0

    def fetch(self, start: int, length: int, keep: Callable[[bytes], None], cancelled: threading.Event) -> None:
        """Give exactly these bytes of the file to `keep`, in order. Returns early if it is called off."""
        url = self._current()
        headers = {"Accept-Encoding": "identity", "Range": f"bytes={start}-{start + length - 1}"}
        try:
            response = self._pool.request(
                "GET", url, headers=headers, preload_content=False, timeout=_TIMEOUT, retries=ONLY_REDIRECTS
            )
        except HTTPError as error:
            raise OriginFailed(str(error)) from error
        try:
            self._check(response.status, response.headers.get("Content-Range", ""), start, url)
            left = length
            for chunk in response.stream(CHUNK, decode_content=False):
                left -= len(chunk)
                if left < 0:
                    raise OriginFailed("the store sent more than was asked for")
                self._count(len(chunk))
                if cancelled.wait(self._download.reserve(len(chunk)) if self._download else 0.0):
                    return
                keep(chunk)
            if left:
                raise OriginFailed("the store's answer was cut short")
        except HTTPError as error:
            raise OriginFailed(str(error)) from error
        finally:
            if cancelled.is_set():
                response.close()
            else:
                response.release_conn()

    def list_at(self, url: str, longest: int) -> bytes:
        try:
            response = self._pool.request("GET", url, timeout=_TIMEOUT, retries=ONLY_REDIRECTS, preload_content=False)
            content = response.read(longest + 1, decode_content=False)
            response.close()
        except HTTPError as error:
            raise OriginFailed(str(error)) from error
        if response.status != 200:
            raise OriginFailed(f"the store answered HTTP {response.status} for a list")
        self._count(len(content))
        return content

    def _check(self, status: int, content_range: str, start: int, url: str) -> None:
        if status == 403:
            self._renew(url)
            raise OriginFailed("the link is not accepted")
        if status in TRANSIENT:
            raise OriginFailed(f"HTTP {status}")
        if status != 206 or not content_range.startswith(f"bytes {start}-"):
            raise TransferError(f"the store answered HTTP {status} to a ranged request", status=status)

    def _current(self) -> str:
        with self._lock:
            if self._url is None:
                self._url = self._link(None)
            return self._url

    def _renew(self, refused: str) -> None:
        with self._lock:
            if self._url == refused:
                self._url = self._link(refused)

    def _count(self, length: int) -> None:
        with self._lock:
            self.received += length
