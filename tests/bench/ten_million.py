"""Exports ten million rows on the deployed stack and kills workers at random: the file has every row once, in order.

    python -m tests.bench.ten_million [--rows 10000000] [--kills 12] [--type excel]

Prints the time, the attempts, what was killed and the largest memory of a worker. Not part of `make bench`: it takes
some minutes and a few hundred MB of disk.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import parse_qs, urlsplit

from tests.support.deployed import Deployed, DeployedProject, deployed_at
from tests.support.http_servers import free_port
from tests.support.workers import workers

STEP = 5000
OVER = ("completed", "failed", "cancelled")
ROW = '{"id":%d,"name":"名字 %d","city":"上海","amount":%d.25,"paid":true,"note":null}'
FUNCTIONS = ("RenderRangesFunction", "RenderRangesFunction", "RenderRangesFunction", "RenderExportFunction")
_ROW_CELL = re.compile(rb"<row[^>]*><c[^>]*>(?:<v>|<is><t>)(\d+)<")


def serve(port: int, rows: int) -> None:
    class Source(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            size = int(query["page_size"][0])
            first = int(query["page"][0]) * size
            text = ",".join(ROW % (n, n, n) for n in range(first, min(first + size, rows)))
            body = f'{{"status":200,"data":{{"total":{rows},"data":[{text}]}}}}'.encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Logs nothing for single pages."""

    ThreadingHTTPServer(("127.0.0.1", port), Source).serve_forever()


def memory_mb(pid: int) -> float:
    """The peak memory of a process; 0 if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024 if "VmHWM:" in status else 0.0


class Killer:
    """Kills a worker at random every few seconds, until it has killed enough."""

    def __init__(self, deployed: Deployed, kills: int, seed: int) -> None:
        self._deployed, self._left, self._random = deployed, kills, random.Random(seed)
        self._next = time.monotonic() + 8
        self.killed: Counter[str] = Counter()
        self.peak = 0.0

    def look(self) -> None:
        for pid in workers(self._deployed, "RenderRangesFunction"):
            self.peak = max(self.peak, memory_mb(pid))
        if not self._left or time.monotonic() < self._next:
            return
        function = self._random.choice(FUNCTIONS)
        if found := workers(self._deployed, function):
            os.kill(self._random.choice(found), signal.SIGKILL)
            self.killed[function] += 1
            self._left -= 1
            self._next = time.monotonic() + self._random.uniform(2, 8)


def run(deployed: Deployed, project: DeployedProject, url: str, kind: str, killer: Killer) -> dict[str, Any]:
    order = {"name": "ten million", "type": kind, "source_url": url, "step": STEP, "parallel": 16}
    submitted = project.http("POST", "/v1/task", json=order)
    if submitted.status != 202:
        raise SystemExit(f"not accepted: {submitted.body!r}")
    while True:
        shown: dict[str, Any] = project.http("GET", "/v1/task", query={"task_id": submitted.json()["task_id"]}).json()
        if shown["status"] in OVER:
            return shown
        killer.look()
        time.sleep(0.5)


def ids(path: Path, kind: str) -> Iterator[int]:
    if kind == "csv":
        with path.open("rb") as lines:
            next(lines)
            yield from (int(line.partition(b",")[0]) for line in lines)
        return
    with zipfile.ZipFile(path) as book:
        names = [name for name in book.namelist() if name.startswith("xl/worksheets/sheet")]
        for name in sorted(names, key=lambda name: int(re.sub(r"\D", "", name))):
            with book.open(name) as sheet:
                yield from _sheet_ids(sheet)


def _sheet_ids(sheet: Any) -> Iterator[int]:
    held = b""
    while block := sheet.read(1 << 20):
        held += block
        end = held.rfind(b"</row>")
        if end >= 0:
            yield from (int(found) for found in _ROW_CELL.findall(held[:end]))
            held = held[end:]
    yield from (int(found) for found in _ROW_CELL.findall(held))


def fetch(deployed: Deployed, project: DeployedProject, task_id: str, out: BinaryIO) -> None:
    link = project.http("GET", "/v1/download/url", query={"task_id": task_id}).json()["url"]
    answer = deployed.pool.request("GET", link, preload_content=False)
    for block in answer.stream(1 << 20):
        out.write(block)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=12)
    parser.add_argument("--type", choices=["csv", "excel"], default="excel")
    parser.add_argument("--seed", type=int, default=21)
    args = parser.parse_args()
    port = free_port()
    source = multiprocessing.get_context("spawn").Process(target=serve, args=(port, args.rows), daemon=True)
    source.start()
    try:
        with tempfile.TemporaryDirectory() as home, deployed_at(Path(home)) as deployed:
            project, killer = deployed.project(), Killer(deployed, args.kills, args.seed)
            began = time.monotonic()
            shown = run(deployed, project, f"http://127.0.0.1:{port}/", args.type, killer)
            seconds = time.monotonic() - began
            print(f"{shown['status']} after {seconds:.0f} s, attempts {shown['attempts']}, {shown.get('size')} bytes")
            print(f"killed {dict(killer.killed)}; a worker's largest memory {killer.peak:.0f} MB", flush=True)
            if shown["status"] != "completed":
                print(shown)
                return 1
            path = Path(home) / "fetched"
            with path.open("wb") as out:
                fetch(deployed, project, shown["task_id"], out)
            count = 0
            for found in ids(path, args.type):
                if found != count:
                    print(f"row {count} has the id {found}")
                    return 1
                count += 1
            print(f"{count} rows, in order, once; warnings: {shown.get('warnings')}")
            return 0 if count == args.rows else 1
    finally:
        source.terminate()


if __name__ == "__main__":
    sys.exit(main())
