"""One table of an export and its layout: the positions of texts, heads and merged cells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tidegate.errors import BadTable
from tidegate.exports.rendering.header_tree import NO_TEMPLATE, HeadCell, Node, Template, depth, leaves, place_columns

TITLE_HEIGHT = 36.0
GAP_ROWS = 3
MAX_COLUMNS = 16_384
_BREAK = re.compile(r"<\s*+(?:/\s*+)?br\s*+(?:/\s*+)?>|\r\n?", re.IGNORECASE)
_BETWEEN = " " * 8

Texts = Mapping[str, object] | str


@dataclass(frozen=True, slots=True)
class SheetTable:
    template: Template = NO_TEMPLATE
    title: str = ""
    summary: str = ""
    header: Texts = ""
    footer: Texts = ""
    header_align: str = "right"
    footer_align: str = "right"
    default_width: float | None = None
    default_height: float | None = None
    # None: yes if it is the only table of its sheet.
    freeze: bool | None = None
    autofilter: bool | None = None
    auto_width: bool | None = None


@dataclass(frozen=True, slots=True)
class TextRow:
    """A line of text over the full width, above or below the data."""

    kind: str
    text: str
    height: float
    align: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of a table; rows and columns count from 1 within the table."""

    texts: tuple[TextRow, ...]
    head: tuple[HeadCell, ...]
    columns: tuple[Node, ...]
    head_top: int
    head_rows: int
    row_head_width: int
    footer: TextRow | None

    @property
    def width(self) -> int:
        return max(1, self.row_head_width + len(self.columns))

    @property
    def data_top(self) -> int:
        return self.head_top + self.head_rows

    @property
    def has_totals(self) -> bool:
        return any(leaf.style.total for leaf in self.columns)

    @property
    def end_rows(self) -> int:
        """How many rows follow the data: totals and footer."""
        return int(self.has_totals) + (1 if self.footer else 0)

    @property
    def top_height(self) -> float:
        """The height of everything above the data, in points."""
        return sum(line.height for line in self.texts) + 15.0 * self.head_rows

    @property
    def top_merges(self) -> list[HeadCell]:
        lines = [HeadCell(line.text, row, 1, 1, self.width) for row, line in enumerate(self.texts, 1)]
        return [cell for cell in [*lines, *self.head] if cell.merged]


def lay_out(table: SheetTable, keys: Sequence[str] = ()) -> Layout:
    """Lays out a table; `keys`, those of the rows, are the columns if the template names none."""
    cols = table.template.cols or tuple(Node(key, key) for key in keys)
    texts = _top_texts(table)
    head_top, head_rows, row_heads = len(texts) + 1, depth(cols), depth(table.template.rows)
    if row_heads + len(leaves(cols)) > MAX_COLUMNS:
        raise BadTable(f"the table has more than {MAX_COLUMNS} columns: leave some out")
    head = place_columns(cols, top=head_top, left=row_heads + 1)
    if row_heads and head_rows:
        head.insert(0, HeadCell("", head_top, 1, head_rows, row_heads))
    footer = _line("footer", joined(table.footer), table.footer_align)
    return Layout(texts, tuple(head), tuple(leaves(cols)), head_top, head_rows, row_heads, footer)


def _top_texts(table: SheetTable) -> tuple[TextRow, ...]:
    lines = (
        TextRow("title", broken(table.title), TITLE_HEIGHT, "center") if table.title else None,
        _line("summary", broken(table.summary), "left"),
        _line("header", joined(table.header), table.header_align),
    )
    return tuple(line for line in lines if line)


def _line(kind: str, text: str, align: str) -> TextRow | None:
    return TextRow(kind, text, text_height(text.count("\n") + 1), align) if text else None


def text_height(lines: int) -> float:
    return 14.0 * lines + 14.0


def broken(text: str) -> str:
    """Replaces `<br>`, in any spelling, by a line break."""
    return _BREAK.sub("\n", text)


def joined(texts: Texts) -> str:
    """Joins `key：value` pairs into one line; a value that ends with a line break is followed by a new line."""
    if isinstance(texts, str):
        return broken(texts)
    line = ""
    for key, value in texts.items():
        gap = "" if not line or line.endswith("\n") else _BETWEEN
        line += f"{gap}{key}：{broken('' if value is None else str(value))}"
    return line.rstrip("\n")
