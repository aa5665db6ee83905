"""A source's pages: how an answer is read, when there is another page, and what was pulled so far."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode
from zlib import crc32

from tidegate.errors import BadTable, SourceBroken
from tidegate.exports.rendering.columns import flat_rows, keys_of, merge_keys
from tidegate.exports.rendering.template_parser import parse_template
from tidegate.exports.rendering.typed_rows import typed_answers
from tidegate.exports.source_json import Digits, digits_of, plain, read_exact

MAX_PAGES = 100_000
MAX_KEYS = 16_384
_LONGEST_CURSOR = 4096


@dataclass(frozen=True, slots=True)
class SourcePage:
    rows: list[Any]
    total: int | None = None
    force_continue: bool | None = None
    # What the source says of the table itself: header, footer, template.
    answered: dict[str, Any] = field(default_factory=dict)
    # Cursor paging: whether the source does it, and how to ask for the page after this one.
    by_cursor: bool = False
    next: str | None = None
    snapshot: str | None = None
    crc: int = 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page is found: its number, and what the source wants to be told again."""

    page: int
    cursor: str | None = None
    snapshot: str | None = None


def page_url(source_url: str, place: Place, step: int, task_id: str) -> str:
    base, hash_mark, fragment = source_url.partition("#")
    asked: dict[str, Any] = {"page": place.page, "page_size": step, "_task_id": task_id}
    if place.cursor is not None:
        asked["cursor"] = place.cursor
    if place.snapshot is not None:
        asked["snapshot"] = place.snapshot
    joint = "" if base.endswith(("?", "&")) else "&" if "?" in base else "?"
    return f"{base}{joint}{urlencode(asked)}{hash_mark}{fragment}"


def read_page(body: bytes, number: int) -> SourcePage:
    """The page in a source's answer; what cannot be used is said in words for the one who runs the source."""
    try:
        answer = read_exact(body)
    except ValueError as error:
        raise SourceBroken(f"page {number}: the source did not answer JSON ({error})") from error
    if not isinstance(answer, Mapping):
        raise SourceBroken(f"page {number}: the source did not answer an object with status and data")
    data = answer.get("data")
    _check_status(answer.get("status"), answer.get("msg"), number)
    if not isinstance(data, Mapping) or "data" not in data:
        raise SourceBroken(f"page {number}: the source's answer has no rows at data.data")
    try:
        rows = flat_rows(data["data"], "data.data")
    except BadTable as error:
        raise SourceBroken(f"page {number}: {error.detail}") from error
    return _page(rows, data, number, crc32(body))


def page_reader(keys: Sequence[str]) -> Callable[[bytes, int], SourcePage]:
    """`read_page` for pages whose keys are most likely these; rows are then `TypedRow`s, which are read faster."""
    typed = typed_answers(keys)
    if typed is None:
        return read_page

    def read(body: bytes, number: int) -> SourcePage:
        answer = typed(body)
        if answer is None:
            return read_page(body, number)
        _check_status(answer.status, answer.msg, number)
        return _page(answer.data.data, answer.data.rest(), number, crc32(body))

    return read


def _check_status(status: Any, msg: Any, number: int) -> None:
    if str(status) != "200":
        said = f": {msg}" if msg else ""
        raise SourceBroken(f"page {number}: the source answered status {plain(status)}{said}"[:500])


def _page(rows: list[Any], data: Mapping[str, Any], number: int, crc: int) -> SourcePage:
    try:
        answered = _answered(data)
    except BadTable as error:
        raise SourceBroken(f"page {number}: {error.detail}") from error
    return SourcePage(
        rows,
        _total(plain(data.get("total")), number),
        _flag(plain(data.get("force_continue")), number),
        answered,
        by_cursor="next" in data,
        next=_token(data.get("next"), "next", number),
        snapshot=_token(data.get("snapshot"), "snapshot", number),
        crc=crc,
    )


def _answered(data: Mapping[str, Any]) -> dict[str, Any]:
    """`header`, `footer` and `template`, as far as the source gave them, in a form that can be used."""
    found: dict[str, Any] = {}
    for name in ("header", "footer"):
        if data.get(name):
            found[name] = _texts(_unpacked(data[name]), f"data.{name}")
    if data.get("template"):
        found["template"] = plain(_unpacked(data["template"]))
        try:
            parse_template(found["template"])
        except BadTable as error:
            raise BadTable(f"data.{error.detail}") from error
    return found


def _unpacked(value: Any) -> Any:
    """Objects may come as strings holding JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return read_exact(value)
        except ValueError:
            return value
    return value


def _texts(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise BadTable(f'{where} is neither text nor an object of texts, such as {{"date": "2026-11-16"}}')
    for key, text in value.items():
        if not (text is None or isinstance(text, str | int | float | Digits)):
            raise BadTable(f"{where}.{key} is not text")
    return {key: digits_of(text) if isinstance(text, Digits) else text for key, text in value.items()}


def _total(value: Any, number: int) -> int | None:
    if value is None:
        return None
    text = str(value)
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise SourceBroken(f"page {number}: total is {text[:100]!r}, which is not a number of rows")
    return int(text)


def _flag(value: Any, number: int) -> bool | None:
    if value is None:
        return None
    if str(value) not in ("0", "1", "True", "False"):
        raise SourceBroken(f"page {number}: force_continue is {value!r}, not 1 or 0"[:500])
    return str(value) in ("1", "True")


def _token(value: Any, name: str, number: int) -> str | None:
    """A cursor or a snapshot: text, or a number that stands for one."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > _LONGEST_CURSOR:
        raise SourceBroken(f"page {number}: {name} is {str(value)[:200]!r}, which is not a text to send back")
    return str(value)


@dataclass(slots=True)
class TablePages:
    """What was pulled of one table: rows by page, and the keys that each page was the first to bring.

    A source's total is a hint. It says which pages can be asked for side by side; the end is a short page, an empty
    page or the end of the cursor. What does not add up is a warning.
    """

    step: int = 1000
    total: int | None = None
    # The total of a later page, where it was another.
    other_total: int | None = None
    forced: bool = False
    by_cursor: bool = False
    # Rows a page, as the source does it: it may give fewer than it is asked for.
    size: int = 1000
    rows: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    keys: dict[int, list[str]] = field(default_factory=dict)
    # Name: the page that said it and what it said. Later pages win: a footer of totals may come with the last.
    said: dict[str, tuple[int, Any]] = field(default_factory=dict)
    # The page to go on with, where pages come one by one; None after the last.
    upcoming: int | None = 0
    cursor: str | None = None
    snapshot: str | None = None
    done: bool = False
    # The lowest page without rows: none is asked for past it.
    empty_page: int | None = None
    first_crc: int = 0

    @property
    def answered(self) -> dict[str, Any]:
        return {name: value for name, (_, value) in self.said.items()}

    @property
    def sequential(self) -> bool:
        """Whether only a page itself tells if there is another."""
        return self.total is None or self.forced or self.by_cursor

    def all_keys(self) -> list[str]:
        return merge_keys(self.keys[page] for page in sorted(self.keys))

    def place(self, number: int) -> Place:
        return Place(number, self.cursor if self.by_cursor and number else None, self.snapshot)

    def record(self, number: int, page: SourcePage) -> None:
        if number == 0:
            self._begin(page)
        elif self._is_first_again(number, page):
            self.upcoming = None
            return
        elif page.total is not None and page.total != self.total:
            self.other_total = page.total
        self.forced = self.forced or page.force_continue is not None
        for name, value in page.answered.items():
            if number >= self.said.get(name, (0, None))[0]:
                self.said[name] = number, value
        self.rows += len(page.rows) - self.counts.get(number, 0)
        self.counts[number] = len(page.rows)
        if not page.rows:
            self.empty_page = min(number, self.empty_page if self.empty_page is not None else number)
        self._record_keys(number, keys_of(page.rows))
        if self.sequential or number >= self.announced:
            self.upcoming = self.next_after(number, page)

    def _is_first_again(self, number: int, page: SourcePage) -> bool:
        """A source that does not know pages gives all its rows whatever it is asked: the total was true then."""
        return not self.sequential and number == self.announced == 1 and page.crc == self.first_crc

    def _begin(self, page: SourcePage) -> None:
        self.first_crc = page.crc
        self.total, self.by_cursor, self.snapshot = page.total, page.by_cursor, page.snapshot
        given = len(page.rows)
        # Told that there is more, and yet not as many as asked for: that is the source's own page size.
        self.size = given if given and page.total and given < page.total else self.step

    def _record_keys(self, number: int, fresh: list[str]) -> None:
        known = {key for keys in self.keys.values() for key in keys}
        # Pages end in any order: a key is kept under every page that may turn out to be the first to have it.
        if number == 0 or not known.issuperset(fresh) or any(other > number for other in self.keys):
            self.keys[number] = fresh
        if len(known.union(fresh)) > MAX_KEYS:
            raise SourceBroken(f"page {number}: the rows have more than {MAX_KEYS} different keys")

    def planned(self) -> Iterator[int]:
        """The pages that the total announces and that are not here yet; none past a page that was empty."""
        if self.sequential:
            return
        for number in range(1, self.announced):
            if self.empty_page is not None and number > self.empty_page:
                return
            if number >= MAX_PAGES:
                raise SourceBroken(f"the source still has pages after {MAX_PAGES}")
            if number not in self.counts:
                yield number

    @property
    def announced(self) -> int:
        """How many pages the total makes."""
        total = self.total or 0
        return 1 if self.counts.get(0, 0) >= total else -(-total // self.size)

    def go_on_after_plan(self) -> None:
        """All that the total announced is here: a full last page means that more may follow, page by page."""
        last = max(self.counts)
        # A source that gave more than a page holds gave all it has at once.
        full = self.counts[last] == self.size if last == 0 else self.counts[last] >= self.size
        self.upcoming = last + 1 if full else None

    def met(self, number: int) -> bool:
        """Whether page `number` is asked for only to see that the total was true.

        Sources answer a page past their last in many ways; any answer but rows says that there is no more.
        """
        return not self.sequential and number == self.announced and self.rows == self.total

    def next_after(self, number: int, page: SourcePage) -> int | None:
        """One by one: the stop rules. `force_continue` overrides them."""
        if number + 1 >= MAX_PAGES:
            raise SourceBroken(f"the source still has pages after {MAX_PAGES}")
        if page.force_continue is not None:
            return number + 1 if page.force_continue else None
        if self.by_cursor:
            if page.next is not None and page.next == self.cursor:
                raise SourceBroken(f"page {number}: the source answered the cursor that led to this page again")
            self.cursor = page.next
            return None if page.next is None else number + 1
        return number + 1 if page.rows and len(page.rows) >= self.size else None

    def finish(self) -> None:
        self.done = True

    def warnings(self) -> list[str]:
        """What does not add up, for the record."""
        found = []
        if self.total is not None and not self.forced and self.rows != self.total:
            found.append(f"the source told a total of {self.total} rows, its {len(self.counts)} pages hold {self.rows}")
        if self.other_total is not None and not self.forced and not self.by_cursor:
            found.append(
                f"the source's total changed from {self.total} to {self.other_total} while its pages were read: "
                "rows may be missing or twice in the file; a cursor or a snapshot prevents that"
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
            "said": list(self.said.items()),
            "upcoming": self.upcoming,
            "cursor": self.cursor,
            "snapshot": self.snapshot,
            "done": self.done,
            "empty_page": self.empty_page,
            "first_crc": self.first_crc,
        }

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> TablePages:
        said = {name: (page, value) for name, (page, value) in data["said"]}
        return cls(**{**data, "counts": dict(data["counts"]), "keys": dict(data["keys"]), "said": said})


def rows_pulled(tables: Iterable[TablePages]) -> int:
    return sum(table.rows for table in tables)


def total_of(tables: Iterable[TablePages]) -> int | None:
    totals = [table.rows if table.done else table.total for table in tables]
    return None if None in totals else sum(total or 0 for total in totals)
