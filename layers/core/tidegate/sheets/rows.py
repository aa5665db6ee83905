"""Rows of a table: in blocks, typed by the columns of the source, grouped by row heads, mapped and masked."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
from isal import isal_zlib

from tidegate.errors import BadTable
from tidegate.sheets.table import (
    PLAIN,
    ROW_HEAD,
    HeadCell,
    LeafStyle,
    Mask,
    Node,
    Row,
    SheetTable,
    keys_of,
    leaves,
    masked_name,
    place_rows,
)
from tidegate.sheets.values import LONGEST_KNOWN, Digits, digits_of, nested_text, read_exact, write_exact

if TYPE_CHECKING:
    from tidegate.sheets.xlsx_cells import Total

BLOCK_ROWS = 250


class RowBlocks:
    """Reads rows page by page, and returns them in blocks. The caller limits the size of each block."""

    def __init__(self, pages: Iterable[Sequence[Row]]) -> None:
        self._pages = iter(pages)
        self._page: Sequence[Row] = ()
        self._at = 0

    @classmethod
    def from_rows(cls, rows: Iterable[Row] | RowBlocks) -> RowBlocks:
        return rows if isinstance(rows, RowBlocks) else cls(_blocks(rows))

    def more(self) -> bool:
        while self._at >= len(self._page):
            page = next(self._pages, None)
            if page is None:
                return False
            self._page, self._at = page, 0
        return True

    def peek(self) -> Sequence[Row]:
        """Returns the next block without taking it: the next call returns the same block. Empty at the end."""
        return self._page[self._at : self._at + BLOCK_ROWS] if self.more() else ()

    def next_block(self, most: int = BLOCK_ROWS) -> Sequence[Row]:
        """Returns the next block, of at most `most` rows; empty at the end."""
        if most <= 0:
            return ()
        block = self.peek()[:most]
        self._at += len(block)
        return block

    def next_rows(self, count: int) -> RowBlocks:
        """Returns the next `count` rows, as blocks that are read when they are needed."""
        return RowBlocks(self._up_to(count))

    def _up_to(self, count: int) -> Iterator[Sequence[Row]]:
        while block := self.next_block(count):
            count -= len(block)
            yield block

    def __iter__(self) -> Iterator[Sequence[Row]]:
        while block := self.next_block():
            yield block


def _blocks(rows: Iterable[Row]) -> Iterator[Sequence[Row]]:
    source = iter(rows)
    while block := list(islice(source, BLOCK_ROWS)):
        yield block


class TableWriter:
    """Writes the rows of one table for a file that is joined later.

    Subclasses have `text(rows, first)`. `first` is the number of the first row in its sheet, or in its list. The other
    methods return nothing in formats that do not need them.
    """

    # Rows per sheet; None: no limit, or all tables share a sheet.
    capacity: int | None = None

    def end(self) -> bytes:
        """Returns buffered output."""
        return b""

    def take_widths(self) -> list[int]:
        """Returns the width of each column's widest text since the last call."""
        return []

    def take_equal(self) -> dict[str, Any]:
        """Returns the runs of equal cells to merge that were found since the last call (see `EqualRuns`)."""
        return {}

    @property
    def sums(self) -> Sequence[Total | None]:
        return ()

    def notes(self) -> dict[str, Any]:
        """Returns the facts about all rows that the joiner needs. They are fields for the record of a range."""
        return {}


# --- typed rows
# Parses the rows of a source whose keys are known into objects with one slot per key.
#
# That is a third faster than dictionaries, and an unknown key is detected by the parser.

_MOST_KEYS = 500


class TypedRow(msgspec.Struct, gc=False):
    """A row with known keys. Subclasses have a slot for each key, and `getters` to read the slots by key."""


class _Data(msgspec.Struct):
    """The fields of `data` except the rows. Subclasses add the rows."""

    total: Any = msgspec.UNSET
    force_continue: Any = msgspec.UNSET
    header: Any = msgspec.UNSET
    footer: Any = msgspec.UNSET
    template: Any = msgspec.UNSET
    next: Any = msgspec.UNSET
    snapshot: Any = msgspec.UNSET

    def rest(self) -> dict[str, Any]:
        names = _Data.__struct_fields__
        return {name: value for name in names if (value := getattr(self, name)) is not msgspec.UNSET}


def typed_answers(keys: Sequence[str]) -> Callable[[bytes], Any] | None:
    """Returns a parser for responses whose rows have only these keys. None if no such parser can be made.

    The parser returns None for a response that it cannot read, such as one with other keys. No parser can be made
    without keys, with too many keys, or with keys that need escapes in JSON.
    """
    if not 0 < len(keys) <= _MOST_KEYS or any('"' in key or "\\" in key or not key.isprintable() for key in keys):
        return None
    names = [f"slot{number}" for number in range(len(keys))]
    row = msgspec.defstruct(
        "Row",
        [(name, Any, None) for name in names],
        bases=(TypedRow,),
        namespace={"getters": {key: attrgetter(name) for key, name in zip(keys, names, strict=True)}},
        rename=dict(zip(names, keys, strict=True)),
        forbid_unknown_fields=True,
        gc=False,
    )
    data = msgspec.defstruct("Data", [("data", list[row])], bases=(_Data,), kw_only=True)  # type: ignore[valid-type]
    answer = msgspec.defstruct("Answer", [("data", data), ("status", Any, None), ("msg", Any, None)])
    decoder = msgspec.json.Decoder(answer, float_hook=Digits)

    def read(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    return read


# --- maps and masks
# Columns whose values are replaced or hidden before any format is written.

# How many characters stay at the start and the end.
_VISIBLE = {"phone": (3, 4), "id": (3, 4), "card": (0, 4)}
_MOST_STARS = 32
_CACHED_VALUES = 4096
Shape = Callable[[Sequence[Row]], Sequence[Row]]


def shaped(table: SheetTable) -> Shape:
    """Returns a function that maps and masks the rows of a table, as the template and the project's masks say."""
    own = {leaf.name: leaf.style for leaf in leaves(table.template.cols) if leaf.style.map or leaf.style.mask}
    if not own and not table.masks:
        return lambda rows: rows
    columns: dict[str, Callable[[Any], Any] | None] = {}

    def column(name: str) -> Callable[[Any], Any] | None:
        if name not in columns:
            style, hidden = own.get(name), table.masks.get(masked_name(name))
            # The project's mask comes first: a map of the caller must not reveal what the mask hides.
            columns[name] = _Shaping(hidden, style).__getitem__ if hidden or style else None
        return columns[name]

    def shape(rows: Sequence[Row]) -> Sequence[Row]:
        if not rows:
            return rows
        getters = getattr(type(rows[0]), "getters", None)
        wanted = [(name, found) for name in getters or keys_of(rows) if (found := column(name))]
        if getters is not None:
            slots = dict(zip(getters, type(rows[0]).__struct_fields__, strict=True))
            for name, found in wanted:
                slot = slots[name]
                for row in rows:
                    setattr(row, slot, found(getattr(row, slot)))
            return rows
        changed = [dict(row) for row in rows] if wanted else rows
        for name, found in wanted:
            for new in changed:
                if name in new:
                    new[name] = found(new[name])
        return changed

    return shape


class _Shaping:
    """Maps and masks the values of a column. Results for texts, which tend to repeat, are cached."""

    def __init__(self, hidden: Mask | None, style: LeafStyle | None) -> None:
        self._hidden, self._style = hidden, style or PLAIN
        self._map = dict(self._style.map)
        self._known: dict[str, Any] = {}

    def __getitem__(self, value: Any) -> Any:
        if type(value) is not str or len(value) > LONGEST_KNOWN:
            return self._shaped_value(value)
        if value not in self._known:
            if len(self._known) >= _CACHED_VALUES:
                self._known.clear()
            self._known[value] = self._shaped_value(value)
        return self._known[value]

    def _shaped_value(self, value: Any) -> Any:
        if self._hidden is not None:
            value = masked(value, self._hidden)
        if self._map:
            text = value_text(value)
            default = value if self._style.map_default is None or text == "" else self._style.map_default
            value = self._map.get(text, default)
        return value if self._style.mask is None else masked(value, self._style.mask)


def value_text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, Digits):
        return digits_of(value)
    return str(value) if type(value) in (int, float) else nested_text(value)


def masked(value: Any, mask: Mask) -> Any:
    """Returns the value with all but a few characters hidden.

    A value that is too short for this is hidden as a whole.
    """
    text = value_text(value)
    if not text:
        return value
    if isinstance(value, dict | list | bool):
        return "*" * 4
    if mask == "email":
        name, at, domain = text.rpartition("@")
        return f"{name[:1]}***@{domain}" if at and len(name) > 1 else "*" * min(len(text), _MOST_STARS)
    start, end = _VISIBLE[mask] if isinstance(mask, str) else mask
    if len(text) <= start + end:
        return "*" * min(len(text), _MOST_STARS)
    hidden = "*" * min(len(text) - start - end, _MOST_STARS)
    return f"{text[:start]}{hidden}{text[len(text) - end :]}"


HELD_ROWS = 20_000
_NO_ROW: Row = {}


@dataclass(frozen=True, slots=True)
class RowHeadTable:
    """The rows of a table with row heads, grouped by the row head that they belong to, in bounded memory.

    Rows are added in any order and read leaf by leaf. Only a limited number of rows is kept in memory. The others are
    compressed into a temporary file and read back in chunks.
    """

    rows: RowBlocks
    count: int
    heads: list[HeadCell]


def gather(
    nodes: tuple[Node, ...], rows: Iterable[Row] | RowBlocks, *, top: int, most: int | None = None
) -> RowHeadTable:
    """Groups rows by the leaves of the row heads. A leaf with fewer rows than its `row_count` gets blank rows.

    Raises BadTable as soon as there are more than `most` rows.
    """
    owners = leaves(nodes)
    owned = _RowsByLeaf([leaf.name for leaf in owners])
    for seen, row in enumerate(chain.from_iterable(RowBlocks.from_rows(rows)), 1):
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
        yield from owned.rows_of(name)
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

    def rows_of(self, name: str) -> Iterator[Sequence[Row]]:
        for start, length in self._spilt.get(name, []):
            self._file.seek(start)
            rows: list[Row] = read_exact(isal_zlib.decompress(self._file.read(length)))
            yield rows
        yield self._held.pop(name)
