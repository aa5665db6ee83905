"""References in a filled template: formulas, ranges and cells. They change because repeated rows move other rows."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from tidegate.errors import BadTable
from tidegate.sheets.table import letters
from tidegate.sheets.xlsx import SHEET_ROWS

# --- rows that move


@dataclass(frozen=True, slots=True)
class Block:
    """Rows `first` to `last` of a template that are repeated together, once for each row of the list `name`."""

    name: str
    first: int
    last: int

    @property
    def height(self) -> int:
        return self.last - self.first + 1

    def has(self, row: int) -> bool:
        return self.first <= row <= self.last


class RowMap:
    """Maps row numbers of a sheet of the template to row numbers of the filled sheet."""

    def __init__(self, blocks: Sequence[Block] = (), counts: Mapping[str, int] | None = None) -> None:
        """`counts`: how many rows each list has.

        If a list is empty, its rows of the template stay once, without values.
        """
        self.blocks = sorted(blocks, key=lambda block: block.first)
        self._times = [max(1, (counts or {}).get(block.name, 0)) for block in self.blocks]

    def times(self, block: Block) -> int:
        return self._times[self.blocks.index(block)]

    def block_of(self, row: int) -> Block | None:
        return next((block for block in self.blocks if block.has(row)), None)

    def start(self, row: int) -> int:
        """Returns the number of the row in the filled sheet. For a repeated row: the number of its first repetition."""
        return min(SHEET_ROWS, row + self._shift(row))

    def end(self, row: int) -> int:
        """Returns the number of the row in the filled sheet. For a repeated row: the number of its last repetition."""
        block = self.block_of(row)
        repeated = (self.times(block) - 1) * block.height if block else 0
        return min(SHEET_ROWS, row + self._shift(row) + repeated)

    def last_row(self, row: int) -> int:
        """Like `end`, but not limited to the rows that a sheet can have."""
        block = self.block_of(row)
        return row + self._shift(row) + ((self.times(block) - 1) * block.height if block else 0)

    def _shift(self, row: int) -> int:
        each = zip(self.blocks, self._times, strict=True)
        return sum((times - 1) * block.height for block, times in each if block.last < row)

    @property
    def moves(self) -> bool:
        return any(times > 1 for times in self._times)


STILL = RowMap()


# --- formulas

# A formula in tokens: texts, structured references, references to cells or rows, words, anything else.
_TOKEN = re.compile(
    r"""
    (?P<text>"(?:[^"]|"")*")
    | (?P<table>[\w.\\]+\[(?:[^\[\]']|'.|\[(?:[^\[\]']|'.)*+\])*+\])
    | (?P<sheet>(?:'(?:[^']|'')*+'|[\w.]+(?::[\w.]+)?)!)?
      (?:(?P<c1>\$?[A-Za-z]{1,3})(?P<r1>\$?[0-9]{1,7})(?::(?P<c2>\$?[A-Za-z]{1,3})(?P<r2>\$?[0-9]{1,7}))?
         |(?P<r3>\$?[0-9]{1,7}):(?P<r4>\$?[0-9]{1,7}))
      (?![\w.(!\[])
    | (?P<word>'(?:[^']|'')*+'!|[\w.\\?]+!?)
    | (?P<other>'(?:[^']|'')*+'?|.)
    """,
    re.VERBOSE | re.DOTALL,
)
# Excel itself refuses more than 64 functions in each other.
_MOST_NESTED = 256
# Functions for which a repeated cell means all its repetitions: SUM(B5) in a template is the sum of the list. In files,
# newer functions have a prefix.
_OF_LISTS = re.compile(
    r"""(?:_XLFN\.)?(?:_XLWS\.)?(?:
    AGGREGATE|(?:AVERAGE|MAX|MIN)(?:A|IFS?)?|AVEDEV|CONCAT|CORREL|COUNT(?:A|BLANK|IFS?)?|COVAR|COVARIANCE|DEVSQ|FILTER|
    FREQUENCY|GEOMEAN|HARMEAN|INDEX|INTERCEPT|IRR|KURT|LARGE|[HVX]?LOOKUP|X?MATCH|MEDIAN|MIRR|MODE|NPV|PEARSON|
    PERCENTILE|PERCENTRANK|PRODUCT|QUARTILE|RANK|ROWS|RSQ|SKEW|SLOPE|SMALL|SORT(?:BY)?|STDEV[AP]?|STDEVPA|STEYX|SUBTOTAL|
    SUM(?:IFS?|PRODUCT|SQ)?|SUMX2[MP]Y2|SUMXMY2|TEXTJOIN|TRIMMEAN|UNIQUE|VAR[AP]?|VARPA|XIRR|XNPV
    )(?:\.(?:S|P|INC|EXC|EQ|AVG|SNGL|MULT))?""",
    re.VERBOSE,
)
# Those among them that do not leave out texts.
_NOT_ADDING = re.compile(
    r"(?:_XLFN\.)?(?:_XLWS\.)?(?:CONCAT|COUNT.*|FILTER|INDEX|.?LOOKUP|X?MATCH|ROWS|SORT.*|TEXTJOIN|UNIQUE)"
)
_END_OF_ARGUMENT, _OPERATOR, _OPERATORS = re.compile(r"\s*[),]"), re.compile(r"\s*[-+*/^]"), frozenset("-+*/^")
# ZZZ, the last column that a reference can name.
_LAST_COLUMN = 18_278
_MOST_APART, _MOST_SUMMANDS = 100, 10_000


def _adds(function: str) -> bool:
    return bool(_OF_LISTS.fullmatch(function)) and not _NOT_ADDING.fullmatch(function)


@dataclass(frozen=True, slots=True)
class MovingRow:
    """A row number in the formula of a repeated row: `first` in the first repetition, and greater in each later one."""

    first: int


Piece = str | MovingRow


@dataclass(frozen=True, slots=True)
class Formulas:
    """Rewrites formulas for the filled workbook. `maps`: the row maps of the sheets, by name in lower case.

    References move as if the repeated rows had been inserted. Ranges over repeated rows grow.

    In the formula of a repeated row, a relative reference to a row that is repeated with it means the same repetition.
    A relative reference to the cell above the formula's own cell means the previous repetition, as in a running total.
    All other references mean the same cells in every repetition, with or without `$`, because the author of a template
    sees a single row and cannot see references move.
    """

    maps: Mapping[str, RowMap]
    # The columns of lists that the formulas seen so far compute with: (sheet in lower case, first column, last column).
    added: set[tuple[str, int, int]] = field(default_factory=set)
    # The ranges that have only some of the rows that are repeated together: (sheet, rows, columns).
    apart: set[tuple[str, int, int, int, int]] = field(default_factory=set)
    # The ranges that the functions seen so far add: (sheet, rows, columns).
    summands: set[tuple[str, int, int, int, int]] = field(default_factory=set)
    # The cells of lists that a function that adds takes as single cells, as in SUM(B5*C5): (sheet, cell).
    alone: set[tuple[str, str]] = field(default_factory=set)

    def added_columns(self, sheet: str) -> set[int]:
        """Of the columns of lists on a sheet, returns those that the formulas seen so far compute with."""
        edges = [0] * (_LAST_COLUMN + 2)
        for name, left, right in self.added:
            if name in (sheet.casefold(), ""):
                edges[left] += 1
                edges[right + 1] -= 1
        return {column for column, depth in enumerate(accumulate(edges)) if depth}

    def text(self, formula: str, sheet: str, *, at: int | None = None, whole: bool = False, added: bool = False) -> str:
        """Returns the formula for the filled workbook.

        `at`: the row to which the formula's relative references belong. It is given if Excel applies the formula to
        each repetition of that row, as with a conditional format. `whole`: each reference to a repeated cell means all
        repetitions of the cell, as in a chart. `added`: whether something computes with the cells that the formula
        refers to.
        """
        pieces = self.pieces(formula, sheet, at, held=True, whole=whole, added=added)
        return "".join(piece if isinstance(piece, str) else str(piece.first) for piece in pieces)

    def pieces(
        self,
        formula: str,
        sheet: str,
        at: int | None,
        column: int = 0,
        *,
        held: bool = False,
        whole: bool = False,
        added: bool = False,
    ) -> list[Piece]:
        """Like `text`, but returns pieces. Row numbers that differ between the repetitions of row `at` are MovingRows.

        `column`: the column of the formula. `held`: relative references that do not move get a `$`.
        """
        own = self.maps.get(sheet.casefold(), STILL)
        block = own.block_of(at) if at is not None else None
        place, elsewhere = (_Place(each, column, held and block is not None) for each in (block, None))
        made, word, before = list[Piece](), "", ""
        # For each open bracket: its function, whether it or one around it adds, whether one of them is SUMPRODUCT.
        calls = [("", False, False)]
        for match in _TOKEN.finditer(formula):
            part = match[0]
            if match["r1"] or match["r3"]:
                name = (sheet_name(match["sheet"]) if match["sheet"] else sheet).casefold()
                rows = self.maps.get(name, STILL) if match["sheet"] else own
                function, adds, is_product = calls[-1]
                is_argument = before in ("(", ",") and bool(_END_OF_ARGUMENT.match(formula, match.end()))
                # Within SUMPRODUCT everything is computed list by list.
                of_list = is_product or (is_argument and _OF_LISTS.fullmatch(function))
                within = place if rows is own else elsewhere
                is_range = bool(of_list or match["r2"] or match["r4"])
                if added or adds:
                    # A text within a computation, as in SUM(B5*2), becomes a number.
                    is_summand = (is_argument or is_range) and not added and _adds(function)
                    is_operand = before in _OPERATORS or bool(_OPERATOR.match(formula, match.end()))
                    uses = {"is_range": whole or is_range, "is_summand": is_summand, "is_operand": is_operand}
                    self._note(name, match, rows, within, **uses)
                made += _moved(match, rows, within, whole=whole or bool(of_list))
            else:
                made.append(part)
                # A name, or the column of a table.
                is_name = match["table"] or (part[0].isalpha() and formula[match.end() : match.end() + 1] != "(")
                _, adds, is_product = calls[-1]
                if is_name and adds:
                    self.added.add(("", 0, _LAST_COLUMN))
                if part == "(":
                    if len(calls) > _MOST_NESTED:
                        raise BadTable(f"a formula of the template has more than {_MOST_NESTED} brackets in each other")
                    function = word.upper()
                    calls.append((function, adds or _adds(function), is_product or function == "SUMPRODUCT"))
                elif part == ")" and len(calls) > 1:
                    calls.pop()
            word = part if match["word"] else ""
            if not part.isspace():
                before = part
        return made

    def _note(
        self,
        sheet: str,
        match: re.Match[str],
        rows: RowMap,
        place: _Place,
        *,
        is_range: bool,
        is_summand: bool,
        is_operand: bool,
    ) -> None:
        first, last = _row(match["r1"] or match["r3"]), _row(match["r2"] or match["r4"] or match["r1"])
        left = column_number(match["c1"]) if match["c1"] else 0
        right = column_number(match["c2"] or match["c1"]) if match["c1"] else _LAST_COLUMN
        if is_summand and len(self.summands) < _MOST_SUMMANDS:
            self.summands.add((sheet, first, last, left, right))
        for block in rows.blocks:
            if first > block.last or last < block.first:
                continue
            self.added.add((sheet, left, right))
            in_part = is_range and (first > block.first or last < block.last)
            if place.has(match["r1"] or match["r3"]):
                continue
            if in_part and len(self.apart) < _MOST_APART:
                self.apart.add((sheet, first, last, left, right))
            if is_operand and not is_range and "$" not in match["r1"] and len(self.alone) < _MOST_APART:
                self.alone.add((sheet, f"{match['c1']}{match['r1']}"))


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a formula: its block of repeated rows, if any, and its column."""

    block: Block | None
    column: int
    held: bool

    def has(self, written: str) -> bool:
        """Whether a row number, as written in the formula, means a row of the formula's own repetition."""
        return self.block is not None and not written.startswith("$") and self.block.has(int(written))

    def is_before(self, written: str, column: str | None) -> bool:
        """Whether a cell is the formula's own cell, one repetition earlier."""
        if self.block is None or written.startswith("$") or column is None:
            return False
        return self.block.has(int(written) + self.block.height) and column_number(column) == self.column

    def fixed(self, written: str, row: int) -> str:
        return f"{'$' if self.held or written.startswith('$') else ''}{row}"


def _moved(match: re.Match[str], rows: RowMap, place: _Place, *, whole: bool) -> Iterator[Piece]:
    """Yields the pieces of a reference in the filled workbook."""
    yield match["sheet"] or ""
    first, last = match["r1"] or match["r3"], match["r2"] or match["r4"]
    begins = rows.start(_row(first))
    yield match["c1"] or ""
    moves = place.has(first) or (last is None and place.is_before(first, match["c1"]))
    yield MovingRow(begins) if moves else place.fixed(first, begins)
    if last is not None:
        yield f":{match['c2'] or ''}"
        ends = rows.end(_row(last))
        yield MovingRow(rows.start(_row(last))) if place.has(last) else place.fixed(last, ends)
    elif whole and not moves and (ends := rows.end(_row(first))) > begins:
        yield f":{match['c1']}{place.fixed(first, ends)}"


def _row(written: str) -> int:
    return int(written.lstrip("$"))


def sheet_name(prefix: str) -> str:
    """Returns the sheet name from a prefix such as `'My Sheet'!`."""
    name = prefix.removesuffix("!")
    return name[1:-1].replace("''", "'") if name.startswith("'") else name


def copied(formula: str, rows: int, columns: int) -> str:
    """Returns the formula as Excel writes it in a copy that is `rows` rows below and `columns` columns to the right."""

    def shifted(match: re.Match[str]) -> str:
        if match["r3"]:
            return f"{match['sheet'] or ''}{_below(match['r3'], rows)}:{_below(match['r4'], rows)}"
        if not match["r1"]:
            return match[0]
        ends = f":{_beside(match['c2'], columns)}{_below(match['r2'], rows)}" if match["c2"] else ""
        return f"{match['sheet'] or ''}{_beside(match['c1'], columns)}{_below(match['r1'], rows)}{ends}"

    return _TOKEN.sub(shifted, formula)


def _below(written: str, rows: int) -> str:
    return written if written.startswith("$") else str(int(written) + rows)


def _beside(written: str, columns: int) -> str:
    return written if written.startswith("$") else letters(column_number(written) + columns)


# --- cells and ranges

_AREA = re.compile(r"\$?([A-Za-z]{1,3})\$?([0-9]{1,7})(?::\$?([A-Za-z]{1,3})\$?([0-9]{1,7}))?")


def column_number(name: str) -> int:
    number = 0
    for char in name.lstrip("$").upper():
        number = number * 26 + ord(char) - 64
    return number


def row_and_column(ref: str) -> tuple[int, int] | None:
    """Returns (row, column) of a cell such as B5, or of the first cell of a range. None for anything else."""
    match = _AREA.fullmatch(ref)
    return (int(match[2]), column_number(match[1])) if match else None


def rows_of(area: str) -> tuple[int, int] | None:
    """Returns (first row, last row) of a range such as A1:B5. None for anything else, such as whole columns."""
    match = _AREA.fullmatch(area)
    return (int(match[2]), int(match[4] or match[2])) if match else None


def moved_area(area: str, rows: RowMap) -> str:
    """Returns the range in the filled sheet, with all repetitions of its rows."""
    match = _AREA.fullmatch(area)
    if not match:
        return area
    begins, ends = rows.start(int(match[2])), rows.end(int(match[4] or match[2]))
    if not match[3] and begins == ends:
        return f"{match[1]}{begins}"
    return f"{match[1]}{begins}:{match[3] or match[1]}{ends}"


def moved_areas(areas: str, rows: RowMap) -> str:
    """Like `moved_area`, for several ranges that are separated by blanks."""
    return " ".join(moved_area(area, rows) for area in areas.split())


def moved_cell(ref: str, rows: RowMap) -> str:
    """Returns the cell in the filled sheet. For a repeated cell: its first repetition."""
    match = _AREA.fullmatch(ref)
    return f"{match[1]}{rows.start(int(match[2]))}" if match and not match[3] else moved_area(ref, rows)
