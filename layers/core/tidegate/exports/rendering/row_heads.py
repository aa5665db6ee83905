"""Tables with row heads: rows are grouped by the leaf that they belong to, in bounded memory.

Rows are added in any order and read leaf by leaf. The first few thousand are kept in memory; more are compressed into
a temporary file and read back in chunks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from isal import isal_zlib

from tidegate.errors import BadTable
from tidegate.exports.rendering.blocks import RowBlocks
from tidegate.exports.rendering.columns import ROW_HEAD, Row
from tidegate.exports.rendering.header_tree import HeadCell, Node, leaves, place_rows
from tidegate.exports.source_json import Digits, digits_of, read_exact, write_exact

HELD_ROWS = 20_000
_NO_ROW: Row = {}


@dataclass(frozen=True, slots=True)
class RowHeadTable:
    rows: RowBlocks
    count: int
    heads: list[HeadCell]


def gather(
    nodes: tuple[Node, ...], rows: Iterable[Row] | RowBlocks, *, top: int, most: int | None = None
) -> RowHeadTable:
    """Groups rows by leaf. A leaf with fewer rows than its `row_count` gets blank rows, one with more is extended.

    BadTable as soon as there are more than `most` rows.
    """
    owners = leaves(nodes)
    owned = _RowsByLeaf([leaf.name for leaf in owners])
    for seen, row in enumerate(chain.from_iterable(RowBlocks.of(rows)), 1):
        owned.add(row)
        if most is not None and seen > most:
            raise BadTable(
                f"the table has row heads and more than {most} rows, which do not fit on one sheet: split it"
            )
    sizes = {leaf.name: max(leaf.row_count, owned.counts[leaf.name]) for leaf in owners}
    heads = place_rows(nodes, owned.counts, top=top, left=1)
    return RowHeadTable(RowBlocks(_in_order(owned, sizes)), sum(sizes.values()), heads)


def _in_order(owned: _RowsByLeaf, sizes: dict[str, int]) -> Iterator[Sequence[Row]]:
    for name, size in sizes.items():
        yield from owned.of(name)
        blanks = size - owned.counts[name]
        if blanks:
            yield [_NO_ROW] * blanks


class _RowsByLeaf:
    def __init__(self, names: Sequence[str]) -> None:
        self.counts = dict.fromkeys(names, 0)
        self._held: dict[str, list[Row]] = {name: [] for name in names}
        self._held_rows = 0
        self._spilt: dict[str, list[tuple[int, int]]] = {}
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the table

    def add(self, row: Row) -> None:
        name = row.get(ROW_HEAD)
        owner = digits_of(name) if isinstance(name, Digits) else str(name)
        if owner not in self.counts:
            fault = f"row head {owner!r} is not in the template" if name is not None else f"a row has no {ROW_HEAD}"
            raise BadTable(f"{fault}: use one of {', '.join(list(self.counts)[:20])}")
        self.counts[owner] += 1
        self._held[owner].append(row)
        self._held_rows += 1
        if self._held_rows >= HELD_ROWS:
            self._spill()

    def _spill(self) -> None:
        for name, rows in self._held.items():
            if rows:
                packed = isal_zlib.compress(write_exact(rows), 1)
                self._spilt.setdefault(name, []).append((self._file.tell(), len(packed)))
                self._file.write(packed)
                self._held[name] = []
        self._held_rows = 0

    def of(self, name: str) -> Iterator[Sequence[Row]]:
        for start, length in self._spilt.get(name, []):
            self._file.seek(start)
            rows: list[Row] = read_exact(isal_zlib.decompress(self._file.read(length)))
            yield rows
        yield self._held.pop(name)
