"""The files of an export in any format, made as a whole or as fragments that are joined later."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import DEFLATED

from isal import isal_zlib

from tidegate.common.sequences import Chunk
from tidegate.errors import BadTable
from tidegate.sheets.fill import Filling, filled_chunks
from tidegate.sheets.parquet import parquet_chunks
from tidegate.sheets.rows import RowBlocks
from tidegate.sheets.table import Notes, Row, columns_of, leaves
from tidegate.sheets.values import (
    MARK,
    NUMBERS,
    SEPARATORS,
    STARTERS,
    guard,
    guard_all,
    nested_text,
    number_text,
    number_texts,
    write_exact,
)
from tidegate.sheets.xlsx import TableRows, xlsx_chunks
from tidegate.sheets.zip import LEVEL, WINDOW, Entry, gzip_stream, zip_stream

# --- csv writer
# Writes rows as CSV: RFC 4180 quoting, columns by key, guarded against formula injection.
#
# A block of rows is checked column by column: a column of plain text or numbers passes as a whole, and only the cells
# of other columns are checked one by one. So it is as fast as the standard library's writer, which guards nothing.

BOM = b"\xef\xbb\xbf"
_CELL_STARTS = tuple((char, MARK + char) for char in sorted(STARTERS))


@dataclass(frozen=True, slots=True)
class CsvOptions:
    bom: bool = False
    header: str = "keys"
    guard: bool = True
    delimiter: str = ","
    encoding: str = "utf-8"
    line_end: str = "\n"


PLAIN_CSV = CsvOptions()


class CsvWriter:
    """Writes the lines of one table.

    With `header="titles"`, the first line has the `titles`, which are given by key.
    """

    def __init__(
        self, keys: Sequence[str], options: CsvOptions = PLAIN_CSV, titles: Mapping[str, str] | None = None
    ) -> None:
        self._keys, self._options, self._titles = keys, options, titles or {}
        # Characters at which a spreadsheet of any locale may split a line.
        self._separators = SEPARATORS if options.delimiter == "," else f"{SEPARATORS},{options.delimiter}"

    def head(self) -> bytes:
        options, keys = self._options, self._keys
        marked = (options.bom and options.encoding == "utf-8") or options.encoding == "utf-8-sig"
        head = BOM if marked else b""
        if options.header != "none" and keys:
            names = [self._titles.get(key, key) for key in keys] if options.header == "titles" else keys
            head += self._encoded(self._text(_not_sylk([self._cells([name]) for name in names])))
        return head

    def lines(self, rows: Sequence[Row]) -> bytes:
        columns = list(map(self._cells, columns_of(rows, self._keys)))
        return self._encoded(self._text(columns if self._options.header != "none" else _not_sylk(columns)))

    def _encoded(self, text: str) -> bytes:
        return text.encode("utf-8" if self._options.encoding == "utf-8-sig" else self._options.encoding, "replace")

    def _text(self, columns: list[list[str]]) -> str:
        if not columns:
            return ""
        if len(columns) == 1:
            # An empty line would not be a record.
            columns = [['""' if cell == "" else cell for cell in columns[0]]]
        slots, count = 2 * len(columns), len(columns[0])
        flat = [self._options.delimiter] * (slots * count)
        for at, cells in enumerate(columns):
            flat[2 * at :: slots] = cells
        flat[slots - 1 :: slots] = [self._options.line_end] * count
        return "".join(flat)

    def _cells(self, values: list[Any]) -> list[str]:
        """Returns the values of a column as text, guarded and quoted."""
        types = set(map(type, values))
        if types == {str}:
            return self._texts(values)
        if types == {str, type(None)}:
            return self._texts([value or "" for value in values])
        if types <= NUMBERS and (texts := number_texts(values, types)):
            return texts
        return [self._cell(value) for value in values]

    def _texts(self, values: list[str]) -> list[str]:
        joined = MARK + MARK.join(values)
        may_run = self._options.guard and (joined.count(MARK) != len(values) or self._may_run(joined))
        unsafe = '"' in joined or self._options.delimiter in joined or "\n" in joined or "\r" in joined
        if not may_run and not unsafe:
            return values
        # Most such columns have few different texts, remarks or states: each text is checked only once.
        distinct = list(dict.fromkeys(values))
        if 2 * len(distinct) > len(values):
            return self._safe(values, joined, may_run, unsafe)
        safe = self._safe(distinct, MARK + MARK.join(distinct), may_run, unsafe)
        return list(map(dict(zip(distinct, safe, strict=True)).__getitem__, values))

    def _safe(self, values: list[str], joined: str, may_run: bool, unsafe: bool) -> list[str]:
        if may_run and joined.count(MARK) != len(values):
            values = [guard(value, self._separators) for value in values]
        elif may_run:
            values = guard_all(joined, self._separators).split(MARK)[1:]
        return [self._quoted(value) for value in values] if unsafe else values

    def _may_run(self, joined: str) -> bool:
        """Whether a cell of the column may have to be guarded."""
        if any(separator in joined for separator in self._separators):
            return True
        return any(char in joined and start in joined for char, start in _CELL_STARTS)

    def _cell(self, value: object) -> str:
        if isinstance(value, str):
            return self._quoted(self._guarded(value))
        if value is None:
            return ""
        if type(value) in NUMBERS:
            return number_text(value)  # type: ignore[arg-type]
        return self._quoted(self._guarded(nested_text(value)))

    def _guarded(self, text: str) -> str:
        return guard(text, self._separators) if self._options.guard else text

    def _quoted(self, text: str) -> str:
        if '"' in text or self._options.delimiter in text or "\n" in text or "\r" in text:
            return '"' + text.replace('"', '""') + '"'
        return text


def _not_sylk(columns: list[list[str]]) -> list[list[str]]:
    """Quotes the cells of the first column that begin with ID.

    Excel takes a file that begins with ID for a SYLK file, and fails to open it.
    """
    return [[f'"{cell}"' if cell.startswith("ID") else cell for cell in columns[0]], *columns[1:]] if columns else []


class JsonLinesWriter:
    """Writes rows as JSON lines, one object per line.

    Each row keeps its own keys, and the numbers as the source sent them.
    """

    def head(self) -> bytes:
        return b""

    def lines(self, rows: Sequence[Row]) -> bytes:
        return b"".join([write_exact(row) + b"\n" for row in rows])


TextWriter = CsvWriter | JsonLinesWriter


def text_chunks(writer: TextWriter, rows: Iterable[Row] | RowBlocks) -> Iterator[bytes]:
    """Yields the bytes of the file, a chunk for each block of rows."""
    if head := writer.head():
        yield head
    for block in RowBlocks.from_rows(rows):
        yield writer.lines(block)


# --- files
# Renders tables into one file: a workbook, a text file, with or without gzip, or a zip of several files.

ENDINGS = {"csv": "csv", "excel": "xlsx", "jsonl": "jsonl", "parquet": "parquet"}
CONTENT_TYPES = {
    "csv": "text/csv",
    "xlsx": "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
    "zip": "application/zip",
    "gz": "application/gzip",
}


@dataclass(frozen=True, slots=True)
class Output:
    type: str = "csv"
    multi_type: str = "page"
    rows_per_file: int | None = None
    csv: CsvOptions = PLAIN_CSV
    compression: str | None = None
    password: str | None = field(default=None, repr=False)

    @property
    def is_packed(self) -> bool:
        return self.compression == "gzip" and not self.is_stored

    @property
    def is_stored(self) -> bool:
        """Whether files of this type are compressed already. A zip stores such files without compression."""
        return self.type in ("excel", "parquet")


def extension(output: Output, tables: Sequence[TableRows], total: int) -> str:
    """Returns the ending of the file's name. With a password, a workbook stays a workbook; other files become a zip."""
    ending = _ending(output, tables, total)
    return "zip" if output.password and ending != "xlsx" else ending


def _ending(output: Output, tables: Sequence[TableRows], total: int) -> str:
    if _is_split(output, tables, total) or (output.type != "excel" and output.multi_type == "tab" and len(tables) > 1):
        return "zip"
    return ENDINGS[output.type] + (".gz" if output.is_packed else "")


def content_type(output: Output, ending: str) -> str:
    if ending == "csv":
        return f"text/csv; charset={output.csv.encoding.removesuffix('-sig')}"
    return CONTENT_TYPES[ending.rpartition(".")[2]]


def render(
    output: Output, tables: Sequence[TableRows], total: int, notes: Notes | None = None, filling: Filling | None = None
) -> Iterator[Chunk]:
    """Yields the bytes of the file. `total`: the rows of all tables. `filling`: the template to fill, if any."""
    made, password = _rendered(output, tables, total, notes, filling), output.password
    ending = _ending(output, tables, total)
    if password is None or ending == "zip":
        return made
    if ending == "xlsx":
        return _encrypted_workbook(made, password)
    return zip_stream([(f"export.{ending}", made)], stored=output.is_stored or output.is_packed, password=password)


# The largest workbook to encrypt: it is encrypted as a whole, in memory.
MOST_ENCRYPTED = 100 * 1000 * 1000


def _encrypted_workbook(chunks: Iterable[Chunk], password: str) -> Iterator[bytes]:
    """Yields the workbook, encrypted as Excel does it: ECMA-376 agile, AES-256 and SHA-512."""
    from msoffcrypto.method.ecma376_agile import ECMA376Agile

    held, size = list[Chunk](), 0
    for chunk in chunks:
        held.append(chunk)
        size += len(chunk)
        if size > MOST_ENCRYPTED:
            raise BadTable(
                f"a workbook with a password may have {MOST_ENCRYPTED // 10**6} MB: choose csv, or split the rows into "
                "several files with rows_per_file, which makes an encrypted zip"
            )
    yield ECMA376Agile.encrypt(password, io.BytesIO(b"".join(held)))


def _rendered(
    output: Output, tables: Sequence[TableRows], total: int, notes: Notes | None, filling: Filling | None
) -> Iterator[Chunk]:
    if _is_split(output, tables, total):
        files = _split(output, tables[0], total, notes, filling)
        return zip_stream(files, stored=output.is_stored, password=output.password)
    if filling:
        return filled_chunks(filling, tables, notes)
    if output.type == "excel":
        return xlsx_chunks(tables, multi_type=output.multi_type, notes=notes)
    if _ending(output, tables, total) == "zip":
        files = ((f"{number}.{ENDINGS[output.type]}", _text(output, table)) for number, table in enumerate(tables, 1))
        return zip_stream(files, password=output.password)
    page = _page(output, tables, notes)
    return gzip_stream(page) if output.is_packed else page


def file_sizes(total: int, rows_per_file: int) -> list[int]:
    """Returns how many rows each file gets: as few files as possible, filled evenly."""
    files = -(-total // rows_per_file)
    each = -(-total // files)
    return [min(each, total - start) for start in range(0, total, each)]


def _is_split(output: Output, tables: Sequence[TableRows], total: int) -> bool:
    """Whether the rows are split into several files.

    Only a single table without row heads is split, and only if it has more rows than `rows_per_file`.
    """
    limit = output.rows_per_file
    return bool(limit and total > limit and len(tables) == 1 and not tables[0].table.template.rows)


def _split(
    output: Output, source: TableRows, total: int, notes: Notes | None, filling: Filling | None
) -> Iterator[Entry]:
    rows = RowBlocks.from_rows(source.rows)
    for number, size in enumerate(file_sizes(total, output.rows_per_file or total), 1):
        part = TableRows(source.table, source.keys, rows.next_rows(size), size)
        if filling:
            chunks = filled_chunks(filling, [part], notes)
        else:
            chunks = xlsx_chunks([part], notes=notes) if output.type == "excel" else _text(output, part, notes)
        yield f"{number}.{ENDINGS[output.type]}", chunks


def text_writer(output: Output, source: TableRows) -> TextWriter:
    """Returns the writer for the lines of a table. A table without rows has the columns of its template."""
    if output.type == "jsonl":
        return JsonLinesWriter()
    titles = {leaf.name: leaf.title for leaf in leaves(source.table.template.cols)}
    return CsvWriter(source.keys or list(titles), output.csv, titles)


def _text(output: Output, source: TableRows, notes: Notes | None = None) -> Iterator[bytes]:
    if output.type == "parquet":
        return parquet_chunks(source.table, source.keys, source.rows, notes)
    return text_chunks(text_writer(output, source), source.rows)


def _page(output: Output, tables: Sequence[TableRows], notes: Notes | None) -> Iterator[bytes]:
    for number, table in enumerate(tables):
        if number and output.type == "csv":
            yield (output.csv.line_end * 3).encode()
            encoding = output.csv.encoding.removesuffix("-sig")
            output = replace(output, csv=replace(output.csv, bom=False, encoding=encoding))
        yield from _text(output, table, notes)


# --- fragments
# Fragments: rows that one worker rendered and compressed, and that can be joined with other fragments unchanged.
#
# A fragment is raw deflate from a fresh compressor, ended by a full flush: it ends on a byte boundary and has no
# references to earlier data. Any number of fragments followed by one final piece are a valid deflate stream.

# A fragment is closed at 8 MiB and sent once 5 MiB follow it, so that every fragment is large enough to be copied by S3
# as a part of an upload.
CLOSED_BYTES = 8 * 1024 * 1024
BEHIND_BYTES = 5 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Measure:
    """The numbers that archive headers need: `size` and `crc` are those of the uncompressed text."""

    size: int = 0
    crc: int = 0
    packed: int = 0
    rows: int = 0

    def __add__(self, other: Measure) -> Measure:
        crc = isal_zlib.crc32_combine(self.crc, other.crc, other.size)
        return Measure(self.size + other.size, crc, self.packed + other.packed, self.rows + other.rows)


def total(measures: Iterable[Measure]) -> Measure:
    return sum(measures, Measure())


def packed_piece(text: bytes, *, last: bool = False) -> tuple[bytes, Measure]:
    """Returns a small piece, compressed as a fragment, and its measure. `last`: the piece ends the stream."""
    packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW)
    data = packer.compress(text) + packer.flush(isal_zlib.Z_FINISH if last else isal_zlib.Z_FULL_FLUSH)
    return data, Measure(len(text), isal_zlib.crc32(text), len(data))


class FragmentWriter:
    """Compresses text and passes fragments to `send`; with `packed=False` the text is not compressed."""

    def __init__(self, send: Callable[[bytearray, Measure], None], *, packed: bool) -> None:
        self._send = send
        self._packed = packed
        self._closed: tuple[bytearray, Measure] | None = None
        self._begin()

    def _begin(self) -> None:
        self._packer = isal_zlib.compressobj(LEVEL, DEFLATED, -WINDOW) if self._packed else None
        self._data = bytearray()
        self._size = self._crc = self._rows = 0

    def add(self, text: bytes, rows: int) -> None:
        if self._packer is not None:
            self._crc = isal_zlib.crc32(text, self._crc)
            data = self._packer.compress(text)
        else:
            data = text
        self._size += len(text)
        self._rows += rows
        self._data += data
        if self._closed and len(self._data) >= BEHIND_BYTES:
            self._send(*self._closed)
            self._closed = None
        if len(self._data) >= CLOSED_BYTES:
            self._closed = self._ended()

    def end(self) -> None:
        """Sends the rest as one fragment."""
        if self._size:
            data, measure = self._ended()
            if self._closed:
                closed, before = self._closed
                self._closed = None
                closed += data
                data, measure = closed, before + measure
            self._send(data, measure)
        elif self._closed:
            self._send(*self._closed)
        self._closed = None

    def _ended(self) -> tuple[bytearray, Measure]:
        if self._packer is not None:
            self._data += self._packer.flush(isal_zlib.Z_FULL_FLUSH)
        data, measure = self._data, Measure(self._size, self._crc, len(self._data), self._rows)
        self._begin()
        return data, measure
