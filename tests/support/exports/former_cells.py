"""The former row writer, which wrote cell by cell: the reference for the speed and the XML of the present one.

The present writer must make exactly the same bytes.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.sheets.table import Row, column_of
from tidegate.sheets.values import MAX_CELL_UNITS, NUMBER, text_element

_BIGGEST_INT = 10**15
_BIGGEST_FLOAT = 9.99999999999999e307
_SURELY_FITS = MAX_CELL_UNITS // 2
_SEP = "`"


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    style: int
    kind: str | None = None


class RowWriter:
    def __init__(self, columns: Sequence[Column], row_height: float | None = None) -> None:
        self._columns = columns
        self._open = f'<row ht="{row_height:g}" customHeight="1">' if row_height else "<row>"

    def xml(self, rows: Sequence[Row], heads: Sequence[str] | None = None) -> str:
        """Returns the XML of the rows; `heads` are finished row-head cells, one for the start of each row."""
        pieces, parts = [self._open], list[Iterable[object]]()
        if heads is not None:
            pieces.append("%s")
            parts.append(heads)
        for column in self._columns:
            piece, cells = _column_cells(column_of(rows, column.key), column)
            pieces.append(piece)
            parts.append(cells)
        pieces.append("</row>")
        if not parts:
            return "<row></row>" * len(rows)
        return "".join(map("".join(pieces).__mod__, zip(*parts, strict=True)))


def blank_cell(style: int) -> str:
    return f'<c s="{style}"/>'


def text_cell(text: str, style: int) -> str:
    return f'<c s="{style}" t="inlineStr"><is>{text_element(text)}</is></c>'


def _column_cells(values: list[Any], column: Column) -> tuple[str, Iterable[object]]:
    types = set(map(type, values))
    if types == {str} and column.kind != "number":
        texts = _plain_texts(values)
        if texts is not None:
            return f'<c s="{column.style}" t="inlineStr"><is><t>%s</t></is></c>', texts
    elif types <= {int, float} and column.kind != "string" and _all_exact(values):
        return f'<c s="{column.style}"><v>%s</v></c>', values
    return "%s", [_cell(value, column) for value in values]


def _plain_texts(values: list[str]) -> list[str] | None:
    """Returns the values, escaped, or None if one of them needs more than escaping."""
    body = _SEP.join(values)
    if not body.isprintable() or "_x" in body:
        return None
    if len(body) > _SURELY_FITS and max(map(len, values)) > _SURELY_FITS:
        return None
    if f" {_SEP}" in body or f"{_SEP} " in body or body[:1] == " " or body[-1:] == " ":
        return None
    escaped = body.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    if escaped is body:
        return values
    texts = escaped.split(_SEP)
    return texts if len(texts) == len(values) else None


def _all_exact(values: list[int] | list[float]) -> bool:
    return min(values) > -_BIGGEST_INT and max(values) < _BIGGEST_INT and math.isfinite(sum(values))


def _cell(value: object, column: Column) -> str:
    style, kind = column.style, column.kind
    if isinstance(value, str):
        if kind == "number" and _is_exact_number(value.strip()):
            return f'<c s="{style}"><v>{value.strip().lstrip("+")}</v></c>'
        return f'<c s="{style}" t="inlineStr"><is>{text_element(value)}</is></c>'
    if value is None:
        return blank_cell(style)
    if isinstance(value, bool):
        return f'<c s="{style}" t="b"><v>{value:d}</v></c>'
    if isinstance(value, int | float):
        exact = abs(value) < (_BIGGEST_INT if isinstance(value, int) else _BIGGEST_FLOAT)
        if kind == "string" or not exact:
            return text_cell(str(value), style)
        return f'<c s="{style}"><v>{value}</v></c>'
    return text_cell(json.dumps(value, ensure_ascii=False, default=str), style)


def _is_exact_number(text: str) -> bool:
    digits = sum(map(str.isdigit, text.lower().partition("e")[0]))
    return bool(NUMBER.fullmatch(text)) and digits <= 15 and abs(float(text)) < _BIGGEST_FLOAT
