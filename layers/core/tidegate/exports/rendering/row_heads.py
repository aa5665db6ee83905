"""Tables with row heads: rows are gathered under the leaf that owns them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tidegate.errors import BadTable
from tidegate.exports.rendering.columns import ROW_HEAD, Row
from tidegate.exports.rendering.header_tree import HeadCell, Node, leaves, place_rows

_NO_ROW: Row = {}


@dataclass(frozen=True, slots=True)
class RowHeadTable:
    rows: list[Row]
    heads: list[HeadCell]


def gather(nodes: tuple[Node, ...], rows: Iterable[Row], *, top: int) -> RowHeadTable:
    """Fewer rows than a leaf's `row_count` leave blanks; more extend it and move down what follows."""
    owned: dict[str, list[Row]] = {leaf.name: [] for leaf in leaves(nodes)}
    for row in rows:
        name = row.get(ROW_HEAD)
        if str(name) not in owned:
            said = f"row head {name!r} is not in the template" if name is not None else f"a row has no {ROW_HEAD}"
            raise BadTable(f"{said}; it has {', '.join(owned)}")
        owned[str(name)].append(row)
    heads = place_rows(nodes, {name: len(its) for name, its in owned.items()}, top=top, left=1)
    for leaf in leaves(nodes):
        blanks = leaf.row_count - len(owned[leaf.name])
        owned[leaf.name].extend([_NO_ROW] * blanks)
    return RowHeadTable([row for its in owned.values() for row in its], heads)
