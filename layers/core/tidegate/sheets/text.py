"""CSV and JSON lines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.sheets.rows import RowBlocks
from tidegate.sheets.table import Row, column_of
from tidegate.sheets.values import (
    MARK,
    NUMBERS,
    SEPARATORS,
    STARTERS,
    guard,
    guard_all,
    nested_text,
    number_text,
    number_texts,
    write_exact,
)

# --- csv writer
# Writes rows as CSV: RFC 4180 quoting, columns by key, guarded against formula injection.
#
# A block of rows is checked column by column: a column of plain text or numbers passes as a whole, and only the
# cells of
# other columns are checked one by one. That makes it as fast as the standard library's writer, which guards nothing.

BOM = b"\xef\xbb\xbf"
_CELL_STARTS = tuple((char, MARK + char) for char in sorted(STARTERS))


@dataclass(frozen=True, slots=True)
class CsvOptions:
    bom: bool = False
    header: str = "keys"
    guard: bool = True
    delimiter: str = ","
    encoding: str = "utf-8"
    line_end: str = "\n"


PLAIN_CSV = CsvOptions()


class CsvWriter:
    """Writes the lines of one table; `titles`, by key, are for `header="titles"`."""

    def __init__(
        self, keys: Sequence[str], options: CsvOptions = PLAIN_CSV, titles: Mapping[str, str] | None = None
    ) -> None:
        self._keys, self._options, self._titles = keys, options, titles or {}
        # Characters at which a spreadsheet of any locale may split a line.
        self._separators = SEPARATORS if options.delimiter == "," else f"{SEPARATORS},{options.delimiter}"

    def head(self) -> bytes:
        options, keys = self._options, self._keys
        marked = (options.bom and options.encoding == "utf-8") or options.encoding == "utf-8-sig"
        head = BOM if marked else b""
        if options.header != "none" and keys:
            names = [self._titles.get(key, key) for key in keys] if options.header == "titles" else keys
            head += self._encoded(self._text(_not_sylk([self._cells([name]) for name in names])))
        return head

    def lines(self, rows: Sequence[Row]) -> bytes:
        columns = [self._cells(column_of(rows, key)) for key in self._keys]
        return self._encoded(self._text(columns if self._options.header != "none" else _not_sylk(columns)))

    def _encoded(self, text: str) -> bytes:
        return text.encode("utf-8" if self._options.encoding == "utf-8-sig" else self._options.encoding, "replace")

    def _text(self, columns: list[list[str]]) -> str:
        if not columns:
            return ""
        if len(columns) == 1:
            # An empty line would not be a record.
            columns = [['""' if cell == "" else cell for cell in columns[0]]]
        slots, count = 2 * len(columns), len(columns[0])
        flat = [self._options.delimiter] * (slots * count)
        for at, cells in enumerate(columns):
            flat[2 * at :: slots] = cells
        flat[slots - 1 :: slots] = [self._options.line_end] * count
        return "".join(flat)

    def _cells(self, values: list[Any]) -> list[str]:
        """The values of a column, guarded and quoted."""
        types = set(map(type, values))
        if types == {str}:
            return self._texts(values)
        if types == {str, type(None)}:
            return self._texts([value or "" for value in values])
        if types <= NUMBERS and (texts := number_texts(values, types)):
            return texts
        return [self._cell(value) for value in values]

    def _texts(self, values: list[str]) -> list[str]:
        joined = MARK + MARK.join(values)
        if self._options.guard and joined.count(MARK) != len(values):
            values = [guard(value, self._separators) for value in values]
        elif self._options.guard and self._may_run(joined):
            values = guard_all(joined, self._separators).split(MARK)[1:]
        unsafe = '"' in joined or self._options.delimiter in joined or "\n" in joined or "\r" in joined
        return [self._quoted(value) for value in values] if unsafe else values

    def _may_run(self, joined: str) -> bool:
        """Whether a cell of the column may have to be guarded."""
        if any(separator in joined for separator in self._separators):
            return True
        return any(char in joined and start in joined for char, start in _CELL_STARTS)

    def _cell(self, value: object) -> str:
        if isinstance(value, str):
            return self._quoted(self._guarded(value))
        if value is None:
            return ""
        if type(value) in NUMBERS:
            return number_text(value)  # type: ignore[arg-type]
        return self._quoted(self._guarded(nested_text(value)))

    def _guarded(self, text: str) -> str:
        return guard(text, self._separators) if self._options.guard else text

    def _quoted(self, text: str) -> str:
        if '"' in text or self._options.delimiter in text or "\n" in text or "\r" in text:
            return '"' + text.replace('"', '""') + '"'
        return text


def _not_sylk(columns: list[list[str]]) -> list[list[str]]:
    """Quotes first cells that begin with ID: Excel takes a file that begins so for another format, and fails."""
    return [[f'"{cell}"' if cell.startswith("ID") else cell for cell in columns[0]], *columns[1:]] if columns else []


def csv_chunks(
    rows: Iterable[Row] | RowBlocks, keys: Sequence[str], options: CsvOptions, titles: Mapping[str, str] | None = None
) -> Iterator[bytes]:
    """The bytes of the file, a chunk for each block of rows."""
    writer = CsvWriter(keys, options, titles)
    head = writer.head()
    if head:
        yield head
    for block in RowBlocks.of(rows):
        yield writer.lines(block)


# --- jsonl writer
# Writes rows as JSON lines: one object per line, with its own keys and its numbers as the source sent them.


def jsonl_lines(rows: Sequence[Row]) -> bytes:
    return b"".join([write_exact(row) + b"\n" for row in rows])


def jsonl_chunks(rows: Iterable[Row] | RowBlocks) -> Iterator[bytes]:
    for block in RowBlocks.of(rows):
        yield jsonl_lines(block)
