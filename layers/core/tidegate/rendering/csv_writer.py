"""Rows into CSV: RFC 4180 quoting, columns by key, formula injection guarded.

A block of rows is looked at column by column: a column of plain text or numbers is cleared as a whole, and only
the cells of the others are looked at one by one. That is what makes it as fast as the standard library's writer,
which guards nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.domain.columns import Row, column_of
from tidegate.domain.formula_guard import STARTERS, guard
from tidegate.domain.source_json import nested_text
from tidegate.rendering.blocks import RowBlocks
from tidegate.rendering.xlsx_cells import NUMBERS, number_text, number_texts

BOM = b"\xef\xbb\xbf"
_SEP = "\n"
_CELL_STARTS = tuple((char, _SEP + char) for char in sorted(STARTERS))


@dataclass(frozen=True, slots=True)
class CsvOptions:
    bom: bool = False
    header: str = "keys"
    guard: bool = True


PLAIN_CSV = CsvOptions()


def csv_chunks(
    rows: Iterable[Row] | RowBlocks, keys: Sequence[str], options: CsvOptions, titles: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """The file, a chunk for each block of rows; `titles` by key serve `header="titles"`."""
    head = BOM if options.bom else b""
    if options.header != "none" and keys:
        names = [(titles or {}).get(key, key) for key in keys] if options.header == "titles" else keys
        head += _text([_cells([name], guarded=options.guard) for name in names]).encode(errors="replace")
    if head:
        yield head
    for block in RowBlocks.of(rows):
        columns = [_cells(column_of(block, key), guarded=options.guard) for key in keys]
        yield _text(columns).encode(errors="replace")


def _text(columns: list[list[str]]) -> str:
    if not columns:
        return ""
    if len(columns) == 1:
        # A line of nothing would be no record.
        columns = [['""' if cell == "" else cell for cell in columns[0]]]
    slots, count = 2 * len(columns), len(columns[0])
    flat = [","] * (slots * count)
    for at, cells in enumerate(columns):
        flat[2 * at :: slots] = cells
    flat[slots - 1 :: slots] = ["\n"] * count
    return "".join(flat)


def _cells(values: list[Any], *, guarded: bool) -> list[str]:
    """A column's values, ready to be written between commas."""
    types = set(map(type, values))
    if types == {str}:
        return _texts(values, guarded=guarded)
    if types == {str, type(None)}:
        return _texts([value or "" for value in values], guarded=guarded)
    if types <= NUMBERS and (texts := number_texts(values, types)):
        return texts
    return [_cell(value, guarded=guarded) for value in values]


def _texts(values: list[str], *, guarded: bool) -> list[str]:
    joined = _SEP + _SEP.join(values)
    if guarded and any(char in joined and start in joined for char, start in _CELL_STARTS):
        values = [guard(value) if value[:1] in STARTERS else value for value in values]
    if '"' in joined or "," in joined or "\r" in joined or joined.count(_SEP) != len(values):
        return [_quoted(value) for value in values]
    return values


def _cell(value: object, *, guarded: bool) -> str:
    if isinstance(value, str):
        return _quoted(guard(value) if guarded else value)
    if value is None:
        return ""
    if type(value) in NUMBERS:
        return number_text(value)  # type: ignore[arg-type]
    return _quoted(nested_text(value))


def _quoted(text: str) -> str:
    if '"' in text or "," in text or "\n" in text or "\r" in text:
        return '"' + text.replace('"', '""') + '"'
    return text
