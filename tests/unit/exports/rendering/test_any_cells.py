"""A file of any rows opens and has the documented values."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

import openpyxl
import python_calamine
from hypothesis import example, given
from hypothesis import strategies as st
from openpyxl.utils.escape import unescape

from tests.support.fuzz.any_values import SCALARS, TEXT, examples, json_values
from tidegate.sheets.files import CsvOptions, CsvWriter, text_chunks
from tidegate.sheets.table import SheetTable, broken, keys_of
from tidegate.sheets.values import STARTERS, guard
from tidegate.sheets.xlsx import TableRows, xlsx_chunks

Rows = list[dict[str, Any]]
LONG: Rows = [{"a": text} for text in ("x" * 32_768, "🎉" * 20_000, "=" * 40_000, "\x00" * 33_000 + "end")]
CELLS = SCALARS | st.dates() | json_values()
ROWS = st.lists(st.dictionaries(st.sampled_from("abc") | TEXT, CELLS, max_size=4), max_size=6)
OPTIONS = st.builds(CsvOptions, st.booleans(), st.sampled_from(["keys", "titles", "none"]), st.booleans())


def in_utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def as_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if type(value) in (int, float):
        return json.dumps(value)
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


@examples(150)
@given(ROWS, OPTIONS)
@example(LONG, CsvOptions())
@example([{"a": -math.inf}, {"b": "\ud800"}, {}], CsvOptions())
@example([{"a": [";="]}], CsvOptions())
def test_any_csv_reads_back_equal(rows: Rows, options: CsvOptions) -> None:
    keys = keys_of(rows)
    titles = {key: f"@{key}" for key in keys[:1]}

    def written(value: Any) -> str:
        text = value if isinstance(value, str) else as_text(value)
        return in_utf8(guard(text) if options.guard and isinstance(value, str | list | dict) else text)

    text = b"".join(text_chunks(CsvWriter(keys, options, titles), rows)).decode("utf-8-sig" if options.bom else "utf-8")

    names = [titles.get(key, key) for key in keys] if options.header == "titles" else keys
    head = [[written(name) for name in names]] if keys and options.header != "none" else []
    body = [[written(row.get(key)) for key in keys] for row in rows] if keys else []
    assert list(csv.reader(io.StringIO(text, newline=""))) == head + body


@examples(100)
@given(st.lists(st.fixed_dictionaries({"a": TEXT, "b": TEXT | st.integers()}), min_size=1))
def test_guarded_csv_has_no_formula(rows: Rows) -> None:
    text = b"".join(text_chunks(CsvWriter(["a", "b"], CsvOptions(header="none")), rows)).decode()

    for cell in (cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row):
        harmless = not cell.strip("0123456789.,eE+-＋－%$€£¥￥ ()")
        assert cell[:1] not in STARTERS or not cell or harmless


@examples(60)
@given(ROWS, TEXT, TEXT)
@example(LONG, "x" * 40_000, "🎉" * 20_000)
@example([{"a": "_x0041_"}, {"a": "a\r\nb\rc"}, {"a": " "}, {"a": 10**15}, {"a": 1e308}], "=1", "\ud800")
def test_any_workbook_reads_back_equal(rows: Rows, title: str, footer: str) -> None:
    keys = keys_of(rows)
    table = SheetTable(title=title, footer={"signed": footer})

    data = b"".join(xlsx_chunks([TableRows(table, keys, rows)]))

    width = max(1, len(keys))
    head = [[as_read(key) for key in keys]] if keys else []
    cells = [[as_read(row.get(key)) for key in keys] or [None] for row in rows]
    expected = [*([[as_read(broken(title))] + [None] * (width - 1)] if title else []), *head, *cells]
    for grid in (by_openpyxl(data), by_calamine(data)):
        read_rows = [row + [None] * (width - len(row)) for row in grid]
        assert read_rows[:-1] == expected
        assert read_rows[-1][0].startswith("signed：")


def as_read(value: Any) -> Any:
    """Returns the value that a reader of the workbook gets; blank and empty text are the same."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, int) and abs(value) < 10**15:
        return value
    if isinstance(value, float) and abs(value) < 9.99999999999999e307:
        return value
    return readable(as_text(value)) or None


def readable(text: str) -> str:
    """Returns the text without characters that XML forbids, cut at Excel's limit, with line feeds as line breaks."""
    kept = "".join(char for char in text if char in "\t\n\r" or (ord(char) >= 32 and char not in "\ufffe\uffff"))
    kept = "".join(char for char in kept if not 0xD800 <= ord(char) <= 0xDFFF)
    kept = kept.encode("utf-16-le")[: 32_767 * 2].decode("utf-16-le", "ignore")
    return kept.replace("\r\n", "\n").replace("\r", "\n")


def by_openpyxl(data: bytes) -> list[list[Any]]:
    book = openpyxl.load_workbook(io.BytesIO(data))
    return [
        [plain(unescape(cell) if isinstance(cell, str) else cell) for cell in row] for row in book.worksheets[0].values
    ]


def by_calamine(data: bytes) -> list[list[Any]]:
    sheet = python_calamine.CalamineWorkbook.from_filelike(io.BytesIO(data)).get_sheet_by_index(0)
    return [[plain(cell) for cell in row] for row in sheet.to_python(skip_empty_area=False)]


def plain(cell: Any) -> Any:
    return None if cell == "" else cell
