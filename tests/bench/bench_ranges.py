"""Exports in ranges: how time falls with workers, what S3 is asked for, what a worker's memory is.

    python -m tests.bench.bench_ranges [--quick]

The services are the product's; S3 is a folder that counts requests, the source hands out ready pages after a wait.
Workers are processes of their own.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.bench.bench_export import fill_cells, peak_mb
from tests.bench.figures import Figure, few, table
from tests.support.exports.fill import sheet_of
from tests.support.exports.samples import mixed_rows
from tidegate.aws.s3 import PlannedPart, StoredPiece
from tidegate.exports import PARALLEL
from tidegate.exports.model import ExportSpec, Fill, TableSpec
from tidegate.exports.pull import THREADS, RangePlan, pull
from tidegate.exports.ranges import join, work
from tidegate.exports.store import fill_object
from tidegate.queue.model import Request

SECTION = "Exports in ranges, Excel, ten columns, pages of 1,000 rows"
STEP = 1000
# Of the one whose bar is near: a single run would say how busy the machine was.
ROUNDS = 5
REQUEST = Request("exp-1", "prj-1", "export", "export", 5, "running", "", {"file_name": "f"}, attempt=1)


class Folder:
    """As much of the bucket as ranges need; every request is a byte in a file of its own, whoever made it."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def _asked(self, kind: str) -> None:
        with (self._place / f"asked-{kind}").open("ab") as out:
            out.write(b".")

    def asked(self) -> dict[str, int]:
        return {path.name.removeprefix("asked-"): path.stat().st_size for path in self._place.glob("asked-*")}

    def _path(self, key: str) -> Path:
        return self._place / key.replace("/", "+")

    def get(self, key: str) -> bytes | None:
        self._asked("get")
        return self._path(key).read_bytes() if self._path(key).exists() else None

    def put(self, key: str, data: bytes | bytearray, content_type: str = "") -> None:
        self._asked("put")
        self._path(key).write_bytes(data)

    def put_first(self, key: str, data: bytes) -> bytes:
        self.put(key, data)
        return data

    def store(self, key: str, data: bytes | bytearray) -> str:
        # As it is: a copy here would count as the worker's memory.
        self.put(key, data)
        return ""

    def keys(self, prefix: str) -> Iterator[str]:
        self._asked("list")
        start = prefix.replace("/", "+")
        yield from (path.name.replace("+", "/") for path in self._place.iterdir() if path.name.startswith(start))

    def abort_uploads(self, prefix: str) -> int:
        self._asked("list")
        return 0

    def assemble(self, key: str, content_type: str, parts: Sequence[PlannedPart]) -> int:
        for part in parts:
            self._asked("copy" if part.copied else "upload")
            for piece in part.pieces:
                if isinstance(piece, StoredPiece) and not part.copied:
                    self._asked("get")
                    with (self._place / "moved").open("ab") as out:
                        out.truncate(out.tell() + piece.size)
        self._asked("create")
        self._asked("complete")
        return sum(part.size for part in parts)


@cache
def page_of_rows() -> bytes:
    """Made once and handed on to forked workers: writing its own rows is the source's work, not the product's."""
    return json.dumps(list(mixed_rows(STEP)), ensure_ascii=False).encode()


class Source:
    """The same thousand rows again and again, after `wait` seconds."""

    def __init__(self, rows: int, wait: float) -> None:
        self._rows, self._wait = rows, wait
        self._page = page_of_rows()

    def page(self, number: int) -> bytes:
        time.sleep(self._wait)
        rows = self._page if number * STEP < self._rows else b"[]"
        return b'{"status":200,"data":{"total":%d,"data":%s}}' % (self._rows, rows)

    def send(self, _method: str, url: str, **_: object) -> Any:
        """In place of the HTTP client."""
        body = self.page(int(url.partition("page=")[2].partition("&")[0]))
        return SimpleNamespace(body=body, headers={}, raise_for_status=lambda: None)


def _source(rows: int, wait: float) -> Any:
    return Source(rows, wait)


def bench_exports(objects: Any, source: Any, most_lanes: int = 8) -> Any:
    """What pulling and rendering use of `Exports`."""
    project = SimpleNamespace(project_id=REQUEST.project_id, allow_private_urls=True)
    return SimpleNamespace(
        objects=objects,
        http=source,
        projects=SimpleNamespace(get=lambda _: project),
        parallel=PARALLEL,
        most_lanes=most_lanes,
        sleep=time.sleep,
    )


def spec(parallel: int, fill: bool = False) -> ExportSpec:
    filled = Fill("template", {"who": "ACME"}) if fill else None
    return ExportSpec(
        (TableSpec(source_url="http://source/"),), type="excel", step=STEP, parallel=parallel, fill=filled
    )


def planned(objects: Any, rows: int, wait: float, parallel: int, fill: bool) -> RangePlan:
    if fill:
        objects.put(fill_object(REQUEST.project_id, REQUEST.request_id), sheet_of(fill_cells()))
    exports = bench_exports(objects, _source(rows, wait))
    plan = pull(exports, REQUEST, spec(parallel, fill), lambda _: None, 900)
    if not isinstance(plan, RangePlan):
        raise SystemExit(f"not planned as expected: {plan}")
    return plan


def lane(place: Path, rows: int, wait: float, parallel: int, number: int, plan: RangePlan, fill: bool = False) -> None:
    objects: Any = Folder(place)
    began = time.process_time()
    exports = bench_exports(objects, _source(rows, wait))
    work(exports, REQUEST, spec(parallel, fill), number, lambda _: None, 900, plan)
    (place / f"seconds-{number}").write_text(str(time.process_time() - began))


@dataclass(frozen=True)
class Ran:
    """Seconds from plan to file, processor seconds of each worker, requests, and bytes through the joiner."""

    seconds: float
    processor: list[float]
    asked: dict[str, int]
    moved: int


def run(rows: int, wait: float, lanes: int, fill: bool = False) -> Ran:
    with tempfile.TemporaryDirectory() as home:
        place, parallel = Path(home), lanes * 4
        objects: Any = Folder(place)
        page_of_rows()
        began = time.perf_counter()
        plan = planned(objects, rows, wait, parallel, fill)
        if plan.lanes != lanes:
            raise SystemExit(f"not planned as expected: {plan}")
        forked = multiprocessing.get_context("fork")
        workers = [
            forked.Process(target=lane, args=(place, rows, wait, parallel, number, plan, fill))
            for number in range(lanes)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        made = join(objects, REQUEST, spec(parallel, fill))
        seconds = time.perf_counter() - began
        if made is None or made.rows != rows:
            raise SystemExit(f"{rows} rows were expected: {made}")
        processor = [float((place / f"seconds-{number}").read_text()) for number in range(lanes)]
        moved = place / "moved"
        return Ran(seconds, processor, objects.asked(), moved.stat().st_size if moved.exists() else 0)


def one_worker(rows: int, fill: bool) -> None:
    """In a process of its own: what the memory is at its peak."""
    with tempfile.TemporaryDirectory() as home:
        objects: Any = Folder(Path(home))
        lane(Path(home), rows, 0, 4, 0, planned(objects, rows, 0, 4, fill), fill)
    print(peak_mb())


def worker_peak(rows: int, fill: bool = False) -> float:
    command = [sys.executable, "-m", "tests.bench.bench_ranges", "--worker", str(rows), *["--fill"][:fill]]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def pull_seconds(pages: int, wait: float) -> float:
    """What pulling alone takes one worker: page 0, which has the total, then the others, four at a time."""
    return wait * (1 + math.ceil((pages - 1) / THREADS))


def measure(quick: bool) -> Iterator[Figure]:
    wait = 0.2
    for pages, lanes in ((few(96, 20), 1), (few(96, 20), 4), (few(96, 20), 8), *([] if quick else [(480, 4)])):
        seconds = statistics.median(
            run(pages * STEP, wait, lanes).seconds for _ in range(few(ROUNDS) if lanes == 4 else 1)
        )
        pull = pull_seconds(pages, wait)
        bar = 1.25 * pull / lanes if lanes == 4 else None
        ideal = f"pull alone ÷ {lanes}: {pull / lanes:.2f} s"
        name = f"source of 200 ms, {pages} pages, {lanes} workers of 4 threads ({ideal})"
        yield Figure(SECTION, name, round(seconds, 2), "s", bar)
    ran = run(few(1_000_000, 20_000), 0, 8)
    yield Figure(SECTION, "S3 requests a million rows, 8 workers", sum(ran.asked.values()), "", 60)
    yield Figure(SECTION, "bytes through the joiner", round(ran.moved / 2**20, 1), "MiB", 10 * 9)
    millions = 1 if quick else 5
    small, large = worker_peak(few(200_000, 20_000)), worker_peak(few(millions * 1_000_000, 20_000))
    yield Figure(SECTION, "a worker's peak at 200,000 rows", round(small), "MB", 80)
    yield Figure(SECTION, f"a worker's peak at {millions} million rows", round(large), "MB", 80)
    yield Figure(SECTION, "that to the peak at 200,000", round(large / small, 2), "×", 1.10)
    yield from filled(quick)
    if not quick:
        yield from two_processes()


def filled(quick: bool) -> Iterator[Figure]:
    """Two workers that fill a template, against two that write a plain workbook, by their processor time."""
    rows = few(1_000_000, 20_000)
    ratios = [sum(run(rows, 0, 2).processor) / sum(run(rows, 0, 2, True).processor) for _ in range(1 if quick else 3)]
    yield Figure(
        SECTION, f"filled template : plain, {rows:,} rows", round(statistics.median(ratios), 2), "×", 0.5, True
    )
    small, large = worker_peak(few(200_000, 20_000), True), worker_peak(rows, True)
    yield Figure(SECTION, f"peak of a worker that fills {rows:,} rows", round(large), "MB", 80)
    yield Figure(SECTION, "that to the peak at 200,000", round(large / small, 2), "×", 1.10)


def two_processes() -> Iterator[Figure]:
    one, two = run(1_000_000, 0, 1), run(1_000_000, 0, 2)
    name = "two processes : one, no wait"
    yield Figure(SECTION, name, round(one.seconds / two.seconds, 2), "×", 1.6, at_least=True)
    ratio = one.processor[0] / max(two.processor)
    note = "what two idle cores would give: nothing is shared but the files"
    yield Figure(SECTION, f"{name}, by processor time of the busier one", round(ratio, 2), "×", note=note)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--worker", type=int)
    parser.add_argument("--fill", action="store_true")
    args = parser.parse_args()
    if args.worker:
        one_worker(args.worker, args.fill)
        return 0
    figures = list(measure(args.quick))
    print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
