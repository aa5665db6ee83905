"""An export in ranges of pages, each pulled and rendered by one worker: which exports, which ranges, what is kept.

The plan is made from page 0. A range is known by its first page; its record says how far it came and which
fragments hold its rows. Records follow each other from page to page, so any worker may stop early.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from tidegate.exports.model import CSV, JSONL, ExportSpec, pages_prefix
from tidegate.exports.paging import MAX_PAGES, TablePages
from tidegate.exports.rendering.columns import ROW_HEAD

# Pages that one worker asks for at a time: four workers have four times as many in flight.
THREADS = 4
# Fewer pages are not worth a second step.
MIN_PAGES = 16
RANGE_SECONDS = 60.0
MOST_RANGES = 3000


@dataclass(frozen=True, slots=True)
class RangePlan:
    """`ranges` holds the first page of each, and at its end the page past the last that the total announces."""

    lanes: int
    threads: int
    ranges: list[int]

    def of_lane(self, lane: int) -> list[tuple[int, int]]:
        """The ranges of one worker: every so many, so that all go through the source side by side."""
        spans = list(zip(self.ranges, self.ranges[1:], strict=False))
        return spans[lane :: self.lanes]

    @property
    def end(self) -> int:
        return self.ranges[-1]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)


def can_be_in_ranges(spec: ExportSpec, pages: TablePages) -> bool:
    """One table of full pages and a told total. Rows under row heads are gathered, which one worker has to do."""
    if len(spec.tables) != 1 or spec.tables[0].data is not None or pages.sequential or pages.announced < MIN_PAGES:
        return False
    # A total beyond all pages is no plan: pages are then asked for until one is empty.
    if pages.announced > MAX_PAGES:
        return False
    if spec.rows_per_file and (pages.total or 0) > spec.rows_per_file:
        return False
    return ROW_HEAD not in pages.all_keys() and not spec.table(0, pages.answered).template.rows


def make_plan(pages: TablePages, parallel: int, page_seconds: float, most_lanes: int) -> RangePlan:
    """`parallel` pages are in flight at a time; a range takes about a minute, judged by page 0."""
    lanes = max(1, min(most_lanes, -(-parallel // THREADS)))
    count = pages.announced
    each = max(1, min(-(-count // lanes), int(RANGE_SECONDS * THREADS / max(page_seconds, 0.01))))
    each = max(each, -(-count // MOST_RANGES))
    return RangePlan(lanes, min(parallel, THREADS), [*range(0, count, each), count])


def keys_matter(spec: ExportSpec, pages: TablePages) -> bool:
    """Whether a key that page 0 did not have would be a column more."""
    if spec.type == JSONL:
        return False
    return spec.type == CSV or not spec.table(0, pages.answered).template.cols


@dataclass(slots=True)
class RangeRecord:
    """What one worker made of the pages from `first` up to `past`."""

    first: int
    past: int
    rows: int = 0
    # Whether the source has no page after these.
    ended: bool = False
    other_total: int | None = None
    footer: Any = None
    cut: int = 0
    sums: list[str | None] = field(default_factory=list)
    # Each: sheet, key, etag, size, crc, packed, rows.
    fragments: list[dict[str, Any]] = field(default_factory=list)

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


def record_object(project_id: str, task_id: str, first: int) -> str:
    return f"{ranges_prefix(project_id, task_id)}{first:07d}.json"


def given_up_object(project_id: str, task_id: str) -> str:
    """Its content says why: the export then goes the way of staged pages, in later attempts too."""
    return f"{ranges_prefix(project_id, task_id)}given-up.txt"


def fragment_object(project_id: str, task_id: str, first: int, nonce: str, number: int) -> str:
    """Never the same twice: what a late twin writes is not what the record names."""
    return f"{ranges_prefix(project_id, task_id)}{first:07d}-{nonce}-{number:04d}"
