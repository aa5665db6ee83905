"""A source's pages: how an answer is read, when there is another page, and what was pulled so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from tidegate.common.json_input import read_json, whole_number
from tidegate.errors import BadTable, SourceBroken
from tidegate.exports.rendering.columns import flat_rows, keys_of, merge_keys

MAX_PAGES = 100_000
MAX_KEYS = 16_384


@dataclass(frozen=True, slots=True)
class SourcePage:
    rows: list[dict[str, Any]]
    total: int | None = None
    force_continue: bool | None = None
    # What the source says of the table itself: header, footer, template.
    answered: dict[str, Any] = field(default_factory=dict)


def page_url(source_url: str, page: int, step: int, task_id: str) -> str:
    base, hash_mark, fragment = source_url.partition("#")
    query = urlencode({"page": page, "page_size": step, "_task_id": task_id})
    joint = "" if base.endswith(("?", "&")) else "&" if "?" in base else "?"
    return f"{base}{joint}{query}{hash_mark}{fragment}"


def read_page(body: bytes, number: int) -> SourcePage:
    """The page in a source's answer; what cannot be used is said in words for the one who runs the source."""
    try:
        answer = read_json(body)
    except ValueError as error:
        raise SourceBroken(f"page {number}: the source did not answer JSON ({error})") from error
    if not isinstance(answer, Mapping):
        raise SourceBroken(f"page {number}: the source did not answer an object with status and data")
    status = answer.get("status")
    if str(status) != "200":
        said = f": {answer['msg']}" if answer.get("msg") else ""
        raise SourceBroken(f"page {number}: the source answered status {status}{said}"[:500])
    data = answer.get("data")
    if not isinstance(data, Mapping) or "data" not in data:
        raise SourceBroken(f"page {number}: the source's answer has no rows at data.data")
    try:
        rows = flat_rows(data["data"], "data.data")
    except BadTable as error:
        raise SourceBroken(f"page {number}: {error.detail}") from error
    answered = {name: _plain(data.get(name)) for name in ("header", "footer", "template") if data.get(name)}
    return SourcePage(rows, _total(data.get("total"), number), _flag(data.get("force_continue"), number), answered)


def _plain(value: Any) -> Any:
    """Objects may come as strings holding JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return read_json(value)
        except ValueError:
            return value
    return value


def _total(value: Any, number: int) -> int | None:
    if value is None:
        return None
    total = None if isinstance(value, bool) else whole_number(str(value))
    if total is None:
        raise SourceBroken(f"page {number}: total is {_short(value)}, which is not a number of rows")
    return total


def _short(value: Any) -> str:
    return repr(value[:100] if isinstance(value, str) else value)[:100]


def _flag(value: Any, number: int) -> bool | None:
    if value is None:
        return None
    if str(value) not in ("0", "1", "True", "False"):
        raise SourceBroken(f"page {number}: force_continue is {value!r}, not 1 or 0"[:500])
    return str(value) in ("1", "True")


@dataclass(slots=True)
class TablePages:
    """What was pulled of one table: rows by page, and the keys that each page was the first to bring."""

    total: int | None = None
    forced: bool = False
    counts: dict[int, int] = field(default_factory=dict)
    keys: dict[int, list[str]] = field(default_factory=dict)
    answered: dict[str, Any] = field(default_factory=dict)
    # The page to go on with, where pages come one by one; None after the last.
    upcoming: int | None = 0
    done: bool = False

    @property
    def rows(self) -> int:
        return sum(self.counts.values())

    def all_keys(self) -> list[str]:
        return merge_keys(self.keys[page] for page in sorted(self.keys))

    def record(self, number: int, page: SourcePage) -> None:
        if number == 0:
            self.total, self.answered = page.total, page.answered
        self.forced = self.forced or page.force_continue is not None
        self.counts[number] = len(page.rows)
        known = {key for keys in self.keys.values() for key in keys}
        fresh = keys_of(page.rows)
        # Pages end in any order: a key is kept under every page that may turn out to be the first to have it.
        if number == 0 or not known.issuperset(fresh) or any(other > number for other in self.keys):
            self.keys[number] = fresh
        if len(known.union(fresh)) > MAX_KEYS:
            raise SourceBroken(f"page {number}: the rows have more than {MAX_KEYS} different keys")

    def rest(self, step: int) -> range | None:
        """The pages after the first, pulled or not; None where each page tells whether there is another."""
        if self.total is None or self.forced:
            return None
        if self.counts[0] >= self.total:
            return range(0)
        pages = -(-self.total // step)
        if pages > MAX_PAGES:
            told = f"the source told a total of {self.total} rows"
            raise SourceBroken(f"{told}: {pages} pages of {step}, and {MAX_PAGES} pages are the most")
        return range(1, pages)

    def missing(self, numbers: Iterable[int]) -> Iterator[int]:
        return (number for number in numbers if number not in self.counts)

    def next_after(self, number: int, page: SourcePage, step: int) -> int | None:
        """One by one: the stop rules. `force_continue` overrides them."""
        if number + 1 >= MAX_PAGES:
            raise SourceBroken(f"the source still has pages after {MAX_PAGES}")
        if page.force_continue is not None:
            return number + 1 if page.force_continue else None
        if not page.rows:
            return None
        more = self.rows < self.total if self.total is not None else len(page.rows) >= step
        return number + 1 if more else None

    def finish(self) -> None:
        """A source is held to the total that it told."""
        if self.total is not None and not self.forced and self.rows != self.total:
            first, pages = self.counts.get(0, 0), len(self.counts)
            raise SourceBroken(
                f"the source told a total of {self.total} rows, its {pages} pages hold {self.rows} (page 0: {first})"
            )
        self.done = True

    def as_data(self) -> dict[str, Any]:
        return {
            "total": self.total,
            "forced": self.forced,
            "counts": list(self.counts.items()),
            "keys": list(self.keys.items()),
            "answered": self.answered,
            "upcoming": self.upcoming,
            "done": self.done,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TablePages:
        return cls(**{**data, "counts": dict(data["counts"]), "keys": dict(data["keys"])})


def rows_pulled(tables: Iterable[TablePages]) -> int:
    return sum(table.rows for table in tables)


def total_of(tables: Iterable[TablePages]) -> int | None:
    totals = [table.rows if table.done else table.total for table in tables]
    return None if None in totals else sum(total or 0 for total in totals)
