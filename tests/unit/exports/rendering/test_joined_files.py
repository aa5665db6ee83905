"""Rows rendered in 1, 7 and 100 fragments give the same file as one writer."""

from __future__ import annotations

import csv
import gzip
import io
import shutil
import subprocess
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO
from unittest.mock import patch
from zlib import crc32

import openpyxl
import pytest
import python_calamine
from hypothesis import given, settings
from hypothesis import strategies as st
from isal import isal_zlib

from tests.support.exports.samples import mixed_rows, with_nulls
from tidegate.aws.s3 import Piece, PlannedPart, StoredPiece, plan_parts, size_of
from tidegate.sheets import files as fragments
from tidegate.sheets.files import FragmentWriter, Measure, Output, packed_piece, render, total
from tidegate.sheets.joined import JoinedBook, JoinedText, SheetRows
from tidegate.sheets.table import CELL_TYPES, SheetTable, keys_of, lay_out, parse_template
from tidegate.sheets.xlsx import TableRows, xlsx_chunks
from tidegate.sheets.xlsx_cells import Total
from tidegate.sheets.xlsx_frame import EqualRuns, merged_cells
from tidegate.sheets.zip import ZipEntry

ROWS = list(with_nulls(mixed_rows(2345)))
KEYS = keys_of(ROWS)
TREE = parse_template(
    [{"title": "单", "children": [{"name": "id"}, {"name": "order_no"}]}]
    + [{"name": key, "style": {"total": key == "amount"}} for key in KEYS[2:]]
)
TABLES = {
    "plain": SheetTable(),
    "texts": SheetTable(title="订单", summary="一<br>二", header={"a": "b"}, footer={"签名": "x"}),
    "tree": SheetTable(TREE, title="T", footer="end", default_height=20),
}


def joined_file(output: Output, source: TableRows, sample: list[Any], sheet_rows: int = 1_048_576) -> Any:
    if output.type == "excel":
        return JoinedBook([source], [sample], sheet_rows=sheet_rows)
    return JoinedText(output, [source])


def joined(output: Output, table: SheetTable, rows: list[Any], ranges: int, sheet_rows: int = 1_048_576) -> bytes:
    """Renders the rows as several workers and a joiner do, each with its own file object."""
    store: dict[str, bytes] = {}
    sheets: dict[int, list[tuple[StoredPiece, Measure]]] = {}
    sums, widths, equal = list[Any](), dict[int, list[list[int]]](), dict[int, list[Any]]()
    rows_per_range = -(-len(rows) // ranges)
    source = TableRows(table, KEYS, ())
    for start in range(0, len(rows), rows_per_range):
        file = joined_file(output, source, rows[:250], sheet_rows)
        range_end, at = min(start + rows_per_range, len(rows)), start
        while at < range_end:
            capacity = file.tables[0].capacity
            sheet = at // capacity if capacity else 0
            end = min(range_end, (sheet + 1) * capacity if capacity else range_end)

            def keep(data: bytearray, measure: Measure, sheet: int = sheet) -> None:
                key = f"{len(store)}"
                store[key] = bytes(data)
                sheets.setdefault(sheet, []).append((StoredPiece(key, "", len(data)), measure))

            writer = FragmentWriter(keep, packed=file.packed)
            while at < end:
                block = rows[at : min(at + 97, end)]
                top = file.first_rows([0])[0] if isinstance(file, JoinedBook) else 0
                writer.add(file.tables[0].text(block, top + at - sheet * (capacity or 0)), len(block))
                at += len(block)
            writer.end()
            if output.type == "excel":
                widths.setdefault(sheet, []).append(file.tables[0].take_widths())
                equal.setdefault(sheet, []).append(file.tables[0].take_equal())
        sums.append(file.tables[0].sums)
    file = joined_file(output, source, rows[:250], sheet_rows)
    totals = [None if None in column else sum(column, Total()) for column in zip(*sums, strict=True)]
    widest = {sheet: [max(column) for column in zip(*seen, strict=True)] for sheet, seen in widths.items()}
    made = [SheetRows(sheets[number], widest.get(number, ()), equal.get(number, ())) for number in sorted(sheets)]
    pieces = list(file.pieces([made], [totals]))
    parts = plan_parts(pieces, smallest=3000)
    return b"".join(bytes_of(piece, store) for part in parts for piece in part.pieces)


def bytes_of(piece: Piece, store: dict[str, bytes]) -> bytes:
    return store[piece.key][piece.start : piece.start + piece.size] if isinstance(piece, StoredPiece) else piece


def entries(data: bytes) -> dict[str, bytes]:
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert archive.testzip() is None
    return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("ranges", [1, 7, 100])
@pytest.mark.parametrize("name", TABLES)
def test_every_part_of_a_workbook_is_equal(name: str, ranges: int) -> None:
    single = b"".join(xlsx_chunks([TableRows(TABLES[name], KEYS, ROWS)]))
    assert entries(joined(Output("excel"), TABLES[name], ROWS, ranges)) == entries(single)


@pytest.mark.parametrize("ranges", [1, 7, 100])
@pytest.mark.parametrize("sheet_rows", [500, 1177, 2346, 2351])
def test_sheets_that_end_inside_ranges_are_equal(ranges: int, sheet_rows: int) -> None:
    table = TABLES["texts"]
    single = b"".join(xlsx_chunks([TableRows(table, KEYS, ROWS)], sheet_rows=sheet_rows))
    assert entries(joined(Output("excel"), table, ROWS, ranges, sheet_rows)) == entries(single)


@pytest.mark.parametrize("ranges", [1, 7, 100])
@pytest.mark.parametrize("output", [Output(), Output("jsonl"), Output(compression="gzip")], ids=["csv", "jsonl", "gz"])
def test_text_files_are_equal(output: Output, ranges: int) -> None:
    single = b"".join(render(output, [TableRows(SheetTable(), KEYS, ROWS)], len(ROWS)))
    in_ranges = joined(output, SheetTable(), ROWS, ranges)
    if output.compression:
        in_ranges, single = gzip.decompress(in_ranges), gzip.decompress(single)
    assert in_ranges == single


def test_file_without_rows_is_equal() -> None:
    for output in (Output("excel"), Output(), Output(compression="gzip")):
        file = joined_file(output, TableRows(SheetTable(), KEYS, ()), [])
        data = b"".join(piece for piece in file.pieces([[]], [file.tables[0].sums]) if isinstance(piece, bytes))
        single = b"".join(render(output, [TableRows(SheetTable(), KEYS, [])], 0))
        assert entries(data) == entries(single) if output.type == "excel" else data[:2] == single[:2]


@pytest.mark.parametrize("ranges", [1, 7, 100])
def test_readers_open_every_type_and_layout(ranges: int, tmp_path: Path) -> None:
    path = tmp_path / f"{ranges}.xlsx"
    path.write_bytes(joined(Output("excel"), TABLES["tree"], ROWS, ranges))
    book = openpyxl.load_workbook(path, read_only=True)
    by_openpyxl = [row[0] for row in book.worksheets[0].values][3:-2]
    by_calamine: Any = python_calamine.CalamineWorkbook.from_path(str(path)).get_sheet_by_index(0).to_python()
    expected = [row["id"] for row in ROWS]
    assert by_openpyxl == expected
    assert [None if row[0] == "" else row[0] for row in by_calamine[3:-2]] == expected
    if shutil.which("soffice"):
        command = ["soffice", f"-env:UserInstallation=file://{tmp_path}/profile", "--headless", "--convert-to"]
        command += ["csv:Text - txt - csv (StarCalc):44,34,76", "--outdir", str(tmp_path), str(path)]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        shown = list(csv.reader(io.StringIO(path.with_suffix(".csv").read_text())))
        assert [int(row[0]) if row[0] else None for row in shown[3 : 3 + len(ROWS)]] == expected


def test_wrong_checksum_is_detected() -> None:
    """Shows that the checks of the other tests detect a fault."""
    head, tail = packed_piece(b"a" * 100), packed_piece(b"b", last=True)
    whole = total([head[1], tail[1]])
    assert (whole.size, whole.crc) == (101, crc32(b"a" * 100 + b"b"))
    swapped = total([tail[1], head[1]])
    assert swapped.crc != whole.crc


def test_no_fragment_is_too_small_to_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "CLOSED_BYTES", 800)
    monkeypatch.setattr(fragments, "BEHIND_BYTES", 500)
    for count in range(1, 60):
        sent: list[int] = []
        writer = FragmentWriter(lambda data, measure: sent.append(len(data)), packed=False)  # noqa: B023
        for _ in range(count):
            writer.add(b"x" * 90, 1)
        writer.end()
        assert sum(sent) == count * 90
        assert min(sent) >= 500 or len(sent) == 1
        assert max(sent) <= 800 + 500 + 90


SIZES = st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=40)


@settings(max_examples=500, deadline=None)
@given(SIZES)
def test_parts_have_all_bytes_in_order_and_are_large_enough(sizes: Sequence[tuple[bool, int]]) -> None:
    store = {f"{n}": bytes([n % 251]) * size for n, (_, size) in enumerate(sizes)}
    pieces: list[Piece] = [
        StoredPiece(f"{n}", "", size) if stored else store[f"{n}"] for n, (stored, size) in enumerate(sizes)
    ]
    parts: list[PlannedPart] = plan_parts(pieces, smallest=10)

    assert b"".join(bytes_of(p, store) for part in parts for p in part.pieces) == b"".join(store.values())
    assert all(part.size >= 10 for part in parts[:-1])
    assert all(len(part.pieces) == 1 for part in parts if part.copied)
    # Bytes through the joiner: less than two parts at a time, and only to fill up parts that are too small.
    for part in parts:
        if not part.copied:
            stored = [size_of(piece) for piece in part.pieces if isinstance(piece, StoredPiece)]
            assert sum(stored) < 20 + 10


def test_every_cell_type_survives_fragments() -> None:
    template = parse_template([{"name": kind, "style": {"type": kind}} for kind in CELL_TYPES])
    rows = [dict.fromkeys(CELL_TYPES, value) for value in ("2026-11-16", 1, "https://x/", None, "12%")] * 30
    table = SheetTable(template)
    single = b"".join(xlsx_chunks([TableRows(table, list(CELL_TYPES), rows)]))
    assert entries(joined(Output("excel"), table, rows, 7)) == entries(single)


@pytest.mark.slow
def test_sheet_over_4_gb_has_equal_versions_in_both_headers(tmp_path: Path) -> None:
    """Repeats one fragment of long texts until the size of the XML exceeds 32 bits."""
    file = joined_file(Output("excel"), TableRows(SheetTable(), ["a"], ()), [])
    rows = [{"a": f"{number:08d}" * 4000} for number in range(300)]
    kept = list[tuple[bytes, Measure]]()
    writer = FragmentWriter(lambda data, measure: kept.append((bytes(data), measure)), packed=True)
    writer.add(file.tables[0].text(rows, 2), len(rows))
    writer.end()
    ((data, measure),) = kept
    times = 2**32 // measure.size + 2
    path = tmp_path / "large.xlsx"
    with path.open("wb") as out:
        for piece in file.pieces([[SheetRows([(StoredPiece("one", "", len(data)), measure)] * times)]], [[]]):
            out.write(data if isinstance(piece, StoredPiece) else piece)

    with zipfile.ZipFile(path) as archive, path.open("rb") as raw:
        info = archive.getinfo("xl/worksheets/sheet1.xml")
        assert info.file_size > 2**32
        raw.seek(info.header_offset + 4)
        version, flags = (int.from_bytes(raw.read(2), "little") for _ in range(2))
        assert (version, info.extract_version, flags & 8) == (45, 45, 0)
        raw.seek(info.header_offset + 26)
        name, extra = (int.from_bytes(raw.read(2), "little") for _ in range(2))
        raw.seek(name + extra, 1)
        assert unpacked(raw, info.compress_size) == (info.file_size, info.CRC)


def unpacked(raw: BinaryIO, packed: int) -> tuple[int, int]:
    """Returns size and checksum of a deflate stream, four times faster than `unzip`, which the next test uses."""
    reader, size, crc = isal_zlib.decompressobj(-15), 0, 0
    while packed and not reader.eof:
        data = raw.read(min(packed, 1 << 16))
        packed -= len(data)
        text = reader.decompress(data)
        size, crc = size + len(text), isal_zlib.crc32(text, crc)
    assert reader.eof
    assert not packed
    return size, crc


def test_zip_headers_of_a_large_sheet_are_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts the zip headers of a sheet of more than 4 GB around a small one."""
    monkeypatch.setattr(ZipEntry, "big", True)
    rows = [{KEYS[0]: number} for number in range(300)]
    path = tmp_path / "small.xlsx"
    path.write_bytes(joined(Output("excel"), SheetTable(), rows, 7))
    with zipfile.ZipFile(path) as archive:
        assert {info.extract_version for info in archive.infolist()} == {45}
        assert archive.testzip() is None
    if shutil.which("unzip"):
        subprocess.run(["unzip", "-tq", str(path)], check=True, capture_output=True)
    assert [row[0] for row in openpyxl.load_workbook(path).active.values][1:] == list(range(300))  # type: ignore[union-attr]


MERGED = [{"name": "a", "style": {"merge": True}}, {"name": "b", "style": {"merge": True}}, {"name": "c"}]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["x", "y", None, 1]), st.sampled_from(["p", "", 2.5])), min_size=1, max_size=60),
    st.integers(1, 12),
    st.sampled_from([8, 25, 1000]),
)
def test_merged_cells_are_equal_however_rows_are_cut(cells: list[Any], ranges: int, sheet_rows: int) -> None:
    rows = [{"a": a, "b": b, "c": "z"} for a, b in cells]
    table = SheetTable(parse_template(MERGED), title="T", late_footer=True)
    single = b"".join(xlsx_chunks([TableRows(table, ["a", "b", "c"], rows)], sheet_rows=sheet_rows))
    assert entries(joined(Output("excel"), table, rows, min(ranges, len(rows)), sheet_rows)) == entries(single)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.sampled_from(["x", "y", ""])] * 3), min_size=1, max_size=80),
    st.lists(st.integers(0, 80), max_size=4),
    st.integers(1, 12),
)
def test_first_merged_cells_are_kept_however_rows_are_cut(cells: list[Any], cuts: list[int], most: int) -> None:
    rows = [dict(zip("abc", row, strict=True)) for row in cells]
    layout = lay_out(SheetTable(parse_template([{"name": name, "style": {"merge": True}} for name in "abc"])))

    def merged(ends: list[int]) -> list[str]:
        runs, parts, at = EqualRuns(layout), list[Any](), 0
        for end in [*sorted(ends), len(rows)]:
            runs.add(rows[at:end])
            parts.append(runs.take_runs())
            at = max(at, end)
        return merged_cells(layout, parts, 2)

    whole = merged([])
    with patch("tidegate.sheets.xlsx_frame.MOST_MERGED", most):
        assert merged(cuts) == whole[:most]


def test_memory_of_merged_cells_does_not_grow_with_rows() -> None:
    layout = lay_out(SheetTable(parse_template([{"name": "a", "style": {"merge": True}}])))

    def peak(count: int) -> int:
        runs = EqualRuns(layout)
        tracemalloc.start()
        for start in range(0, count, 1000):
            runs.add([{"a": at // 2} for at in range(start, start + 1000)])
        top = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return top

    with patch("tidegate.sheets.xlsx_frame.MOST_MERGED", 1000):
        assert peak(20_000) < 1.3 * peak(4000)


def test_equal_neighbours_are_merged_within_those_to_their_left() -> None:
    values = [("x", 1), ("x", 1), ("x", 2), ("y", 2), ("y", 2), (None, 2), (None, 2), ("z", ""), ("z", "")]
    rows = [{"a": a, "b": b, "c": a} for a, b in values]
    data = b"".join(xlsx_chunks([TableRows(SheetTable(parse_template(MERGED)), ["a", "b", "c"], rows)]))
    sheet = openpyxl.load_workbook(io.BytesIO(data)).worksheets[0]
    assert {str(each) for each in sheet.merged_cells.ranges} == {"A2:A4", "B2:B3", "A5:A6", "B5:B6", "A9:A10"}
    assert sheet.auto_filter.ref is None, "a filter would tear merged cells apart"
