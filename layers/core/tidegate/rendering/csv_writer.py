"""Rows into CSV: UTF-8, LF, RFC 4180 quoting, columns by key, formula injection guarded.

A block of rows is looked at column by column, so that a column without formulas is cleared as a whole.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any

from tidegate.domain.columns import Row, column_of
from tidegate.domain.formula_guard import STARTERS, guard
from tidegate.rendering.blocks import blocks

BOM = b"\xef\xbb\xbf"
_NATIVE = {str, int, float, NoneType}
_NUMBERS = {int, float, NoneType}
_SEP = "\n"
_CELL_STARTS = tuple((char, _SEP + char) for char in sorted(STARTERS))


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
        head += _text([_safe([name], guarded=options.guard) for name in names]).encode(errors="replace")
    if head:
        yield head
    for block in blocks(rows):
        columns = [_safe(column_of(block, key), guarded=options.guard) for key in keys]
        yield _text(columns).encode(errors="replace")


def _safe(values: list[Any], *, guarded: bool) -> list[Any]:
    """A column's values as CSV may hold them."""
    types = set(map(type, values))
    if types <= _NUMBERS:
        return values
    if not types <= _NATIVE:
        values = [value if type(value) in _NATIVE else _as_json(value) for value in values]
    if not guarded or (types == {str} and not _suspect(values)):
        return values
    return [guard(value) if type(value) is str and value[:1] in STARTERS else value for value in values]


def _suspect(texts: list[str]) -> bool:
    joined = _SEP + _SEP.join(texts)
    return any(char in joined and start in joined for char, start in _CELL_STARTS)


def _text(columns: list[list[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(zip(*columns, strict=True))
    text = out.getvalue()
    # Before Python 3.13 the writer leaves a lone CR unquoted unless lines end with one.
    return "".join(map(_line, zip(*columns, strict=True))) if "\r" in text else text


def _line(row: Iterable[Any]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerow(row)
    return out.getvalue().removesuffix("\r\n") + "\n"


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
