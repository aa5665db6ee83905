"""Writes rows as Parquet: row groups as they fill up, and a footer that describes them.

Row groups are independent, so several workers write them and one writes the footer. That is why this is not a library:
its files would have to be split and their footers rewritten, and pyarrow (156 MB) or DuckDB (63 MB) would be loaded
only to encode plain columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal
from typing import Any
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.exports.rendering.blocks import RowBlocks
from tidegate.exports.rendering.columns import ROW_HEAD, Row
from tidegate.exports.rendering.header_tree import leaves
from tidegate.exports.rendering.notes import Notes
from tidegate.exports.rendering.parquet_columns import KINDS, TEXT, ColumnBytes
from tidegate.exports.rendering.table import SheetTable
from tidegate.exports.rendering.thrift import BINARY, I32, STRUCT, Listed, Long, Struct, written

MAGIC = b"PAR1"
GROUP_BYTES = 16 * 1024 * 1024
_PLAIN, _RLE, _GZIP, _OPTIONAL, _DATA_PAGE = 0, 3, 2, 1, 0
_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Group:
    """The footer's data about a row group; `columns` has the size of each column before and after compression."""

    rows: int
    columns: list[list[int]]

    @property
    def size(self) -> int:
        return sum(packed for _, packed in self.columns)

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


class ParquetTable:
    """Collects rows into row groups."""

    # The interface of the tables of other formats: no sheets, no cut cells, no sums.
    capacity: int | None = None
    cut = 0

    def __init__(self, table: SheetTable, keys: Sequence[str]) -> None:
        named = leaves(table.template.cols)
        types = {leaf.name: leaf.style.type for leaf in named}
        names = list(keys) or [leaf.name for leaf in named]
        self.columns = [ColumnBytes(name, KINDS.get(types.get(name), TEXT)) for name in names]
        self.sums: list[Decimal | None] = []
        self.groups: list[Group] = []
        self._rows = 0

    @property
    def refused(self) -> int:
        return sum(column.refused for column in self.columns)

    def text(self, rows: Sequence[Row]) -> bytes:
        """Adds rows. Returns the bytes of a row group whenever one is full."""
        self._rows += len(rows)
        buffered = sum(column.add(rows) for column in self.columns)
        return self.end() if buffered >= GROUP_BYTES else b""

    def end(self) -> bytes:
        """Returns the buffered rows as a row group."""
        if not self._rows or not self.columns:
            return b""
        out, sizes = bytearray(), list[list[int]]()
        for column in self.columns:
            head, data, plain = _page(column.page(), self._rows)
            out += head + data
            sizes.append([len(head) + plain, len(head) + len(data)])
            column.clear()
        self.groups.append(Group(self._rows, sizes))
        self._rows = 0
        return bytes(out)

    def footer(self, groups: Iterable[Group]) -> bytes:
        """The footer of a file with these groups, in order, after the magic number."""
        offset, found, rows = len(MAGIC), list[Struct](), 0
        for group in groups:
            found.append(self._group(group, offset))
            offset += group.size
            rows += group.rows
        schema: list[Struct] = [{4: "schema", 5: len(self.columns)}]
        schema += [
            {1: column.kind.physical, 3: _OPTIONAL, 4: column.key, **column.kind.logical} for column in self.columns
        ]
        data = written(
            {1: 1, 2: Listed(STRUCT, schema), 3: Long(rows), 4: Listed(STRUCT, found), 6: "Tidegate version 1.0"}
        )
        return data + len(data).to_bytes(4, "little") + MAGIC

    def _group(self, group: Group, offset: int) -> Struct:
        chunks = list[Struct]()
        for column, (plain, packed) in zip(self.columns, group.columns, strict=True):
            chunks.append(
                {
                    2: Long(offset),
                    3: {
                        1: column.kind.physical,
                        2: Listed(I32, [_PLAIN, _RLE]),
                        3: Listed(BINARY, [column.key]),
                        4: _GZIP,
                        5: Long(group.rows),
                        6: Long(plain),
                        7: Long(packed),
                        9: Long(offset),
                    },
                }
            )
            offset += packed
        whole = sum(plain for plain, _ in group.columns)
        return {1: Listed(STRUCT, chunks), 2: Long(whole), 3: Long(group.rows)}


def _page(content: bytes, rows: int) -> tuple[bytes, bytes, int]:
    packer = isal_zlib.compressobj(_LEVEL, DEFLATED, 31)
    data = packer.compress(content) + packer.flush()
    header = {1: rows, 2: _PLAIN, 3: _RLE, 4: _RLE}
    return written({1: _DATA_PAGE, 2: len(content), 3: len(data), 5: header}), data, len(content)


def parquet_chunks(
    table: SheetTable, keys: Sequence[str], rows: Iterable[Row] | RowBlocks, notes: Notes | None = None
) -> Iterator[bytes]:
    writer = ParquetTable(table, [key for key in keys if key != ROW_HEAD] if table.template.rows else keys)
    yield MAGIC
    for block in RowBlocks.of(rows):
        if data := writer.text(block):
            yield data
    yield writer.end()
    yield writer.footer(writer.groups)
    if notes:
        notes.refused_values += writer.refused
