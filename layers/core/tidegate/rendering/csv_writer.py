"""Rows into CSV: UTF-8, LF, RFC 4180 quoting, columns by key, formula injection guarded."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from types import NoneType
from typing import Any

from tidegate.domain.columns import Row
from tidegate.domain.formula_guard import NUMBER, STARTERS, guard
from tidegate.rendering.blocks import blocks

BOM = b"\xef\xbb\xbf"
_NATIVE = {str, int, float, NoneType}
_CELL_STARTS = tuple((char, (f",{char}", f',"{char}', f"\n{char}", f'\n"{char}')) for char in sorted(STARTERS))
_SUSPECT = re.compile(rf'[,\n]"?(?:[=@\t\r]|[+-](?!{NUMBER.pattern.replace("[+-]?", "", 1)}"?[,\n]))', re.ASCII)


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
        head += _careful([names], options.guard).encode(errors="replace")
    if head:
        yield head
    pick = _picker(keys)
    for block in blocks(rows):
        yield _block_text(pick(block), options.guard).encode(errors="replace")


def _picker(keys: Sequence[str]) -> Callable[[Sequence[Row]], list[Sequence[Any]]]:
    get = itemgetter(*keys) if len(keys) > 1 else None

    def pick(block: Sequence[Row]) -> list[Sequence[Any]]:
        if get:
            try:
                return list(map(get, block))
            except KeyError:
                pass
        return [[row.get(key) for key in keys] for row in block]

    return pick


def _block_text(cells: list[Sequence[Any]], guarded: bool) -> str:
    if set(map(type, chain.from_iterable(cells))) - _NATIVE:
        cells = [[_plain(value) for value in row] for row in cells]
    out = io.StringIO()
    out.write("\n")
    csv.writer(out, lineterminator="\n").writerows(cells)
    text = out.getvalue()
    if "\r" in text or (guarded and _suspect(text)):
        return _careful(cells, guarded)
    return text[1:]


def _suspect(text: str) -> bool:
    """Whether any cell might start a formula. Most blocks are cleared by plain substring searches."""
    begins = any(char in text and any(start in text for start in starts) for char, starts in _CELL_STARTS)
    return begins and bool(_SUSPECT.search(text))


def _careful(cells: Iterable[Sequence[Any]], guarded: bool) -> str:
    return "".join(_line(row, guarded) for row in cells)


def _line(row: Sequence[Any], guarded: bool) -> str:
    texts = [guard(value) if guarded and isinstance(value, str) else _text(value) for value in row]
    if texts == [""]:
        return '""\n'
    return ",".join(map(_quoted, texts)) + "\n"


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _quoted(text: str) -> str:
    if "," in text or '"' in text or "\n" in text or "\r" in text:
        return '"' + text.replace('"', '""') + '"'
    return text


def _plain(value: object) -> object:
    if type(value) in _NATIVE:
        return value
    return json.dumps(value, ensure_ascii=False, default=str)
