"""The header trees of a table: the parsed template, and the position of each head cell."""

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
    # Whether a totals row shows the sum of the column.
    total: bool = False


PLAIN = LeafStyle()


@dataclass(frozen=True, slots=True)
class Node:
    """One head cell. The `name` of a leaf is the key of its column (or a row head)."""

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
    """Without `cols`, the keys of the rows are the columns."""

    cols: tuple[Node, ...] = ()
    rows: tuple[Node, ...] = ()

    def warnings(self, keys: Sequence[str]) -> list[str]:
        """Warns of columns that are empty because no row has their key."""
        unseen = [leaf.name for leaf in leaves(self.cols) if leaf.name not in set(keys)] if keys else []
        more = f" and {len(unseen) - 5} more" if len(unseen) > 5 else ""
        return [f"template: no row has {', '.join(unseen[:5])}{more}, so these columns are empty"] if unseen else []


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
    """The cells of a column tree whose top left cell is at row `top`, column `left`."""
    cells: list[HeadCell] = []
    _place(nodes, {}, depth(nodes), top, left, cells)
    return cells


def place_rows(nodes: Sequence[Node], counts: Mapping[str, int], *, top: int, left: int) -> list[HeadCell]:
    """The cells of a row tree: a leaf is as high as its number of rows (`counts`, by leaf name)."""
    cells: list[HeadCell] = []
    sizes = {leaf.name: max(leaf.row_count, counts.get(leaf.name, 0)) for leaf in leaves(nodes)}
    _place(nodes, sizes, depth(nodes), left, top, cells)
    return [HeadCell(c.title, c.col, c.row, c.width, c.height, c.leaf) for c in cells]


def _place(
    nodes: Sequence[Node], sizes: Mapping[str, int], levels: int, level: int, start: int, into: list[HeadCell]
) -> int:
    """Places siblings next to each other; `levels` is the remaining depth of the tree. Returns their breadth."""
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
