"""The pages of a source: which to request, where they end, and how they are divided into ranges."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

from msgspec.structs import astuple

from tidegate.errors import SourceBroken
from tidegate.exports.model import EXCEL, JSONL, ExportSpec, pages_prefix
from tidegate.exports.source import Page, Place
from tidegate.sheets.rows import TypedRow
from tidegate.sheets.table import ROW_HEAD, keys_of, merge_keys
from tidegate.sheets.values import write_exact

# --- repeated pages
# Detects a source that returns the same page to every request.
#
# Such a source has no last page, so only pages without another bound are checked: those past the source's total, and
# those of a source without a total. Rows may repeat in valid data: a page counts only if all its rows differ from one
# another, so a table of one value, or of a few, is never taken for a broken source.

# Pages of fewer rows may be equal by chance.
_FEWEST_ROWS = 20
# How many times in succession a page has to repeat.
_MOST_REPEATS = 2


class RepeatedPages:
    """Checks pages in order. Rows are hashed only once two pages have the same first and last row."""

    def __init__(self) -> None:
        self._number = -1
        self._ends: tuple[int, bytes, bytes] | None = None
        self._digest: bytes | None = None
        self._repeats = 0

    def too_many(self, number: int, rows: Sequence[Any]) -> bool:
        """Whether page `number` equals the one before it, and that one its predecessor."""
        follows, self._number = number == self._number + 1, number
        ends = (len(rows), _text(rows[0]), _text(rows[-1])) if len(rows) >= _FEWEST_ROWS else None
        if ends is None or not follows or ends != self._ends:
            self._ends, self._digest, self._repeats = ends, None, 0
            return False
        digest = _digest(rows)
        self._repeats = self._repeats + 1 if digest is not None and digest == self._digest else 0
        self._digest = digest
        return self._repeats >= _MOST_REPEATS


def _digest(rows: Sequence[Any]) -> bytes | None:
    """None if a row occurs twice on the page."""
    texts = list(map(_text, rows))
    return sha256(b"\n".join(texts)).digest() if len(set(texts)) == len(texts) else None


def _text(row: Any) -> bytes:
    return write_exact(list(astuple(row)) if isinstance(row, TypedRow) else row)


# --- paging
# The pages of a source: which to request, where they end, and what was pulled so far.

MAX_PAGES = 100_000
MAX_KEYS = 16_384


@dataclass(slots=True)
class TablePages:
    """The state of one table: rows by page, and for each page the keys that it may be the first to have.

    A source's total is a hint for which pages can be requested in parallel. The end is a short page, an empty page or
    the end of the cursor; a total that does not match the rows is a warning.
    """

    step: int = 1000
    total: int | None = None
    # The total of a later page, if it differs.
    other_total: int | None = None
    forced: bool = False
    by_cursor: bool = False
    # Rows per page; the source may return fewer than requested.
    size: int = 1000
    rows: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    keys: dict[int, list[str]] = field(default_factory=dict)
    # By name (header, footer, template): the page that sent it and its value. Later pages win: a footer of totals
    # may come with the last page.
    source_settings: dict[str, tuple[int, Any]] = field(default_factory=dict)
    # The next page of a sequential source; None after the last.
    upcoming: int | None = 0
    cursor: str | None = None
    snapshot: str | None = None
    done: bool = False
    # The lowest page without rows: no page after it is requested.
    empty_page: int | None = None
    # Checksums of page 0 and of the last page that the total announces.
    first_crc: int = 0
    last_crc: int = 0
    repeated: RepeatedPages = field(default_factory=RepeatedPages, compare=False, repr=False)

    @property
    def answered(self) -> dict[str, Any]:
        return {name: value for name, (_, value) in self.source_settings.items()}

    @property
    def sequential(self) -> bool:
        """Whether pages must be requested one after another, because each shows whether another follows."""
        return self.total is None or self.forced or self.by_cursor

    def all_keys(self) -> list[str]:
        return merge_keys(self.keys[page] for page in sorted(self.keys))

    def take_given(self, keys: list[str], rows: int) -> None:
        """Records rows that were given with the order: a single page."""
        self.keys, self.counts, self.rows, self.total = {0: keys}, {0: rows}, rows, rows
        self.upcoming, self.done = None, True

    def place(self, number: int) -> Place:
        return Place(number, self.cursor if self.by_cursor and number else None, self.snapshot)

    def record(self, number: int, page: Page) -> None:
        if number == 0:
            self._begin(page)
        elif self.is_last_again(number, page):
            self.upcoming = None
            return
        elif page.total is not None and page.total != self.total:
            self.other_total = page.total
        self.forced = self.forced or page.force_continue is not None
        for name, value in page.answered.items():
            if number >= self.source_settings.get(name, (0, None))[0]:
                self.source_settings[name] = number, value
        if number == self.announced - 1:
            self.last_crc = page.crc
        self.rows += len(page.rows) - self.counts.get(number, 0)
        self.counts[number] = len(page.rows)
        if not page.rows:
            self.empty_page = min(number, self.empty_page if self.empty_page is not None else number)
        self._record_keys(number, keys_of(page.rows))
        if self.sequential or number >= self.announced:
            self.upcoming = self.next_after(number, page)

    def is_last_again(self, number: int, page: Page) -> bool:
        """Whether the page past the total repeats the last one: then the total was right, and this is the end.

        Some sources have no pages and return all rows to every request; some return their last page for every later
        one. If page 0 was the same too although more pages were announced, the source ignores `page`.
        """
        if self.sequential or number != self.announced or page.crc != self.last_crc:
            return False
        return self.announced == 1 or page.crc != self.first_crc

    def _begin(self, page: Page) -> None:
        self.first_crc = self.last_crc = page.crc
        self.total, self.by_cursor, self.snapshot = page.total, page.by_cursor, page.snapshot
        count = len(page.rows)
        # A first page that is short of the total shows the source's own page size.
        self.size = count if count and page.total and count < page.total else self.step

    def _record_keys(self, number: int, fresh: list[str]) -> None:
        seen = {key for keys in self.keys.values() for key in keys}
        # Pages arrive in any order: a key is kept under every page that may turn out to be the first to have it.
        if number == 0 or not seen.issuperset(fresh) or any(other > number for other in self.keys):
            self.keys[number] = fresh
        if len(seen.union(fresh)) > MAX_KEYS:
            raise SourceBroken(
                f"page {number}: the rows have more than {MAX_KEYS} different keys: return fewer columns"
            )

    def planned(self) -> Iterator[int]:
        """The pages that the total announces and that are still missing; none after an empty page."""
        if self.sequential:
            return
        for number in range(1, self.announced):
            if self.empty_page is not None and number > self.empty_page:
                return
            if number >= MAX_PAGES:
                raise SourceBroken(
                    f"the source has more than {MAX_PAGES} pages of {self.step} rows: raise `step`, or split the export"
                )
            if number not in self.counts:
                yield number

    @property
    def announced(self) -> int:
        """How many pages the total amounts to."""
        total = self.total or 0
        return 1 if self.counts.get(0, 0) >= total else -(-total // self.size)

    def continue_after_plan(self) -> None:
        """Call it when all announced pages are pulled: after a full last page more may follow, one after another."""
        last = max(self.counts)
        # A page 0 larger than requested is all that the source has.
        full = self.counts[last] == self.size if last == 0 else self.counts[last] >= self.size
        self.upcoming = last + 1 if full else None

    def confirms_total(self, number: int) -> bool:
        """Whether page `number` is requested only to check that nothing follows the total.

        Sources answer a page past their last in many ways; any answer without rows is the end.
        """
        return not self.sequential and number == self.announced and self.rows == self.total

    def next_after(self, number: int, page: Page) -> int | None:
        """The page after `number` of a sequential source; None after the last."""
        upcoming = self._next_after(number, page)
        if upcoming is not None:
            self.refuse_repeats(number, page)
        return upcoming

    def _next_after(self, number: int, page: Page) -> int | None:
        """The rules for the end of the pages. `force_continue` overrides the others."""
        if number + 1 >= MAX_PAGES:
            raise SourceBroken(
                f"the source has more than {MAX_PAGES} pages of {self.step} rows: raise `step`, or split the export"
            )
        if page.force_continue is not None:
            return number + 1 if page.force_continue else None
        if self.by_cursor:
            if page.next is not None and page.next == self.cursor:
                raise SourceBroken(
                    f"page {number}: the source returned the cursor of this page as `next`: "
                    "it must return that of the following page, or null at the end"
                )
            self.cursor = page.next
            return None if page.next is None else number + 1
        return number + 1 if page.rows and len(page.rows) >= self.size else None

    def refuse_repeats(self, number: int, page: Page) -> None:
        """SourceBroken for a source that returns the same full page to every request: it would never end."""
        if not self.repeated.too_many(number, page.rows):
            return
        parameter = "`cursor`" if self.by_cursor else "`page`"
        raise SourceBroken(
            f"pages {number - 1} and {number} have the same {len(page.rows)} rows, like the page before them, and "
            f"more are announced: the source seems to ignore {parameter}. It has to return different rows for every "
            "page, and a short or an empty page (`next: null` with cursors) at the end"
        )

    def finish(self) -> None:
        self.done = True

    def warnings(self) -> list[str]:
        """Inconsistencies of the source, for the record of the export."""
        found = []
        if self.total is not None and not self.forced and self.rows != self.total:
            found.append(
                f"the source announced a total of {self.total} rows, but its {len(self.counts)} pages have {self.rows}"
            )
        if self.other_total is not None and not self.forced and not self.by_cursor:
            found.append(
                f"the source's total changed from {self.total} to {self.other_total} while its pages were read: "
                "the file may lack rows or have some twice; a cursor or a snapshot prevents that"
            )
        return found

    def as_data(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "total": self.total,
            "other_total": self.other_total,
            "forced": self.forced,
            "by_cursor": self.by_cursor,
            "size": self.size,
            "rows": self.rows,
            "counts": list(self.counts.items()),
            "keys": list(self.keys.items()),
            "said": list(self.source_settings.items()),
            "upcoming": self.upcoming,
            "cursor": self.cursor,
            "snapshot": self.snapshot,
            "done": self.done,
            "empty_page": self.empty_page,
            "first_crc": self.first_crc,
            "last_crc": self.last_crc,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TablePages:
        fields = {name: value for name, value in data.items() if name != "said"}
        fields |= {"counts": dict(data["counts"]), "keys": dict(data["keys"])}
        return cls(**fields, source_settings={name: (page, value) for name, (page, value) in data["said"]})


def rows_pulled(tables: Iterable[TablePages]) -> int:
    return sum(table.rows for table in tables)


def total_of(tables: Iterable[TablePages]) -> int | None:
    totals = [table.rows if table.done else table.total for table in tables]
    return None if None in totals else sum(total or 0 for total in totals)


# --- plan
# The plan of an export in ranges of pages, each pulled and rendered by one worker.
#
# The plan is made from the first page of every table. A range is identified by its table and its first page; its record
# has the page it ended at and the fragments that hold its rows. Each record starts at the page where the one before
# ended, so a worker may stop at any page.

# Requests that one worker has in flight.
THREADS = 4
# An export of fewer pages is faster in one step.
MIN_PAGES = 16
RANGE_SECONDS = 60.0
# A low estimate of what a worker renders: it bounds a range if the source is fast.
ROWS_PER_SECOND = 100_000
MOST_RANGES = 3000
# Page numbers in a plan times workers, about eight characters each: a state machine's state holds 256 KB.
_STATE_PAGES = 10_000


@dataclass(frozen=True, slots=True)
class Span:
    """The pages of one table that one worker takes: from `first` up to `past`; with None, all that follow."""

    table: int
    first: int
    past: int | None
    # Whether the plan has no page of this table after these.
    last: bool


@dataclass(frozen=True, slots=True)
class RangePlan:
    """For each table, `tables` has the first page of each range, and after them the number of announced pages.

    A sequential table, or one whose rows were given with the order, has the single entry 0.
    """

    lanes: int
    threads: int
    tables: list[list[int]]

    def of_lane(self, lane: int) -> list[Span]:
        """The ranges of one worker: every n-th of all, so that the workers advance through the tables together."""
        sequential = [Span(number, 0, None, True) for number, firsts in enumerate(self.tables) if len(firsts) == 1]
        return [*sequential, *self._ranges()][lane :: self.lanes]

    def _ranges(self) -> list[Span]:
        return [
            Span(number, first, past, past == firsts[-1])
            for number, firsts in enumerate(self.tables)
            for first, past in pairwise(firsts)
        ]

    @property
    def is_small(self) -> bool:
        """Whether a copy for every worker fits into the state of the state machine."""
        return sum(map(len, self.tables)) * self.lanes <= _STATE_PAGES

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def can_be_in_ranges(spec: ExportSpec, tables: Sequence[TablePages]) -> bool:
    """Whether several workers can render it: not with row heads, whose rows one worker has to gather, nor if short."""
    if any(ROW_HEAD in pages.all_keys() for pages in tables):
        return False
    if any(spec.table(number, pages.answered).template.rows for number, pages in enumerate(tables)):
        return False
    if (
        len(tables) == 1
        and spec.rows_per_file
        and (tables[0].sequential or (tables[0].total or 0) > spec.rows_per_file)
    ):
        return False
    # A total beyond the page limit cannot be planned: such a source is read until a page is empty.
    if any(not pages.sequential and pages.announced > MAX_PAGES for pages in tables):
        return False
    pulled = [pages for number, pages in enumerate(tables) if spec.tables[number].data is None]
    return sum(MIN_PAGES if _is_endless(pages) else pages.announced for pages in pulled) >= MIN_PAGES


def _is_endless(pages: TablePages) -> bool:
    """Whether an unknown number of pages follows page 0."""
    return pages.sequential and pages.upcoming is not None


def make_plan(
    spec: ExportSpec, tables: Sequence[TablePages], page_seconds: float, most: int, parallel: int
) -> RangePlan:
    """Plans ranges of about a minute, estimated from the time and the rows of page 0: a worker that dies repeats no
    more than that. At most `parallel` requests are in flight.

    A sequential table occupies one worker with one request in flight.
    """
    pulled = [pages for number, pages in enumerate(tables) if spec.tables[number].data is None]
    sequential = sum(pages.sequential for pages in pulled)
    ranged = sum(pages.announced for pages in pulled if not pages.sequential)
    lanes = min(sequential, parallel)
    if ranged:
        lanes += -(-max(0, parallel - lanes) // THREADS)
    lanes = max(1, min(most, lanes))
    threads = max(1, min(THREADS, parallel // lanes))
    rows = max((pages.size for pages in pulled if not pages.sequential), default=1)
    seconds_a_page = max(page_seconds / threads, rows / ROWS_PER_SECOND)
    requests = sum(_requests(pages) for pages in pulled if not pages.sequential)
    each = min(-(-requests // lanes), int(RANGE_SECONDS / seconds_a_page))
    each = max(1, each, -(-ranged // MOST_RANGES))
    plans = [
        [0] if pages.sequential or spec.tables[number].data is not None else _cut(pages.announced, each)
        for number, pages in enumerate(tables)
    ]
    return RangePlan(lanes, threads, plans)


def _requests(pages: TablePages) -> int:
    """Requests still to send: page 0 is staged already, and after a full last page one more is requested."""
    return max(1, pages.announced - 1 + (pages.total == pages.announced * pages.size))


def _cut(count: int, each: int) -> list[int]:
    """The first pages of ranges of `each` requests, and `count`. The first range also has page 0, already staged."""
    return [0, *range(1 + each, count, each), count]


def keys_matter(spec: ExportSpec, number: int, pages: TablePages) -> bool:
    """Whether a key that page 0 does not have would add a column."""
    if spec.type == JSONL:
        return False
    return spec.type != EXCEL or not spec.table(number, pages.answered).template.cols


@dataclass(slots=True)
class RangeRecord:
    """The result of one worker for the pages of a table from `first` up to `past`."""

    table: int
    first: int
    past: int
    # Rows of the table before these, of a sequential source: they decide where a sheet ends.
    before: int = 0
    rows: int = 0
    # Whether the source has no page after these.
    ended: bool = False
    # The cursor of the next page.
    cursor: str | None = None
    other_total: int | None = None
    footer: Any = None
    cut: int = 0
    # The totals of the columns; None for those without one.
    sums: list[Any] = field(default_factory=list)
    # Each: sheet, key, etag, size, crc, packed, rows.
    fragments: list[dict[str, Any]] = field(default_factory=list)
    # By sheet: the widths of the widest texts of its columns.
    widths: list[tuple[int, list[int]]] = field(default_factory=list)
    # By sheet: the equal neighbours in the columns that the template merges.
    equal: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    # Parquet: the rows and column sizes of each row group, and how many values were not of their column's type.
    groups: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RangeRecord:
        return cls(**data)


def ranges_prefix(project_id: str, task_id: str) -> str:
    """Under the staged pages, so that it is deleted with them."""
    return f"{pages_prefix(project_id, task_id)}ranges/"


def plan_object(project_id: str, task_id: str) -> str:
    return f"{ranges_prefix(project_id, task_id)}plan.json"


def record_object(project_id: str, task_id: str, table: int, first: int) -> str:
    return f"{ranges_prefix(project_id, task_id)}{table:03d}-{first:07d}.json"


def given_up_object(project_id: str, task_id: str) -> str:
    """Its content is the reason. While it exists, the export stages its pages, also in later attempts."""
    return f"{ranges_prefix(project_id, task_id)}given-up.txt"


def fragment_object(project_id: str, task_id: str, table: int, first: int, nonce: str, number: int) -> str:
    """Unique for each run of a range, so that a late duplicate cannot overwrite a fragment that a record names."""
    return f"{ranges_prefix(project_id, task_id)}{table:03d}-{first:07d}-{nonce}-{number:04d}"
