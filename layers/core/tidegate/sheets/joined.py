"""Files that one worker joins from fragments. Several workers rendered the fragments."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isal import isal_zlib

from tidegate.aws.s3 import Piece, StoredPiece
from tidegate.sheets.files import ENDINGS, FragmentWriter, Measure, Output, packed_piece, text_writer, total
from tidegate.sheets.fill import BlockWriter, FilledBook, Filling, not_added, table_writers
from tidegate.sheets.fill_refs import Block
from tidegate.sheets.fill_template import TemplateSheet, list_names
from tidegate.sheets.parquet import MAGIC, Group, ParquetTable
from tidegate.sheets.rows import TableWriter
from tidegate.sheets.table import GAP_ROWS, Row, SheetTable
from tidegate.sheets.xlsx import MEASURED_TABLES, SHEET_ROWS, TableRows, laid_out, sheet_name
from tidegate.sheets.xlsx_cells import RowWriter, Total
from tidegate.sheets.xlsx_frame import (
    EqualRuns,
    Frame,
    SheetInfo,
    TableFrame,
    cols_xml,
    end_rows,
    filter_range,
    grown,
    merge,
    merged_cells,
    page_breaks,
    sheet_end,
    sheet_info,
)
from tidegate.sheets.zip import HEADER, WINDOW, ZipEntry, directory, local_header, trailer

# --- joined files
# Files whose rows are rendered by several workers and joined by one.
#
# Workers and joiner derive the same layout from the same order and the same first pages, so the content of the joined
# file is equal, byte for byte, to that of a single writer.


@dataclass(frozen=True, slots=True)
class SheetRows:
    """The fragments of one sheet of one table, in order; a text file is a single sheet."""

    fragments: Sequence[tuple[StoredPiece, Measure]]
    # The width of the widest text of each column.
    widest: Sequence[int] = ()
    # The equal neighbours to merge, in parts that follow each other.
    equal: Sequence[Mapping[str, Any]] = ()

    @property
    def measure(self) -> Measure:
        return total(measure for _, measure in self.fragments)


# For each table: its sheets. For each table: the totals of its columns.
Made = Sequence[Sequence[SheetRows]]
Sums = Sequence[Sequence[Total | None]]


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


class TextTable(TableWriter):
    """Renders the lines of one table."""

    def __init__(self, output: Output, source: TableRows) -> None:
        self._writer = text_writer(output, source)

    def head(self) -> bytes:
        return self._writer.head()

    def text(self, rows: Sequence[Row], _first: int = 0) -> bytes:
        return self._writer.lines(rows)


class JoinedText:
    """A file of text lines, with or without gzip. Several tables follow each other, or are separate files in a zip."""

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
    """A Parquet file: the row groups of all workers and the footer. It has one table, because a file has one schema."""

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


# --- joined book
# A workbook whose rows are rendered by several workers.


class BookTable(TableWriter):
    """Renders the rows of one table as worksheet XML."""

    def __init__(self, table: SheetTable, frame: TableFrame, capacity: int | None) -> None:
        self.table, self.frame, self.layout, self.capacity = table, frame, frame.layout, capacity
        self._writer = RowWriter(frame.columns, frame.row_height)
        self._equal = EqualRuns(frame.layout)

    def text(self, rows: Sequence[Row], first: int = 0) -> bytes:
        self._equal.add(rows)
        return self._writer.xml(rows, first)

    def take_equal(self) -> dict[str, Any]:
        return self._equal.take_runs()

    def take_widths(self) -> list[int]:
        return self._writer.take_widths()

    @property
    def sums(self) -> Sequence[Total | None]:
        return self._writer.sums

    def notes(self) -> dict[str, Any]:
        return {"cut": self._writer.cut_cells, "sums": [each and each.as_data() for each in self.sums]}


_NUMBERED = re.compile(rb'(<(?:row|c) r="[A-Z]*)\d+')
_INFLATED = 1024 * 1024


def renumber(fragment: bytes, row: int, send: Callable[[bytearray, Measure], None]) -> None:
    """Numbers the rows of a fragment anew, beginning with `row`. Passes the new fragments to `send`."""
    reader, writer = isal_zlib.decompressobj(-WINDOW), FragmentWriter(send, packed=True)
    text, data = b"", fragment
    while data:
        # A little at a time: an unpacked fragment is ten times as long.
        *rows, rest = (text + reader.decompress(data, _INFLATED)).split(b"</row>")
        data, text = reader.unconsumed_tail, rest
        made = (_NUMBERED.sub(b"\\g<1>%d" % at, each) + b"</row>" for at, each in enumerate(rows, row))
        writer.add(b"".join(made), len(rows))
        row += len(rows)
    writer.end()


class JoinedBook:
    packed = True
    ending = "xlsx"

    def __init__(
        self,
        sources: Sequence[TableRows],
        samples: Sequence[Sequence[Row]],
        multi_type: str = "page",
        sheet_rows: int = SHEET_ROWS,
    ) -> None:
        together = multi_type == "page"
        few = len(sources) <= MEASURED_TABLES
        laid = [
            laid_out(source.table, source.keys, sample if few else ())
            for source, sample in zip(sources, samples, strict=True)
        ]
        layouts = [(source.table, layout) for source, (layout, _) in zip(sources, laid, strict=True)]
        self._frame = Frame(layouts, [widths for _, widths in laid], together=together)
        self._sheet_rows = sheet_rows
        # Tables below each other have to fit on one sheet: the position of a table depends on the rows above it.
        self._shared = together and len(sources) > 1
        self.tables = [
            BookTable(source.table, frame, None if self._shared else self._room(frame))
            for source, frame in zip(sources, self._frame.tables, strict=True)
        ]

    def _room(self, frame: TableFrame) -> int:
        return self._sheet_rows - (frame.layout.data_top - 1) - frame.layout.reserved_rows

    def first_rows(self, counts: Sequence[int]) -> list[int]:
        """Returns the row at which the data of each table begins on its sheets. `counts`: the rows of each table."""
        found, above = list[int](), 0
        for table, count in zip(self.tables, counts, strict=True):
            found.append(above + table.layout.data_top)
            if self._shared:
                above = found[-1] - 1 + count + table.layout.end_rows + GAP_ROWS
        return found

    def unfit(self, made: Made) -> str:
        """Returns why the tables do not fit below each other on one sheet; empty if they do."""
        row = 0
        for number, (table, sheets) in enumerate(zip(self.tables, made, strict=True) if self._shared else ()):
            row += GAP_ROWS if number else 0
            rows = total(sheet.measure for sheet in sheets).rows
            row += table.layout.data_top - 1 + max(1, rows)
            if row + table.layout.reserved_rows > self._sheet_rows:
                return f"the tables need more than the {self._sheet_rows} rows of a sheet"
            row += table.layout.end_rows - (0 if rows else 1)
        return ""

    def pieces(self, made: Made, sums: Sums, _groups: Sequence[Group] = ()) -> Iterator[Piece]:
        """Yields the pieces of the workbook. All sizes are known, so the local headers of the zip contain them."""
        archive, names, infos = ZipPieces(), set[str](), list[SheetInfo]()
        for first, head, rows, tail in self._sheets(made, sums, names, infos):
            measure = total([head[1], *(each for _, each in rows), tail[1]])
            name = f"xl/worksheets/sheet{first}.xml"
            yield from archive.entry(name, measure, iter([head[0], *(piece for piece, _ in rows), tail[0]]))
        for name, chunks in self._frame.parts(infos):
            data, measure = packed_piece(b"".join(chunks), last=True)
            yield from archive.entry(name, measure, iter([data]))
        yield archive.end()

    def _sheets(
        self, made: Made, sums: Sums, names: set[str], infos: list[SheetInfo]
    ) -> Iterator[tuple[int, tuple[bytes, Measure], list[tuple[Piece, Measure]], tuple[bytes, Measure]]]:
        """Yields (number, XML before the rows, rows, XML after the rows) for each sheet."""
        if self._shared:
            info, head, rows, tail = self._one_sheet(made, sums, names)
            infos.append(info)
            yield 1, head, rows, tail
            return
        for index, (table, sheets, own_sums) in enumerate(zip(self.tables, made, sums, strict=True)):
            count = max(1, len(sheets))
            for number, sheet in enumerate(sheets or [SheetRows([])], 1):
                last, only = number == count, count == 1
                info, head, tail = self._edges(index, table, sheet, own_sums, names, last=last, only=only)
                infos.append(info)
                yield len(infos), head, list(sheet.fragments), tail

    def _edges(
        self,
        index: int,
        table: BookTable,
        sheet: SheetRows,
        sums: Sequence[Total | None],
        names: set[str],
        *,
        last: bool,
        only: bool,
    ) -> tuple[SheetInfo, tuple[bytes, Measure], tuple[bytes, Measure]]:
        layout, (before, after) = table.layout, self._frame.edges(index)
        merges = [merge(cell, 0) for cell in layout.top_merges]
        merges += merged_cells(layout, sheet.equal, layout.data_top)
        data_end = layout.data_top - 1 + sheet.measure.rows
        ending, row = (
            end_rows(table.frame, sums, data_end, merges, (layout.data_top, data_end) if only else None)
            if last
            else ("", data_end)
        )
        filtered = filter_range(table.table, layout, data_end)
        info = sheet_info(
            sheet_name(table.table.sheet_name or table.table.title, names),
            layout,
            row,
            layout.width,
            alone=True,
            filtered=filtered,
        )
        cols = cols_xml([grown(table.frame, sheet.widest, sums if last else ())])
        head = packed_piece(f"{before}{cols}<sheetData>{self._frame.head_xml(index)}".encode())
        tail = packed_piece((ending + sheet_end(merges, filtered, after)).encode(), last=True)
        return info, head, tail

    def _one_sheet(
        self, made: Made, sums: Sums, names: set[str]
    ) -> tuple[SheetInfo, tuple[bytes, Measure], list[tuple[Piece, Measure]], tuple[bytes, Measure]]:
        before, after = self._frame.edges(0)
        widths = [
            grown(table.frame, sheet.widest, own_sums)
            for table, sheets, own_sums in zip(self.tables, made, sums, strict=True)
            for sheet in sheets or [SheetRows([])]
        ]
        row, merges, text = 0, list[str](), f"{before}{cols_xml(widths)}<sheetData>"
        rows, head, starts = list[tuple[Piece, Measure]](), None, list[int]()
        for number, (table, sheets, own_sums) in enumerate(zip(self.tables, made, sums, strict=True)):
            if number:
                row += GAP_ROWS
                starts.append(row)
            layout = table.layout
            merges += [merge(cell, row) for cell in layout.top_merges]
            piece = packed_piece((text + self._frame.head_xml(number, row)).encode())
            if head is None:
                head = piece
            else:
                rows.append(piece)
            rows += [fragment for sheet in sheets for fragment in sheet.fragments]
            top = row + layout.data_top
            merges += merged_cells(layout, [part for sheet in sheets for part in sheet.equal], top)
            row = top - 1 + total(sheet.measure for sheet in sheets).rows
            text, row = end_rows(table.frame, own_sums, row, merges, (top, row))
        ending = sheet_end(merges, "", after, page_breaks(starts, row))
        tail = packed_piece((text + ending).encode(), last=True)
        width = max(table.layout.width for table in self.tables)
        info = sheet_info(
            sheet_name(self.tables[0].table.sheet_name or "", names), self.tables[0].layout, row, width, alone=False
        )
        assert head is not None, "a book has at least one table"
        return info, head, rows, tail


# --- joined fill
# A filled template: workers write the rows of its lists; the joiner writes all else, once all rows are counted.


class FillTable(TableWriter):
    """Renders the repeated rows of one table."""

    def __init__(self, writer: BlockWriter) -> None:
        self.writer = writer

    def text(self, rows: Sequence[Row], first: int = 0) -> bytes:
        return self.writer.xml(rows, first)

    def notes(self) -> dict[str, Any]:
        return {"cut": self.writer.cut_cells, "as_text": sorted(self.writer.as_text)}


class JoinedFill:
    """A filled template whose lists are written by several workers. `can_be_in_parts` must be true for the template."""

    packed = True
    ending = "xlsx"

    def __init__(self, filling: Filling, sources: Sequence[TableRows]) -> None:
        self.filling, self.sources = filling, sources
        self._names = list_names([source.table.title for source in sources])
        self.tables = [FillTable(writer) for writer in table_writers(filling, sources)]

    def unfit(self, made: Made) -> str:
        """Raises BadTable if a sheet gets too many rows; otherwise returns an empty text."""
        self._book(made).check_rows()
        return ""

    def writes_like(self, other: JoinedFill) -> bool:
        """Whether the tables of both files write rows in the same way."""
        return [table.writer.form for table in self.tables] == [table.writer.form for table in other.tables]

    def not_added(self, as_text: Sequence[Collection[int]]) -> list[str]:
        """Returns the placeholders whose numbers are text in the file, although formulas compute with them.

        `as_text`: for each table, the columns with numbers as text.
        """
        return not_added(self.filling, {name: as_text[self._names[name]] for name in self.filling.template.lists})

    def _book(self, made: Made) -> FilledBook:
        counts = [total(sheet.measure for sheet in sheets).rows for sheets in made]
        return FilledBook(self.filling, {name: counts[self._names[name]] for name in self.filling.template.lists})

    def pieces(self, made: Made, _sums: Sums = (), _groups: Sequence[Group] = ()) -> Iterator[Piece]:
        archive, book = ZipPieces(), self._book(made)
        for name, sheet in book.parts():
            pieces = self._sheet(book, sheet, made) if sheet else [packed_piece(book.part(name), last=True)]
            measure = total(each for _, each in pieces)
            yield from archive.entry(name, measure, (piece for piece, _ in pieces))
        yield archive.end()

    def _sheet(self, book: FilledBook, sheet: TemplateSheet, made: Made) -> list[tuple[Piece, Measure]]:
        pieces = list[tuple[Piece, Measure]]()
        # There may be as many merged cells as repeated rows, so they are compressed piece by piece.
        writer = FragmentWriter(lambda data, measure: pieces.append((bytes(data), measure)), packed=True)
        for part in book.sheet(sheet):
            if not isinstance(part, Block):
                writer.add(part, 0)
                continue
            table = self._names[part.name]
            rows = [fragment for each in made[table] for fragment in each.fragments]
            if not rows:
                writer.add(self.tables[table].writer.empty(), 0)
            writer.end()
            pieces += rows
        writer.end()
        return [*pieces, packed_piece(b"", last=True)]
