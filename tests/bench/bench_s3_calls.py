"""Measures the processor time of an export that really calls S3: with staged pages, and with pages rendered directly.

    python -m tests.bench.bench_s3_calls [--quick]

The product's own services call S3 by boto3; the bucket is in a MiniStack in another process, whose work is not counted.
Processor seconds are those of this process with all its threads, so building, signing, sending and reading requests
count. `former staged` is the code before ranges existed: the same calls, with the former parser and cells. The source
returns prepared pages without delay. The latency of S3 is not part of the ratio; the calls are counted, so that it can
be estimated.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import DEFLATED

from isal import isal_zlib

from local.emulator import Emulator
from local.place import Place
from tests.bench.bench_cells import KEYS
from tests.bench.bench_ranges import REQUEST, STEP, Source, bench_exports, spec
from tests.bench.figures import Figure, few, table
from tests.support.exports import former_cells
from tests.support.http_servers import free_port
from tidegate.aws.s3 import Bucket
from tidegate.exports.pull import RangePlan, pull
from tidegate.exports.ranges import join, work
from tidegate.exports.steps import render_pages
from tidegate.exports.store import ExportBucket, output_object, page_object, pages_prefix
from tidegate.sheets.table import keys_of

SECTION = "Exports with S3 calls by boto3, Excel, ten columns, pages of 1,000 rows, one processor"
NAME = "files"
HERE = REQUEST.project_id, REQUEST.request_id


@contextmanager
def s3_server() -> Iterator[Any]:
    """Yields a client of an emulator in another process."""
    with tempfile.TemporaryDirectory() as home:
        emulator = Emulator(Place(home=Path(home), port=free_port()))
        emulator.start()
        try:
            yield emulator.client("s3")
        finally:
            emulator.stop()


class Store:
    """The product's bucket; counts every request."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.client.create_bucket(Bucket=NAME)
        self.objects = ExportBucket(self.client, Bucket(self.client, NAME))
        self.calls = 0
        self.client.meta.events.register("before-send.s3", self._count)

    def _count(self, **_: Any) -> None:
        self.calls += 1

    def clear(self) -> None:
        for prefix in (pages_prefix(*HERE), output_object(*HERE, REQUEST.attempt)):
            self.objects.remove(prefix)


def _source(rows: int) -> Any:
    return Source(rows, 0)


def former_staged(store: Store, rows: int) -> None:
    """Parses and stages each page; then fetches it, parses it again and renders it with the former cells."""
    objects, source = store.objects, _source(rows)
    for number in range(rows // STEP):
        body = source.page(number)
        keys_of(json.loads(body)["data"]["data"])
        objects.put_first(page_object(*HERE, 0, number), body)
    writer = former_cells.RowWriter([former_cells.Column(key, 1) for key in KEYS])
    packer = isal_zlib.compressobj(1, DEFLATED, -15)
    sink = objects.sink(output_object(*HERE, REQUEST.attempt), "application/octet-stream")
    for number in range(rows // STEP):
        page = json.loads(objects.get(page_object(*HERE, 0, number)) or b"")["data"]["data"]
        for start in range(0, len(page), 500):
            sink.write(packer.compress(writer.xml(page[start : start + 500]).encode()))
    sink.write(packer.flush())
    sink.close()


def staged(store: Store, rows: int) -> None:
    """The present code for tables that cannot be rendered in ranges, such as those with row heads."""
    exports = bench_exports(store.objects, _source(rows), most_lanes=0)
    if pull(exports, REQUEST, spec(4), lambda _: None, 900) is not True:
        raise SystemExit("not all pages were staged")
    render_pages(store.objects, REQUEST, spec(4), lambda _: None)


def fused(store: Store, rows: int) -> None:
    """The present code in ranges: one range worker and the joiner."""
    exports = bench_exports(store.objects, _source(rows))
    plan = pull(exports, REQUEST, spec(4), lambda _: None, 900)
    if not isinstance(plan, RangePlan):
        raise SystemExit("the export was not planned in ranges")
    work(exports, REQUEST, spec(4), 0, lambda _: None, 900, plan)
    joined = join(store.objects, REQUEST, spec(4))
    if joined is None or joined.rows != rows:
        raise SystemExit(f"{rows} rows were expected: {joined}")


WAYS: dict[str, Callable[[Store, int], None]] = {"former staged": former_staged, "staged": staged, "fused": fused}


def measure(quick: bool) -> Iterator[Figure]:
    rows, rounds = few(100_000, 20_000), few(3 if quick else 7)
    dice, seconds, calls = random.Random(7), {name: list[float]() for name in WAYS}, dict[str, int]()
    with s3_server() as client:
        store = Store(client)
        for turn in range(rounds + 1):
            for name in dice.sample(list(WAYS), len(WAYS)):
                store.clear()
                store.calls, began = 0, time.process_time()
                WAYS[name](store, rows)
                # The first turn imports openpyxl and opens connections.
                if turn:
                    seconds[name].append(time.process_time() - began)
                calls[name] = store.calls
    for name in WAYS:
        speed = rows / statistics.median(seconds[name])
        yield Figure(SECTION, f"{name}, with S3 calls", round(speed), "rows/s", note=f"{calls[name]} calls")
    for theirs, bar in (("former staged", 3.0), ("staged", None)):
        ratio = statistics.median(a / b for a, b in zip(seconds[theirs], seconds["fused"], strict=True))
        yield Figure(SECTION, f"fused : {theirs}, with S3 calls", round(ratio, 2), "×", bar, at_least=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    figures = list(measure(parser.parse_args().quick))
    print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
