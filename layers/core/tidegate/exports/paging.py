"""The pages of a source: which to request, where they end, and what was pulled so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import SourceBroken
from tidegate.exports.rendering.columns import keys_of, merge_keys
from tidegate.exports.repeated_pages import RepeatedPages
from tidegate.exports.source_page import Page, Place

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
