"""Compares speed and memory of the writers with commonly used libraries.

    python -m tests.bench.bench_export [--quick]

Every writer runs in a separate process on the same generated rows (ten columns of mixed text, Chinese text and numbers,
some of which need quoting or escaping) and writes a file. Its processor time is measured from the first row to the last
byte.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from tests.bench.figures import Figure, table
from tests.support.exports.samples import mixed_rows

Rows = Iterator[dict[str, Any]]
Run = dict[str, float]
SMALL, MIDDLE, BIG = 20_000, 200_000, 1_000_000
SLOW = ("openpyxl write-only + lxml", "XlsxWriter constant_memory", "pyexcelerate")
KEYS = list(next(mixed_rows(1)))

SECTION = "Exports, ten columns of mixed text, Chinese text and numbers"
BARS = {
    ("tidegate xlsx", "openpyxl write-only + lxml"): 25.0,
    ("tidegate xlsx", "XlsxWriter constant_memory"): 18.0,
    ("tidegate xlsx", "rustpy-xlsxwriter"): 1.5,
    ("tidegate fill", "tidegate xlsx"): 0.5,
    ("tidegate csv", "csv.writer"): 0.8,
}
MEMORY_BAR_MB = 120
MEMORY_GROWTH = 1.25


class _PartsOnDisk:
    """The part of an S3 client that the sink needs: appends each part to a file as it arrives."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put_object(self, Body: bytes, **_: Any) -> None:
        self._path.write_bytes(Body)

    def create_multipart_upload(self, **_: Any) -> dict[str, str]:
        self._path.write_bytes(b"")
        return {"UploadId": "1"}

    def upload_part(self, Body: bytes, PartNumber: int, **_: Any) -> dict[str, str]:
        with self._path.open("ab") as out:
            out.write(Body)
        return {"ETag": str(PartNumber)}

    def complete_multipart_upload(self, **_: Any) -> None:
        """Nothing to do: the parts are already written in order."""


def tidegate_xlsx(rows: Rows, path: Path) -> None:
    from tidegate.aws.s3 import S3Sink
    from tidegate.sheets.table import SheetTable
    from tidegate.sheets.xlsx import TableRows, xlsx_chunks

    sink = S3Sink(cast(Any, _PartsOnDisk(path)), "bucket", "key", "")
    for chunk in xlsx_chunks([TableRows(SheetTable(), KEYS, rows)]):
        sink.write(chunk)
    sink.close()


def tidegate_fill(rows: Rows, path: Path) -> None:
    """A template with as many columns, a head and a sum below the rows."""
    from tests.support.exports.fill import sheet_of
    from tidegate.sheets.fill import Filling, filled_chunks
    from tidegate.sheets.fill_template import FillTemplate
    from tidegate.sheets.table import SheetTable
    from tidegate.sheets.xlsx import TableRows

    template = FillTemplate(sheet_of(fill_cells()))
    with path.open("wb") as out:
        # A longer range of the sum than there are rows, which are not counted here.
        out.writelines(filled_chunks(Filling(template, {"who": "ACME"}), [TableRows(SheetTable(), KEYS, rows, BIG)]))


def fill_cells() -> dict[str, str]:
    cells = {"A1": "Orders of {who}", "A4": "=SUM(A3:A3)"}
    for column, key in zip("ABCDEFGHIJ", KEYS, strict=True):
        cells |= {f"{column}2": key, f"{column}3": f"{{.{key}}}"}
    return cells


def tidegate_csv(rows: Rows, path: Path) -> None:
    from tidegate.sheets.files import CsvWriter, text_chunks

    with path.open("wb") as out:
        out.writelines(text_chunks(CsvWriter(KEYS), rows))


def bare_csv(rows: Rows, path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(KEYS)
        writer.writerows(row.values() for row in rows)


def openpyxl_write_only(rows: Rows, path: Path) -> None:
    import lxml.etree
    import openpyxl

    if not openpyxl.LXML or not lxml.etree.LXML_VERSION:
        raise SystemExit("openpyxl runs without lxml here, which would make the comparison unfair: install lxml")
    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet()
    sheet.append(KEYS)
    for row in rows:
        sheet.append(list(row.values()))
    book.save(path)


def xlsxwriter_constant_memory(rows: Rows, path: Path) -> None:
    import xlsxwriter

    book = xlsxwriter.Workbook(str(path), {"constant_memory": True, "strings_to_formulas": False})
    sheet = book.add_worksheet()
    sheet.write_row(0, 0, KEYS)
    for number, row in enumerate(rows, 1):
        sheet.write_row(number, 0, row.values())
    book.close()


def pyexcelerate_writer(rows: Rows, path: Path) -> None:
    import pyexcelerate

    book = pyexcelerate.Workbook()
    book.new_sheet("s", data=[KEYS, *(list(row.values()) for row in rows)])
    book.save(str(path))


def rust_writer(rows: Rows, path: Path) -> None:
    import rustpy_xlsxwriter

    rustpy_xlsxwriter.write_worksheet(rows, str(path))


WRITERS: dict[str, Callable[[Rows, Path], None]] = {
    "tidegate xlsx": tidegate_xlsx,
    "tidegate fill": tidegate_fill,
    "openpyxl write-only + lxml": openpyxl_write_only,
    "XlsxWriter constant_memory": xlsxwriter_constant_memory,
    "pyexcelerate": pyexcelerate_writer,
    "rustpy-xlsxwriter": rust_writer,
    "tidegate csv": tidegate_csv,
    "csv.writer": bare_csv,
}


def cycled(count: int) -> Rows:
    """Yields rows made in advance, so that the writer is timed and not the source."""
    sample = list(mixed_rows(min(count, SMALL)))
    for start in range(0, count, SMALL):
        yield from sample[: count - start]


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) / 1024


def run_writer(name: str, count: int) -> None:
    rows = cycled(count)
    first = next(rows)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "out.bin"
        # A first run, so that imports are not measured.
        WRITERS[name](iter([first]), Path(folder) / "warm.bin")
        started = time.process_time()
        WRITERS[name](rows, path)
        seconds = time.process_time() - started
        size = path.stat().st_size / count
        print(json.dumps({"rows_s": (count - 1) / seconds, "peak_mb": peak_mb(), "bytes_row": size}))


def run_in_process(name: str, count: int) -> Run:
    command = [sys.executable, "-m", "tests.bench.bench_export", "--one", name, "--rows", str(count)]
    run: Run = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return run


def best(name: str, count: int, repeat: int) -> Run:
    runs = [run_in_process(name, count) for _ in range(repeat)]
    return max(runs, key=lambda run: run["rows_s"])


def plan(quick: bool) -> Iterator[tuple[str, int, int]]:
    """Yields (writer, rows, rounds). Slow writers run once. Bars are for the middle size: in a small file, what every
    workbook has counts as much as its rows."""
    compared = {theirs for _, theirs in BARS}
    for name in WRITERS:
        slow = name in SLOW
        yield name, SMALL, 1 if quick else 2
        if not (quick and slow) or name in compared:
            yield name, MIDDLE, 1 if slow else 2 if quick else 5
        if not quick or name.startswith("tidegate"):
            yield name, BIG, 1


def measure(quick: bool) -> Iterator[Figure]:
    runs = {(name, count): best(name, count, repeat) for name, count, repeat in plan(quick)}
    for (name, count), run in runs.items():
        note = f"{run['peak_mb']:.0f} MB at the peak, {run['bytes_row']:.0f} bytes a row"
        yield Figure(SECTION, f"{name}, {count:,} rows", round(run["rows_s"]), "rows/s", note=note)
    for (ours, theirs), bar in BARS.items():
        ratio = runs[ours, MIDDLE]["rows_s"] / runs[theirs, MIDDLE]["rows_s"]
        yield Figure(SECTION, f"{ours} : {theirs}, {MIDDLE:,} rows", round(ratio, 2), "×", bar, at_least=True)
    for name in ("tidegate xlsx", "tidegate fill", "tidegate csv"):
        middle, big = runs[name, MIDDLE]["peak_mb"], runs[name, BIG]["peak_mb"]
        yield Figure(SECTION, f"{name}, peak at {BIG:,} rows", round(big), "MB", MEMORY_BAR_MB)
        yield Figure(SECTION, f"{name}, that to the peak at {MIDDLE:,}", round(big / middle, 2), "×", MEMORY_GROWTH)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", choices=WRITERS)
    parser.add_argument("--rows", type=int, default=200_000)
    args = parser.parse_args()
    if args.one:
        run_writer(args.one, args.rows)
        return 0
    figures = list(measure(args.quick))
    print(table(figures))
    return 0 if all(figure.holds for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
