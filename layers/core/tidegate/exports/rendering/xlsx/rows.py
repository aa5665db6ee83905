"""Renders rows as worksheet XML: the cells of all columns are placed in one list and joined once."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal

from tidegate.exports.rendering.columns import Row, column_of
from tidegate.exports.rendering.xlsx.cells import Cells, Column, ColumnWriter, wire
from tidegate.exports.rendering.xlsx.text_width import lines_of

_LINE_HEIGHT = 15.0
_TALLEST_ROW = 409.0


class RowWriter:
    def __init__(self, columns: Sequence[Column], row_height: float | None = None) -> None:
        self._columns = [ColumnWriter(column) for column in columns]
        # A given row height takes precedence over the height of wrapped texts.
        self._wrapped = [] if row_height else [(column.key, column.wrapped) for column in columns if column.wrapped]
        self._open = f'<row ht="{row_height:g}" customHeight="1">' if row_height else "<row>"

    @property
    def cut(self) -> int:
        """How many cells were cut to the length that Excel allows."""
        return sum(column.cut for column in self._columns)

    @property
    def sums(self) -> list[Decimal | None]:
        """The exact sums of the columns with a total; None for the others."""
        return [column.sum for column in self._columns]

    def xml(self, rows: Sequence[Row], heads: Sequence[str] | None = None) -> bytes:
        """The XML of the rows; `heads` has the row-head cells that precede each row."""
        count = len(rows)
        laid = [(Cells("", list(map(wire, heads)), "", []), "")] if heads is not None else []
        laid += [(column.cells(column_of(rows, column.key)), column.blank) for column in self._columns]
        if not laid:
            return b"<row></row>" * count
        # A row is: markup before the first cell, its text, markup up to the next cell, …, the end of the row.
        slots = 2 * len(laid) + 1
        flat = [""] * (slots * count)
        ended, blanks = self._open, list[int]()
        for at, (cells, blank) in enumerate(laid):
            between = [ended + cells.before] * count
            if self._wrapped and at == 0:
                between = [opened + cells.before for opened in self._opened(rows)]
            for index in blanks:
                between[index] = cells.before
            flat[2 * at + 1 :: slots] = cells.texts
            for index in cells.blanks:
                between[index] = between[index].removesuffix(cells.before) + blank
                flat[index * slots + 2 * at + 1] = ""
            flat[2 * at :: slots] = between
            ended, blanks = cells.after, cells.blanks
        ends = [f"{ended}</row>"] * count
        for index in blanks:
            ends[index] = "</row>"
        flat[slots - 1 :: slots] = ends
        return "".join(flat).encode("latin-1")

    def _opened(self, rows: Sequence[Row]) -> list[str]:
        """The start tag of each row, with the height of its wrapped texts: not every program measures them."""
        lines = [1] * len(rows)
        for key, width in self._wrapped:
            needed = (lines_of(value, width) if type(value) is str else 1 for value in column_of(rows, key))
            lines = list(map(max, lines, needed))
        return [self._open if each == 1 else _high_row(each) for each in lines]


def _high_row(lines: int) -> str:
    return f'<row ht="{min(_TALLEST_ROW, _LINE_HEIGHT * lines):g}" customHeight="1">'
