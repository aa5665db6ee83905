"""Rows into CSV: UTF-8, LF, RFC 4180 quoting, columns by key, formula injection guarded.

A block of rows is looked at column by column: a column of plain text or numbers is cleared as a whole, and only
the cells of the others are looked at one by one. That is what makes it as fast as the standard library's writer,
which guards nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.exports.rendering.blocks import blocks
from tidegate.exports.rendering.columns import Row, column_of
from tidegate.exports.rendering.formula_guard import SEPARATORS, STARTERS, guard

BOM = b"\xef\xbb\xbf"
_NUMBERS = {int, float}
_SEP = "\n"
_CELL_STARTS = tuple((char, _SEP + char) for char in sorted(STARTERS - {_SEP}))


@dataclass(frozen=True, slots=True)
class CsvOptions:
    bom: bool = False
    header: str = "keys"
    guard: bool = True


PLAIN_CSV = CsvOptions()


def csv_chunks(
    rows: Iterable[Row], keys: Sequence[str], options: CsvOptions, titles: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """The file, a chunk for each block of rows; `titles` by key serve `header="titles"`."""
    head = BOM if options.bom else b""
    if options.header != "none" and keys:
        names = [(titles or {}).get(key, key) for key in keys] if options.header == "titles" else keys
        head += _text([_cells([name], guarded=options.guard) for name in names]).encode(errors="replace")
    if head:
        yield head
    for block in blocks(rows):
        columns = [_cells(column_of(block, key), guarded=options.guard) for key in keys]
        yield _text(columns).encode(errors="replace")


def _text(columns: list[list[Any]]) -> str:
    if len(columns) == 1:
        # A line of nothing would be no record.
        columns = [['""' if cell == "" else cell for cell in columns[0]]]
    line = ",".join(["%s"] * len(columns)) + "\n"
    return "".join(map(line.__mod__, zip(*columns, strict=True)))


def _cells(values: list[Any], *, guarded: bool) -> list[Any]:
    """A column's values, ready to be written between commas."""
    try:
        joined = _SEP + _SEP.join(values)
    except TypeError:
        plain = set(map(type, values)) <= _NUMBERS
        return values if plain else [_cell(value, guarded=guarded) for value in values]
    broken = joined.count(_SEP) != len(values)
    if guarded and (broken or _may_run(joined)):
        values = [guard(value) for value in values]
    if broken or '"' in joined or "," in joined or "\r" in joined:
        return [_quoted(value) for value in values]
    return values


def _may_run(joined: str) -> bool:
    """Whether a look at each cell is needed; line breaks within cells are counted by the caller."""
    if any(separator in joined for separator in SEPARATORS if separator != _SEP):
        return True
    return any(char in joined and start in joined for char, start in _CELL_STARTS)


def _cell(value: object, *, guarded: bool) -> object:
    if isinstance(value, str):
        return _quoted(guard(value) if guarded else value)
    if value is None:
        return ""
    if type(value) in _NUMBERS:
        return value
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _quoted(guard(text) if guarded else text)


def _quoted(text: str) -> str:
    if '"' in text or "," in text or "\n" in text or "\r" in text:
        return '"' + text.replace('"', '""') + '"'
    return text
