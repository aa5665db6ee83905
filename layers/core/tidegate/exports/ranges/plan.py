"""An export in ranges of pages, each pulled and rendered by one worker: which exports, which ranges, what is kept.

The plan is made from the first page of every table. A range is known by its table and its first page; its record
says how far it came and which fragments hold its rows. Records follow each other from page to page, so any worker
may stop early.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tidegate.exports.model import EXCEL, JSONL, ExportSpec, pages_prefix
from tidegate.exports.paging import MAX_PAGES, TablePages
from tidegate.exports.rendering.columns import ROW_HEAD

# Pages that one worker asks for at a time: four workers have four times as many in flight.
THREADS = 4
# Fewer pages are not worth a second step.
MIN_PAGES = 16
RANGE_SECONDS = 60.0
# What a worker renders in a second, on the low side: it bounds a range where the source is fast.
ROWS_PER_SECOND = 100_000
MOST_RANGES = 3000
# Numbers of pages in a plan, over all workers: eight characters each.
_TOLD_PAGES = 10_000


@dataclass(frozen=True, slots=True)
class Span:
    """The pages of one table that one worker takes: from `first` up to `past`, or one by one to the source's end."""

    table: int
    first: int
    past: int | None
    # Whether the source has no planned page after these.
    last: bool


@dataclass(frozen=True, slots=True)
class RangePlan:
    """`tables` holds, for each table, the first page of each range and at its end the page past the last announced.

    A table whose pages tell of the next only themselves, or whose rows were given, has the one entry 0.
    """

    lanes: int
    threads: int
    tables: list[list[int]]

    def of_lane(self, lane: int) -> list[Span]:
        """The ranges of one worker: every so many, so that all go through the sources side by side."""
        in_a_row = [Span(number, 0, None, True) for number, firsts in enumerate(self.tables) if len(firsts) == 1]
        return [*in_a_row, *self._ranges()][lane :: self.lanes]

    def _ranges(self) -> list[Span]:
        return [
            Span(number, first, past, past == firsts[-1])
            for number, firsts in enumerate(self.tables)
            for first, past in pairwise(firsts)
        ]

    @property
    def is_small(self) -> bool:
        """Whether it can be told to every worker: a machine's state holds 256 KB."""
        return sum(map(len, self.tables)) * self.lanes <= _TOLD_PAGES

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def can_be_in_ranges(spec: ExportSpec, tables: Sequence[TablePages]) -> bool:
    """Rows under row heads are gathered, which one worker has to do; a few pages are staged faster."""
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
    # A total beyond all pages is no plan: pages are then asked for until one is empty.
    if any(not pages.sequential and pages.announced > MAX_PAGES for pages in tables):
        return False
    pulled = [pages for number, pages in enumerate(tables) if spec.tables[number].data is None]
    return sum(MIN_PAGES if _goes_on(pages) else pages.announced for pages in pulled) >= MIN_PAGES


def _goes_on(pages: TablePages) -> bool:
    """Whether pages come one by one and page 0 was not the last: nobody knows how many follow."""
    return pages.sequential and pages.upcoming is not None


def make_plan(
    spec: ExportSpec, tables: Sequence[TablePages], page_seconds: float, most: int, parallel: int
) -> RangePlan:
    """At most `parallel` pages are in flight at a time; a range takes about a minute, judged by how long page 0 took
    and how many rows it has: a worker that dies repeats no more than that.

    A table whose pages come one by one keeps one worker busy with one page in flight.
    """
    pulled = [pages for number, pages in enumerate(tables) if spec.tables[number].data is None]
    in_a_row = sum(pages.sequential for pages in pulled)
    ranged = sum(pages.announced for pages in pulled if not pages.sequential)
    lanes = min(in_a_row, parallel)
    if ranged:
        lanes += -(-max(0, parallel - lanes) // THREADS)
    lanes = max(1, min(most, lanes))
    threads = max(1, min(THREADS, parallel // lanes))
    rows = max((pages.size for pages in pulled if not pages.sequential), default=1)
    seconds_a_page = max(page_seconds / threads, rows / ROWS_PER_SECOND)
    asked = sum(_asked(pages) for pages in pulled if not pages.sequential)
    each = min(-(-asked // lanes), int(RANGE_SECONDS / seconds_a_page))
    each = max(1, each, -(-ranged // MOST_RANGES))
    plans = [
        [0] if pages.sequential or spec.tables[number].data is not None else _cut(pages.announced, each)
        for number, pages in enumerate(tables)
    ]
    return RangePlan(lanes, threads, plans)


def _asked(pages: TablePages) -> int:
    """Requests to the source: page 0 is here already, and after a full last page one more is asked for."""
    return max(1, pages.announced - 1 + (pages.total == pages.announced * pages.size))


def _cut(count: int, each: int) -> list[int]:
    """First pages of ranges with `each` requests to the source, and `count`. The first has page 0 besides."""
    return [0, *range(1 + each, count, each), count]


def keys_matter(spec: ExportSpec, number: int, pages: TablePages) -> bool:
    """Whether a key that page 0 did not have would be a column more."""
    if spec.type == JSONL:
        return False
    return spec.type != EXCEL or not spec.table(number, pages.answered).template.cols


@dataclass(slots=True)
class RangeRecord:
    """What one worker made of the pages of a table from `first` up to `past`."""

    table: int
    first: int
    past: int
    # Rows of the table before these, where pages come one by one: sheets are then filled exactly.
    before: int = 0
    rows: int = 0
    # Whether the source has no page after these.
    ended: bool = False
    # Where the next page is found, for a source with cursors.
    cursor: str | None = None
    other_total: int | None = None
    footer: Any = None
    cut: int = 0
    sums: list[str | None] = field(default_factory=list)
    # Each: sheet, key, etag, size, crc, packed, rows.
    fragments: list[dict[str, Any]] = field(default_factory=list)
    # Of a Parquet file: each row group's rows and the sizes of its columns; and values that were not of their type.
    groups: list[dict[str, Any]] = field(default_factory=list)
    refused: int = 0

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> RangeRecord:
        return cls(**data)


def ranges_prefix(project_id: str, task_id: str) -> str:
    """Beside the staged pages, and gone with them."""
    return f"{pages_prefix(project_id, task_id)}ranges/"


def plan_object(project_id: str, task_id: str) -> str:
    return f"{ranges_prefix(project_id, task_id)}plan.json"


def record_object(project_id: str, task_id: str, table: int, first: int) -> str:
    return f"{ranges_prefix(project_id, task_id)}{table:03d}-{first:07d}.json"


def given_up_object(project_id: str, task_id: str) -> str:
    """Its content says why: the export then goes the way of staged pages, in later attempts too."""
    return f"{ranges_prefix(project_id, task_id)}given-up.txt"


def fragment_object(project_id: str, task_id: str, table: int, first: int, nonce: str, number: int) -> str:
    """Never the same twice: what a late twin writes is not what the record names."""
    return f"{ranges_prefix(project_id, task_id)}{table:03d}-{first:07d}-{nonce}-{number:04d}"
