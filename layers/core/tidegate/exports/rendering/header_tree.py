"""Header trees of a table: what a caller's template says, and where each head cell sits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LeafStyle:
    width: float | None = None
    align: str | None = None
    color: str | None = None
    bg_color: str | None = None
    bold: bool = False
    wrap: bool = False
    type: str | None = None
    # An Excel number format.
    format: str | None = None
    # Whether the column's sum stands below it.
    total: bool = False


PLAIN = LeafStyle()


@dataclass(frozen=True, slots=True)
class Node:
    """One head cell. A leaf's `name` binds it to a key of the rows (or to a row head)."""

    title: str
    name: str = ""
    children: tuple[Node, ...] = ()
    row_count: int = 1
    style: LeafStyle = PLAIN

    @property
    def depth(self) -> int:
        return 1 + max((child.depth for child in self.children), default=0)

    def leaves(self) -> Iterator[Node]:
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()


@dataclass(frozen=True, slots=True)
class Template:
    """No `cols` means: the keys of the rows are the columns."""

    cols: tuple[Node, ...] = ()
    rows: tuple[Node, ...] = ()

    def warnings(self, keys: Sequence[str]) -> list[str]:
        """`keys` are those of the rows, which a column has to name if it is to show anything."""
        unseen = [leaf.name for leaf in leaves(self.cols) if leaf.name not in set(keys)] if keys else []
        more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
        return [f"template: no row has {', '.join(unseen[:5])}{more}; such columns are empty"] if unseen else []


NO_TEMPLATE = Template()


@dataclass(frozen=True, slots=True)
class HeadCell:
    """A cell with its span; rows and columns count from 1 as in Excel."""

    title: str
    row: int
    col: int
    height: int = 1
    width: int = 1
    leaf: Node | None = field(default=None, compare=False)

    @property
    def merged(self) -> bool:
        return self.height > 1 or self.width > 1


def leaves(nodes: Sequence[Node]) -> list[Node]:
    return [leaf for node in nodes for leaf in node.leaves()]


def depth(nodes: Sequence[Node]) -> int:
    return max((node.depth for node in nodes), default=0)


def place_columns(nodes: Sequence[Node], *, top: int, left: int) -> list[HeadCell]:
    """Cells of a column tree whose first row is `top` and first column is `left`."""
    cells: list[HeadCell] = []
    _place(nodes, {}, depth(nodes), top, left, cells)
    return cells


def place_rows(nodes: Sequence[Node], counts: Mapping[str, int], *, top: int, left: int) -> list[HeadCell]:
    """The transpose: a leaf is as high as the rows it owns (`counts`, by leaf name)."""
    cells: list[HeadCell] = []
    sizes = {leaf.name: max(leaf.row_count, counts.get(leaf.name, 0)) for leaf in leaves(nodes)}
    _place(nodes, sizes, depth(nodes), left, top, cells)
    return [HeadCell(c.title, c.col, c.row, c.width, c.height, c.leaf) for c in cells]


def _place(
    nodes: Sequence[Node], sizes: Mapping[str, int], levels: int, level: int, start: int, into: list[HeadCell]
) -> int:
    """Lays siblings side by side; `levels` is what is left of the tree's depth. Returns the breadth used."""
    used = 0
    for node in nodes:
        at = len(into)
        into.append(HeadCell(node.title, level, start + used))
        if node.children:
            breadth = _place(node.children, sizes, levels - 1, level + 1, start + used, into)
            into[at] = HeadCell(node.title, level, start + used, 1, breadth)
        else:
            breadth = sizes.get(node.name, 1)
            into[at] = HeadCell(node.title, level, start + used, levels, breadth, node)
        used += breadth
    return used
