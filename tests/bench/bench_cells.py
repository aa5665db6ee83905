"""Measures the way from a source's pages to packed rows: the present code, the former code, and peers.

    python -m tests.bench.bench_cells [--quick]

All of them read the same pages of JSON. They run in turn, in shuffled rounds of one process; a ratio is the median of
the rounds' ratios. Processor time is measured, so that other work on the machine matters less.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from zlib import DEFLATED

from isal import isal_zlib

from tests.bench.figures import Figure, few, table
from tests.support.exports import former_cells
from tests.support.exports.samples import mixed_rows, with_nulls
from tidegate.exports.source import page_reader, read_page
from tidegate.sheets.files import CsvWriter, FragmentWriter
from tidegate.sheets.parquet import ParquetTable
from tidegate.sheets.rows import BLOCK_ROWS
from tidegate.sheets.table import SheetTable, keys_of
from tidegate.sheets.xlsx_cells import Column, RowWriter

SECTION = "Cells, from pages of JSON to packed rows, per second of one processor"
KEYS = list(next(mixed_rows(1)))
PAGE = 1000
# (Measured, compared with, whether rows have nulls): the bar.
BARS = {
    ("new cells", "former cells", False): 1.7,
    ("new cells", "former cells", True): 2.8,
    ("new cells", "orjson + rustpy-xlsxwriter", False): 2.2,
    ("new cells", "orjson + rustpy-xlsxwriter", True): 1.6,
    ("csv, guarded", "orjson + pyarrow csv", False): 0.7,
    ("parquet", "orjson + pyarrow parquet", False): 2.0,
    ("range worker", "former, staged", False): 2.0,
}

Pages = Sequence[bytes]


def pages_of(count: int, *, nulls: bool) -> list[bytes]:
    rows = list(with_nulls(mixed_rows(count)) if nulls else mixed_rows(count))
    parts = (rows[start : start + PAGE] for start in range(0, count, PAGE))
    return [
        json.dumps({"status": 200, "data": {"data": part, "total": count}}, ensure_ascii=False).encode()
        for part in parts
    ]


def former(pages: Pages) -> None:
    writer = former_cells.RowWriter([former_cells.Column(key, 1) for key in KEYS])
    packer = isal_zlib.compressobj(1, DEFLATED, -15)
    for page in pages:
        rows = json.loads(page)["data"]["data"]
        for start in range(0, len(rows), 500):
            packer.compress(writer.xml(rows[start : start + 500]).encode())
    packer.flush()


def former_staged(pages: Pages) -> None:
    """The former code with staged pages: parses each page to check it, and again to render it."""
    for page in pages:
        keys_of(json.loads(page)["data"]["data"])
    former(pages)


def new(pages: Pages) -> None:
    writer, read = RowWriter([Column(key, 1) for key in KEYS]), page_reader(KEYS)
    packer = isal_zlib.compressobj(1, DEFLATED, -15)
    for number, page in enumerate(pages):
        rows = read(page, number).rows
        for start in range(0, len(rows), BLOCK_ROWS):
            packer.compress(writer.xml(rows[start : start + BLOCK_ROWS], number * PAGE + start + 2))
    packer.flush()


def range_worker(pages: Pages) -> None:
    """The work of a range worker: fragments with checksums and sizes."""
    writer, read = RowWriter([Column(key, 1) for key in KEYS]), page_reader(KEYS)
    fragments = FragmentWriter(lambda data, measure: None, packed=True)
    for number, page in enumerate(pages):
        rows = read(page, number).rows
        for start in range(0, len(rows), BLOCK_ROWS):
            block = rows[start : start + BLOCK_ROWS]
            fragments.add(writer.xml(block, number * PAGE + start + 2), len(block))
    fragments.end()


def staged(pages: Pages) -> None:
    """The present code with staged pages."""
    for number, page in enumerate(pages):
        keys_of(read_page(page, number).rows)
    new(pages)


def rust(pages: Pages) -> None:
    import orjson
    import rustpy_xlsxwriter

    with tempfile.TemporaryDirectory() as folder:
        rows = (row for page in pages for row in orjson.loads(page)["data"]["data"])
        rustpy_xlsxwriter.write_worksheet(rows, str(Path(folder) / "out.xlsx"))


def guarded_csv(pages: Pages) -> None:
    writer, read, out = CsvWriter(KEYS), page_reader(KEYS), io.BytesIO()
    for number, page in enumerate(pages):
        rows = read(page, number).rows
        for start in range(0, len(rows), BLOCK_ROWS):
            out.write(writer.lines(rows[start : start + BLOCK_ROWS]))


def own_parquet(pages: Pages) -> None:
    table, read = ParquetTable(SheetTable(), KEYS), page_reader(KEYS)
    out = io.BytesIO()
    for number, page in enumerate(pages):
        rows = read(page, number).rows
        for start in range(0, len(rows), BLOCK_ROWS):
            out.write(table.text(rows[start : start + BLOCK_ROWS]))
    out.write(table.end() + table.footer(table.groups))


def arrow_csv(pages: Pages) -> None:
    """Guards nothing."""
    import pyarrow.csv

    first = next(arrow_batches(pages[:1]))
    with pyarrow.csv.CSVWriter(io.BytesIO(), first.schema) as writer:
        for batch in arrow_batches(pages):
            writer.write_batch(batch)


def arrow_parquet(pages: Pages) -> None:
    import pyarrow.parquet

    first = next(arrow_batches(pages[:1]))
    with pyarrow.parquet.ParquetWriter(io.BytesIO(), first.schema, compression="gzip") as writer:
        for batch in arrow_batches(pages):
            writer.write_batch(batch)


def duck_csv(pages: Pages) -> None:
    """Guards nothing."""
    duck(pages, "csv, header")


def duck_parquet(pages: Pages) -> None:
    duck(pages, "parquet, compression gzip")


def duck(pages: Pages, options: str) -> None:
    """In one thread: all threads of a process count as its time, and several cost more than they save."""
    import duckdb
    import pyarrow

    rows = pyarrow.Table.from_batches(list(arrow_batches(pages)))
    with tempfile.TemporaryDirectory() as folder, duckdb.connect(config={"threads": 1}) as database:
        database.register("pulled", rows)
        database.execute(f"COPY (SELECT * FROM pulled) TO '{folder}/out' (FORMAT {options})")


def arrow_batches(pages: Pages) -> Iterator[Any]:
    import orjson
    import pyarrow

    for page in pages:
        yield pyarrow.RecordBatch.from_pylist(orjson.loads(page)["data"]["data"])


WAYS: dict[str, Callable[[Pages], None]] = {
    "former cells": former,
    "former, staged": former_staged,
    "new cells": new,
    "range worker": range_worker,
    "staged": staged,
    "orjson + rustpy-xlsxwriter": rust,
    "csv, guarded": guarded_csv,
    "orjson + pyarrow csv": arrow_csv,
    "orjson + pyarrow + DuckDB csv": duck_csv,
    "parquet": own_parquet,
    "orjson + pyarrow parquet": arrow_parquet,
    "orjson + pyarrow + DuckDB parquet": duck_parquet,
}


def rounds(pages: Pages, count: int) -> Iterator[dict[str, float]]:
    dice = random.Random(7)
    for _ in range(count):
        seconds = {}
        for name in dice.sample(list(WAYS), len(WAYS)):
            began = time.process_time()
            WAYS[name](pages)
            seconds[name] = time.process_time() - began
        yield seconds


def measure(quick: bool) -> Iterator[Figure]:
    rows = few(20_000 if quick else 60_000)
    for nulls in (False, True):
        pages = pages_of(rows, nulls=nulls)
        results = list(rounds(pages, few(7 if quick else 11)))
        kind = "5 % nulls" if nulls else "no nulls"
        for name in WAYS:
            speed = rows / statistics.median(seconds[name] for seconds in results)
            yield Figure(SECTION, f"{name}, {kind}", round(speed), "rows/s")
        for (ours, theirs, of_nulls), bar in BARS.items():
            if of_nulls == nulls:
                ratio = statistics.median(seconds[theirs] / seconds[ours] for seconds in results)
                yield Figure(SECTION, f"{ours} : {theirs}, {kind}", round(ratio, 2), "×", bar, at_least=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    figures = list(measure(parser.parse_args().quick))
    print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
