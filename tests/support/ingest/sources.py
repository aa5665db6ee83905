"""An HTTP source of files that follows the rules or breaks them, as a test sets it."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache

from tests.support.http_servers import Handler, serve

_RANGE = re.compile(r"bytes=(\d+)-(\d*)")


@dataclass
class Hosted:
    body: bytes = b""
    ranges: bool = True
    content_type: str = "application/octet-stream"
    # (Status, Retry-After or None) to answer before the content, one for each request.
    refusals: list[tuple[int, str | None]] = field(default_factory=list)
    # The connection is cut half-way in this many answers, counted from the first.
    cuts: int = 0
    tell_length: bool = True
    needs_cookie: str | None = None
    redirect: str | None = None
    # The validator sent: "strong" and "weak" are ETags, "date" is Last-Modified, "none" is neither.
    validator: str = "strong"
    last_modified: str = "Mon, 16 Nov 2020 05:00:00 GMT"
    # False: ignores If-Match and If-Unmodified-Since, as simple servers do.
    obeys: bool = True
    # Answers range requests without announcing it by Accept-Ranges.
    silent_about_ranges: bool = False
    served: int = 0

    @property
    def etag(self) -> str:
        strong = f'"{digest_of(self.body)}"'
        return {"strong": strong, "weak": f"W/{strong}"}.get(self.validator, "")

    def refuses(self, handler: Handler) -> bool:
        etag, changed = handler.headers.get("If-Match"), handler.headers.get("If-Unmodified-Since")
        is_other_version = (etag and etag != self.etag) or (changed and changed != self.last_modified)
        return bool(self.obeys and is_other_version)


@lru_cache(maxsize=8)
def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]


@dataclass
class FileSource:
    """Serves `files` by path. `seen` holds the received requests as (path, range or "")."""

    port: int = 0
    files: dict[str, Hosted] = field(default_factory=dict)
    seen: list[tuple[str, str]] = field(default_factory=list)
    # All headers of each request, names in lower case.
    headers: list[dict[str, str]] = field(default_factory=list)
    # Called before each answer. Returns True if it has sent the answer itself.
    hook: Callable[[Handler], bool] = lambda _handler: False
    # Seconds before each answer.
    delay: float = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def answer(self, handler: Handler) -> None:
        hosted = self.files.get(handler.path)
        range_header = handler.headers.get("Range", "")
        with self._lock:
            self.seen.append((handler.path, range_header))
            self.headers.append({name.lower(): value for name, value in handler.headers.items()})
            refusal = hosted.refusals.pop(0) if hosted and hosted.refusals else None
            cut = hosted is not None and not refusal and hosted.cuts > 0
            if hosted and cut:
                hosted.cuts -= 1
        time.sleep(self.delay)
        if self.hook(handler):
            return
        if hosted is None:
            handler.answer(404)
        elif refusal:
            handler.answer(refusal[0], b"", **({"Retry_After": refusal[1]} if refusal[1] else {}))
        elif hosted.redirect:
            handler.answer(302, Location=hosted.redirect)
        elif hosted.needs_cookie and handler.headers.get("Cookie") != hosted.needs_cookie:
            handler.answer(401)
        elif hosted.etag and handler.headers.get("If-None-Match") == hosted.etag:
            handler.answer(304, ETag=hosted.etag)
        elif hosted.refuses(handler):
            handler.answer(412)
        else:
            self._send(handler, hosted, range_header if hosted.ranges else "", cut)

    @staticmethod
    def _send(handler: Handler, hosted: Hosted, range_header: str, cut: bool) -> None:
        match = _RANGE.fullmatch(range_header)
        start = int(match[1]) if match else 0
        end = min(int(match[2] or len(hosted.body) - 1), len(hosted.body) - 1) if match else len(hosted.body) - 1
        body = hosted.body[start : end + 1]
        handler.send_response(206 if match else 200)
        handler.send_header("Content-Type", hosted.content_type)
        if hosted.etag:
            handler.send_header("ETag", hosted.etag)
        if hosted.validator == "date":
            handler.send_header("Last-Modified", hosted.last_modified)
        if hosted.ranges and not hosted.silent_about_ranges:
            handler.send_header("Accept-Ranges", "bytes")
        if match:
            handler.send_header("Content-Range", f"bytes {start}-{end}/{len(hosted.body)}")
        handler.send_header(*(("Content-Length", str(len(body))) if hosted.tell_length else ("Connection", "close")))
        handler.end_headers()
        if handler.command == "HEAD":
            return
        sent = body[: len(body) // 2] if cut else body
        # Only ranges count: the client closes a probe, and the first answer of a file in parts, without reading it.
        hosted.served += len(sent) if match else 0
        handler.wfile.write(sent)
        if cut or not hosted.tell_length:
            handler.wfile.flush()
            handler.close_connection = True


class GatedSource(FileSource):
    """Serves the first megabytes normally, and holds every later range (or a file without ranges) half-way.

    It sends half of the range, then a byte now and then until the gate opens. So the transfers counted by `reading` are
    in progress for certain.
    """

    free_bytes = 8 * 1024 * 1024

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.reading = 0

    def answer(self, handler: Handler) -> None:
        match = _RANGE.fullmatch(handler.headers.get("Range", ""))
        hosted = self.files.get(handler.path)
        free = int(match[1]) < self.free_bytes if match else hosted is None or hosted.ranges
        if hosted is None or free or self.gate.is_set():
            super().answer(handler)
            return
        with self._lock:
            self.seen.append((handler.path, match[0] if match else ""))
            self.reading += 1
        try:
            first, last = (int(match[1]), int(match[2])) if match else (0, len(hosted.body) - 1)
            self._trickle(handler, hosted, first, last)
        except OSError:
            handler.close_connection = True
        finally:
            with self._lock:
                self.reading -= 1

    def _trickle(self, handler: Handler, hosted: Hosted, start: int, last: int) -> None:
        body = hosted.body[start : last + 1]
        handler.send_response(206 if hosted.ranges else 200)
        handler.send_header("ETag", hosted.etag)
        if hosted.ranges:
            handler.send_header("Content-Range", f"bytes {start}-{last}/{len(hosted.body)}")
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        sent = len(body) // 2
        handler.wfile.write(body[:sent])
        while not self.gate.wait(0.05):
            handler.wfile.write(body[sent : sent + 1])
            sent += 1
        handler.wfile.write(body[sent:])


@contextmanager
def file_source(source: FileSource | None = None) -> Iterator[FileSource]:
    source = source or FileSource()
    with serve(source.answer) as port:
        source.port = port
        yield source


@contextmanager
def gated_source() -> Iterator[GatedSource]:
    source = GatedSource()
    with file_source(source):
        try:
            yield source
        finally:
            source.gate.set()
