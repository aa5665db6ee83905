"""A business on this machine that answers items quickly and records each call.

Run as a program, it serves until its standard input closes. GET /calls returns the recorded calls.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]


class _Connection(asyncio.Protocol):
    calls: list[tuple[float, int, int, str]] = []

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            at = head.find(b"content-length:")
            length = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._received) < end + 4 + length:
                return
            body = self._received[end + 4 : end + 4 + length]
            self._received = self._received[end + 4 + length :]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"get /calls"):
            content = json.dumps(self.calls).encode()
        elif head.startswith(b"delete /calls"):
            content = b"[]"
            self.calls.clear()
        elif b"?n=" in head[:40]:
            # Calls of n items, answered in order without being parsed, to save CPU time.
            count = int(head[head.index(b"?n=") + 3 : 60].split(b" ", 1)[0])
            self.calls.append((time.time(), 0, 1, ""))
            ok = b'{"result":"ok"}'
            content = ok if count == 1 else b'{"results":[' + b",".join([ok] * items_in(body, count)) + b"]}"
        else:
            item = json.loads(body)
            target = head.split(b" ", 2)[1].decode()
            self.calls.append((time.time(), item["index"], item["attempt"], target))
            content = b'{"result":"ok"}'
        self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(content) + content)


def items_in(body: bytes, count: int) -> int:
    """Returns the number of items in a body; the last call of a runner may have fewer than `count`."""
    return min(count, body.count(b'"index":'))


async def _main() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


class Receiver:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/process"
        self._calls = f"http://127.0.0.1:{port}/calls"

    def calls(self) -> list[tuple[float, int, int]]:
        with urllib.request.urlopen(self._calls, timeout=10) as answer:
            return [(moment, index, attempt) for moment, index, attempt, _ in json.load(answer)]

    def moments(self, target: str) -> list[float]:
        """Returns the times at which this target, a path with its query, was called."""
        with urllib.request.urlopen(self._calls, timeout=10) as answer:
            return [moment for moment, _, _, called in json.load(answer) if called == target]

    def forget(self) -> None:
        urllib.request.urlopen(urllib.request.Request(self._calls, method="DELETE"), timeout=10).close()


@contextmanager
def receiver() -> Iterator[Receiver]:
    """Runs a receiver in a separate process, so that it takes no time from the runner."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.batches.receiver"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout
    try:
        yield Receiver(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def busiest_second(moments: list[float]) -> int:
    """Returns the largest number of calls within any second."""
    ordered, most, first = sorted(moments), 0, 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] >= 1:
            first += 1
        most = max(most, last - first + 1)
    return most


if __name__ == "__main__":
    asyncio.run(_main())
