"""One host's download of a large file: the agent's, and aria2's with its best settings.

    python -m tests.bench.downloads [--quick]

The origin is a process of its own that sends a file by `sendfile`, to each connection at the rate that it is given.
Both programs check the SHA-256. The agent's own part is measured as it runs, a program that has long been started;
aria2 is measured as a whole, which adds some milliseconds. They run in turn; the best of some rounds counts.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import urllib3

from tests.bench.figures import Figure, few, skipped, table
from tests.support.swarm.lab import random_content
from tests.support.template import ROOT
from tidegate_client.download import ResumingDownload, fetch_verified
from tidegate_client.rates import RateLimit

SECTION = "One host's download over HTTP, its SHA-256 checked"
MIB = 1 << 20
# S3 sends one connection less than a host can take.
PER_CONNECTION = 40 * MIB
ARIA2 = shutil.which("aria2c")
_PIECE = 256 * 1024


class Took(NamedTuple):
    seconds: float
    cpu: float


class _Origin(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    path_of_file, rate = "", 0.0

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        with Path(self.path_of_file).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            at, last = (int(asked[1]), min(size - 1, int(asked[2] or size))) if asked else (0, size - 1)
            self.send_response(206 if asked else 200)
            if asked:
                self.send_header("Content-Range", f"bytes {at}-{last}/{size}")
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last + 1 - at))
            self.end_headers()
            limit = RateLimit(self.rate, saved_seconds=0.05) if self.rate else None
            while send and at <= last:
                count = min(_PIECE, last + 1 - at)
                at += os.sendfile(self.connection.fileno(), file.fileno(), at, count)
                if limit:
                    limit.take(count)

    def log_message(self, *args: object) -> None:
        """No access log."""


def serve(path: str, rate: float) -> None:
    _Origin.path_of_file, _Origin.rate = path, rate
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Origin)
    print(server.server_address[1], flush=True)
    server.serve_forever()


@contextmanager
def origin(path: Path, rate: float) -> Iterator[str]:
    """Yields the URL of the file."""
    command = [sys.executable, "-m", "tests.bench.downloads", "--serve", str(path), "--rate", str(rate)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/file"
    finally:
        process.kill()
        process.communicate()


def agent(url: str, size: int, signature: str, out: Path) -> None:
    """The agent's download (`agent/delivery.py`), in this process. Prints what it took."""
    with out.open("x+b") as file:
        began, cpu = time.perf_counter(), time.process_time()
        download = ResumingDownload(urllib3.PoolManager(), file, size=size)
        fetch_verified(download, lambda _: url, signature)
        os.fsync(file.fileno())
        print(json.dumps([time.perf_counter() - began, time.process_time() - cpu]))


def by_agent(url: str, size: int, signature: str, out: Path) -> Took:
    arguments = ["--agent", url, "--size", str(size), "--signature", signature, "--out", str(out)]
    command = [sys.executable, "-m", "tests.bench.downloads", *arguments]
    return Took(*json.loads(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout))


def by_aria2(url: str, size: int, signature: str, out: Path) -> Took:
    """Sixteen connections, which is the most it makes to one host, ranges of a MiB or more, no allocation."""
    options = ["--split=16", "--max-connection-per-server=16", "--min-split-size=1M", "--file-allocation=none"]
    options += [f"--checksum=sha-256={signature}", "--disk-cache=64M", "--enable-rpc=false", "--no-conf", "--quiet"]
    began = time.perf_counter()
    process = subprocess.Popen([str(ARIA2), *options, "--dir", str(out.parent), "--out", out.name, url])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or out.stat().st_size != size:
        raise SystemExit(f"aria2 ended with {process.returncode}")
    with out.open("rb") as file:
        os.fsync(file.fileno())
    return Took(time.perf_counter() - began, used.ru_utime + used.ru_stime)


WAYS = {"agent": by_agent} | ({"aria2": by_aria2} if ARIA2 else {})


def measure(quick: bool) -> Iterator[Figure]:
    size = few(512 if quick else 2048) * MIB
    for rate in (0, PER_CONNECTION):
        named = f"{rate // MIB} MiB/s a connection" if rate else "as fast as it goes"
        best: dict[str, Took] = {}
        with tempfile.TemporaryDirectory() as home:
            content = random_content(size)
            source = Path(home) / "source"
            source.write_bytes(content)
            signature = hashlib.sha256(content).hexdigest()
            del content
            with origin(source, rate) as url:
                for _ in range(few(3)):
                    for name, download in WAYS.items():
                        out = Path(home) / "out"
                        took = download(url, size, signature, out)
                        out.unlink()
                        best[name] = min(best.get(name, took), took)
        gigabytes = size / 1e9
        for name, took in best.items():
            note = f"{took.cpu / gigabytes:.2f} s of processor time a GB"
            speed = size / MIB / took.seconds
            yield Figure(SECTION, f"{name}, {size // MIB} MiB, {named}", speed, "MiB/s", note=note)
        if "aria2" not in best:
            yield skipped(SECTION, f"aria2, {named}", "not installed (Debian: apt install aria2)")
            continue
        ours, theirs = best["agent"], best["aria2"]
        # By default a connection is all that the agent makes to S3, so that a fleet leaves others their share.
        bar = None if rate else 1.5
        yield Figure(SECTION, f"agent : aria2, seconds, {named}", ours.seconds / theirs.seconds, "×", bar)
        yield Figure(SECTION, f"agent : aria2, processor seconds, {named}", ours.cpu / theirs.cpu, "×", 1.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--serve")
    parser.add_argument("--rate", type=float, default=0.0)
    parser.add_argument("--agent")
    parser.add_argument("--size", type=int)
    parser.add_argument("--signature")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.rate)
    elif args.agent:
        agent(args.agent, args.size, args.signature, args.out)
    else:
        print(table(list(measure(args.quick))))


if __name__ == "__main__":
    main()
