"""Files whose rows are rendered by several workers and joined by one.

Workers and joiner derive the same layout from the same order and the same first pages, so the content of the joined
file is equal, byte for byte, to that of a single writer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from tidegate.aws.part_plan import Piece, Stored
from tidegate.exports.rendering.columns import Row
from tidegate.exports.rendering.csv_writer import CsvWriter
from tidegate.exports.rendering.files import ENDINGS, Output, csv_columns
from tidegate.exports.rendering.fragments import Measure, packed_piece, total
from tidegate.exports.rendering.gzip_stream import HEADER, trailer
from tidegate.exports.rendering.jsonl_writer import jsonl_lines
from tidegate.exports.rendering.parquet_writer import MAGIC, Group, ParquetTable
from tidegate.exports.rendering.xlsx.writer import TableRows
from tidegate.exports.rendering.xlsx.zip_records import ZipEntry, directory, local_header


@dataclass(frozen=True, slots=True)
class SheetRows:
    """The fragments of one sheet of one table, in order; a text file is a single sheet."""

    fragments: Sequence[tuple[Stored, Measure]]

    @property
    def measure(self) -> Measure:
        return total(measure for _, measure in self.fragments)


# By table: its sheets; the sums of its columns.
Made = Sequence[Sequence[SheetRows]]
Sums = Sequence[Sequence[Decimal | None]]


class ZipPieces:
    """Makes the pieces of a zip archive, and its directory."""

    def __init__(self) -> None:
        self._entries: list[tuple[ZipEntry, int]] = []
        self._offset = 0

    def entry(self, name: str, measure: Measure, pieces: Iterator[Piece]) -> Iterator[Piece]:
        entry = ZipEntry(name, measure.crc, measure.size, measure.packed)
        header = local_header(entry)
        yield header
        yield from pieces
        self._entries.append((entry, self._offset))
        self._offset += len(header) + entry.packed

    def end(self) -> bytes:
        return directory(self._entries, self._offset)


class TextTable:
    """Renders the lines of one table."""

    # Rows per sheet; a text file has no limit.
    capacity: int | None = None
    cut = refused = 0

    def __init__(self, output: Output, source: TableRows) -> None:
        keys, titles = csv_columns(source)
        self._csv = CsvWriter(keys, output.csv, titles) if output.type == "csv" else None
        self.sums: list[Decimal | None] = []
        self.groups: list[Group] = []

    def end(self) -> bytes:
        """Returns buffered output; lines are not buffered."""
        return b""

    def head(self) -> bytes:
        return self._csv.head() if self._csv else b""

    def text(self, rows: Sequence[Row]) -> bytes:
        return self._csv.lines(rows) if self._csv else jsonl_lines(rows)


class JoinedText:
    """CSV or JSON lines, with or without gzip; several tables follow each other, or are files in a zip."""

    def __init__(self, output: Output, sources: Sequence[TableRows]) -> None:
        self._output = output
        self._zipped = output.multi_type == "tab" and len(sources) > 1
        self.packed = output.is_packed or self._zipped
        later = output
        if not self._zipped:
            # Only the first table of a file has the byte-order mark.
            encoding = output.csv.encoding.removesuffix("-sig")
            later = replace(output, csv=replace(output.csv, bom=False, encoding=encoding))
        self.tables = [TextTable(later if number else output, source) for number, source in enumerate(sources)]
        self.ending = "zip" if self._zipped else ENDINGS[output.type] + (".gz" if output.is_packed else "")

    def unfit(self, _made: Made) -> str:
        return ""

    def pieces(self, made: Made, _sums: Sums = (), _groups: Sequence[Group] = ()) -> Iterator[Piece]:
        if self._zipped:
            yield from self._zip(made)
            return
        whole = Measure()
        if self.packed:
            yield HEADER
        for number, (table, sheets) in enumerate(zip(self.tables, made, strict=True)):
            between = (self._output.csv.line_end * 3).encode() if number and self._output.type == "csv" else b""
            first, measure = (
                packed_piece(between + table.head()) if self.packed else (between + table.head(), Measure())
            )
            yield first
            yield from (piece for sheet in sheets for piece, _ in sheet.fragments)
            whole = total([whole, measure, *(sheet.measure for sheet in sheets)])
        if self.packed:
            last, _ = packed_piece(b"", last=True)
            yield last + trailer(whole.crc, whole.size)

    def _zip(self, made: Made) -> Iterator[Piece]:
        archive = ZipPieces()
        for number, (table, sheets) in enumerate(zip(self.tables, made, strict=True), 1):
            (first, head), (last, end) = packed_piece(table.head()), packed_piece(b"", last=True)
            rows = [piece for sheet in sheets for piece, _ in sheet.fragments]
            measure = total([head, *(sheet.measure for sheet in sheets), end])
            yield from archive.entry(f"{number}.{ENDINGS[self._output.type]}", measure, iter([first, *rows, last]))
        yield archive.end()


class JoinedParquet:
    """The row groups of all workers and their footer. One table, since a file has one schema."""

    packed = False
    ending = "parquet"

    def __init__(self, source: TableRows) -> None:
        self.tables = [ParquetTable(source.table, source.keys)]

    def unfit(self, _made: Made) -> str:
        return ""

    def pieces(self, made: Made, _sums: Sums, groups: Sequence[Group]) -> Iterator[Piece]:
        yield MAGIC
        yield from (piece for sheet in made[0] for piece, _ in sheet.fragments)
        yield self.tables[0].footer(groups)
