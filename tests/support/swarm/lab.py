"""Swarms without a cloud: transfers planned by the product's code, and an S3 that counts the bytes it sends."""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tidegate_client.rates import RateLimit

# The workers of a fleet may run on a Python that is too old for the server.
if sys.version_info >= (3, 11):
    from tidegate.distribution.swarm import Member, plan, terms
    from tidegate.files.reading import PieceDigests

JOB_KEY, KEY = "0" * 32, b"a key of 32 bytes for every test"
_CHUNK = 64 * 1024


class CountingOrigin:
    """Serves one file, by ranges too, and its lists. `rate` limits the bytes a second to all callers together."""

    def __init__(self, content: bytes, rate: float | None = None) -> None:
        self.content = content
        self.sent = 0
        self.gets: list[tuple[int, int]] = []
        self.answer_with: int | None = None
        digests = PieceDigests(len(content))
        digests.update(content)
        self.piece_size, self.listed, self.blocks = digests.finish()
        self.signature = hashlib.sha256(content).hexdigest()
        self._rate = RateLimit(rate, saved_seconds=0.05) if rate else None
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/file"

    @property
    def pieces_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/pieces"

    @property
    def blocks_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/blocks"

    @property
    def egress(self) -> float:
        """The bytes sent, in file sizes."""
        return self.sent / len(self.content)

    def count(self, length: int) -> None:
        with self._lock:
            self.sent += length
        if self._rate is not None:
            time.sleep(self._rate.reserve(length))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Callers may disconnect in the middle of an answer."""


def _handler(origin: CountingOrigin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if origin.answer_with is not None:
                self.send_response(origin.answer_with)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            whole = {"/pieces": origin.listed, "/blocks": origin.blocks}.get(self.path, origin.content)
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first = int(asked[1]) if asked else 0
            last = min(len(whole) - 1, int(asked[2]) if asked and asked[2] else len(whole) - 1)
            origin.gets.append((first, last))
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(whole)}")
            self.send_header("Content-Length", str(last - first + 1))
            self.end_headers()
            for at in range(first, last + 1, _CHUNK):
                chunk = whole[at : min(at + _CHUNK, last + 1)]
                self.wfile.write(chunk)
                origin.count(len(chunk))

        def log_message(self, *args: object) -> None:
            """No access log."""

    return Handler


@dataclass
class Placement:
    """A host of the fleet, as in its presence record."""

    agent_id: str
    listen: tuple[str, ...] = ()
    pin: str = ""
    zone: str = ""
    site: str = "dc1"


@dataclass
class SwarmTransfers:
    """Makes the transfers of a fleet, as the API would list them. `changes` replace fields of the swarm block."""

    size: int
    piece_size: int
    pieces_sha256: str
    signature: str
    url: str
    pieces_url: str
    blocks_sha256: str
    blocks_url: str
    lasts: float = 600.0
    key: bytes = KEY
    changes: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, origin: CountingOrigin, **given: Any) -> SwarmTransfers:
        return cls(
            len(origin.content),
            origin.piece_size,
            hashlib.sha256(origin.listed).hexdigest(),
            origin.signature,
            origin.url,
            origin.pieces_url,
            hashlib.sha256(origin.blocks).hexdigest(),
            origin.blocks_url,
            **given,
        )

    def make(self, fleet: Sequence[Placement]) -> dict[str, dict[str, Any]]:
        members = [Member(p.agent_id, p.site, p.zone, p.listen, p.pin) for p in fleet]
        seats = plan(members, JOB_KEY, self.key)
        return {p.agent_id: self._transfer(p.agent_id, seats) for p in fleet}

    def _transfer(self, agent_id: str, seats: dict[str, Any]) -> dict[str, Any]:
        transfer: dict[str, Any] = {
            "transfer_id": f"tr-{JOB_KEY}-0-1",
            "container_id": "",
            "url": self.url,
            "expires_at": "2030-01-01T00:00:00.000Z",
            "file_name": "release.bin",
            "target_file_dir": "/",
            "target_user": "nobody",
            "signature": self.signature,
            "size": self.size,
        }
        if agent_id in seats:
            transfer["swarm"] = terms(seats[agent_id], self.key) | {
                "age": 0.0,
                "lasts": self.lasts,
                "piece_size": self.piece_size,
                "pieces_sha256": self.pieces_sha256,
                "pieces_url": self.pieces_url,
                "blocks_sha256": self.blocks_sha256,
                "blocks_url": self.blocks_url,
                **self.changes,
            }
        return transfer


def next_release(old: bytes, seed: int = 2, files: int = 200, changed: float = 0.03) -> bytes:
    """The same archive with a share of its files replaced by others of a slightly different length."""
    drawn = random.Random(seed)
    edges = [0, *sorted(drawn.sample(range(1, len(old)), files - 1)), len(old)]
    parts = [old[first:last] for first, last in itertools.pairwise(edges)]
    left = changed * len(old)
    for number in drawn.sample(range(files), files):
        if left < len(parts[number]):
            continue
        left -= len(parts[number])
        parts[number] = drawn.randbytes(int(len(parts[number]) * drawn.uniform(0.9, 1.1)))
    return b"".join(parts)


def random_content(size: int, seed: int = 1) -> bytes:
    drawn = random.Random(seed)
    whole = -(-size // _CHUNK)
    return b"".join(drawn.randbytes(_CHUNK) for _ in range(whole))[:size]
