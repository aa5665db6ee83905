"""The plan of an export in ranges of pages, each pulled and rendered by one worker.

The plan is made from the first page of every table. A range is identified by its table and its first page; its record
has the page it ended at and the fragments that hold its rows. Each record starts at the page where the one before
ended, so a worker may stop at any page.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any

from tidegate.exports.model import EXCEL, JSONL, ExportSpec, pages_prefix
from tidegate.exports.paging import MAX_PAGES, TablePages
from tidegate.exports.rendering.columns import ROW_HEAD

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
    sums: list[str | None] = field(default_factory=list)
    # Each: sheet, key, etag, size, crc, packed, rows.
    fragments: list[dict[str, Any]] = field(default_factory=list)
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
