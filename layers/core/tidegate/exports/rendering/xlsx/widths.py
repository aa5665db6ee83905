"""Column widths: from the template, else measured from the heads and the first rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.exports.rendering.columns import Row, column_of
from tidegate.exports.rendering.header_tree import Node
from tidegate.exports.rendering.table import TITLE_HEIGHT, Layout, SheetTable, TextRow, text_height
from tidegate.exports.rendering.xlsx.cells import NUMBERS, number_text
from tidegate.exports.rendering.xlsx.text_width import lines_of, width_of
from tidegate.exports.source_json import nested_text

# Excel's default.
DEFAULT_WIDTH = 8.43
WIDEST = 60.0
_PADDING = 2
_TALLEST = 409.0
# Extra characters of formatted numbers.
_TYPE_WIDTHS = {"date": 10, "datetime": 19}
_TYPE_EXTRA = {"currency": 5, "percent": 4}


def column_widths(table: SheetTable, layout: Layout, sample: Sequence[Row], *, measured: bool) -> list[float]:
    """The widths in digits of the default font, starting with the columns of row heads; 0 for Excel's default."""
    given = _digits(table.default_width) if table.default_width else None
    heads = [given or (_row_head_width(table, level) if measured else 0.0) for level in range(layout.row_head_width)]
    columns = [
        _digits(leaf.style.width)
        if leaf.style.width
        else given or (_measured(leaf, column_of(sample, leaf.name)) if measured else 0.0)
        for leaf in layout.columns
    ]
    return [*heads, *columns]


def with_heights(layout: Layout, widths: Sequence[float]) -> Layout:
    """The layout with the heights that the texts above and below the data need at these widths."""
    room = sum(width or DEFAULT_WIDTH for width in widths) or DEFAULT_WIDTH
    footer = layout.footer and _fitted(layout.footer, room)
    return replace(layout, texts=tuple(_fitted(line, room) for line in layout.texts), footer=footer)


def _fitted(line: TextRow, room: float) -> TextRow:
    if line.kind == "title":
        # The font of the title is twice as large.
        return replace(line, height=min(_TALLEST, TITLE_HEIGHT * lines_of(line.text, room / 2)))
    return replace(line, height=min(_TALLEST, text_height(lines_of(line.text, room))))


def _measured(leaf: Node, values: Sequence[object]) -> float:
    kind = leaf.style.type or ""
    texts = map(_shown, values)
    needed = max((_TYPE_WIDTHS.get(kind) or width_of(text) + _TYPE_EXTRA.get(kind, 0) for text in texts), default=0)
    return min(WIDEST, max(DEFAULT_WIDTH, needed + _PADDING, width_of(leaf.title) + _PADDING))


def _row_head_width(table: SheetTable, level: int) -> float:
    nodes = table.template.rows
    for _ in range(level):
        nodes = tuple(child for node in nodes for child in node.children)
    return min(WIDEST, max([DEFAULT_WIDTH, *(width_of(node.title) + _PADDING for node in nodes)]))


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value[:200]
    return number_text(value) if type(value) in NUMBERS else nested_text(value)[:200]  # type: ignore[arg-type]


def _digits(points: float) -> float:
    """Converts points: Excel measures columns in digits of its default font, 7 pixels each, plus 5 of padding."""
    return max(0.5, (points * 4 / 3 - 5) / 7)
