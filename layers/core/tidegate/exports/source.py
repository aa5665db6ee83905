"""The source of an export: requests its pages, reads their rows exactly, and decides which page is the last."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode, urlsplit

from botocore.exceptions import BotoCoreError, ClientError
from isal.isal_zlib import crc32
from msgspec.structs import astuple

from tidegate.common.ids import digest
from tidegate.errors import BadTable, ContentTooLarge, FetchError, NotSent, SourceBroken, UpstreamError, UseAsync
from tidegate.exports.model import DIRECT, ExportSpec
from tidegate.http.guard import Credential
from tidegate.http.model import MEGABYTE, Limits, error_for
from tidegate.projects.model import Project
from tidegate.sheets.rows import TypedRow, typed_answers
from tidegate.sheets.table import flat_rows, keys_of, merge_keys, parse_template
from tidegate.sheets.values import Digits, digits_of, plain, read_exact, write_exact

if TYPE_CHECKING:
    from tidegate.aws.host_usage import HostUsage
    from tidegate.exports import Exports

# --- source page
# One page of a source: the URL that requests it, and the parsing of the response.

_LONGEST_CURSOR = 4096
_ERROR_STATUS = re.compile("[45][0-9]{2}", re.ASCII)
EXPECTED = 'expected is {"status": 200, "data": {"data": [{"key": "value"}, …], "total": 2431}}'


@dataclass(frozen=True, slots=True)
class SourcePage:
    rows: list[Any]
    total: int | None = None
    force_continue: bool | None = None
    # Settings of the table that the source sent: header, footer, template.
    answered: dict[str, Any] = field(default_factory=dict)
    # Cursor paging: whether the source uses it, and the cursor of the next page.
    by_cursor: bool = False
    next: str | None = None
    snapshot: str | None = None
    crc: int = 0


@dataclass(frozen=True, slots=True)
class PagePlace:
    """What identifies a page to the source: its number, and the cursor and snapshot that the source sent."""

    page: int
    cursor: str | None = None
    snapshot: str | None = None


def page_url(source_url: str, place: PagePlace, step: int, task_id: str) -> str:
    """Returns the URL that requests a page: the source's URL with page, page_size and the other parameters."""
    base, hash_mark, fragment = source_url.partition("#")
    parameters: dict[str, Any] = {"page": place.page, "page_size": step, "_task_id": task_id}
    if place.cursor is not None:
        parameters["cursor"] = place.cursor
    if place.snapshot is not None:
        parameters["snapshot"] = place.snapshot
    joint = "" if base.endswith(("?", "&")) else "&" if "?" in base else "?"
    return f"{base}{joint}{urlencode(parameters)}{hash_mark}{fragment}"


def read_page(body: bytes, number: int) -> SourcePage:
    """Returns the page that is in a source's response.

    Raises SourceBroken if the response has the wrong form. The text of this error is for the people who run the source.
    Raises a FetchError, which may be retryable, if the source answered with an error.
    """
    try:
        answer = read_exact(body)
    except ValueError as error:
        # When a program fails, its server sends a page of HTML, nothing, or an object that ends early or is followed
        # by the error.
        kind = UpstreamError if body.lstrip()[:1] in (b"", b"<", b"{") else SourceBroken
        raise kind(f"page {number}: the response is not JSON ({error}); {EXPECTED}") from error
    if not isinstance(answer, Mapping):
        raise SourceBroken(f"page {number}: the response is not a JSON object; {EXPECTED}")
    data = answer.get("data")
    _check_status(answer.get("status"), answer.get("msg"), number)
    if not isinstance(data, Mapping) or "data" not in data:
        raise SourceBroken(f"page {number}: the response has no rows at data.data; {EXPECTED}")
    try:
        rows = flat_rows(data["data"], "data.data")
    except BadTable as error:
        raise SourceBroken(f"page {number}: {error.detail}") from error
    return _page(rows, data, number, crc32(body))


def page_reader(keys: Sequence[str]) -> Callable[[bytes, int], SourcePage]:
    """Returns a faster `read_page` for rows that most likely have these keys. It returns such rows as `TypedRow`s."""
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
    """Raises the error for the `status` in a response, unless it is 200. 400 to 599 mean the same as in HTTP."""
    # Some write 200 as 200.0.
    text = str(plain(status)).removesuffix(".0")
    if text == "200":
        return
    reason = f": {msg}" if msg else f"; {EXPECTED}" if status is None else ""
    detail = f"page {number}: the source answered status {text}{reason}"[:500]
    if _ERROR_STATUS.fullmatch(text) and (error := error_for(int(text), {})):
        raise type(error)(detail, upstream_status=int(text))
    raise SourceBroken(detail)


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
    """Returns the `header`, `footer` and `template` that the source sent, after checking them."""
    found: dict[str, Any] = {}
    for name in ("header", "footer"):
        if data.get(name):
            found[name] = _texts(unpacked_texts(data[name]), f"data.{name}")
    if data.get("template"):
        found["template"] = plain(unpacked(data["template"]))
        try:
            parse_template(found["template"])
        except BadTable as error:
            raise BadTable(f"data.{error.detail}") from error
    return found


def unpacked(value: Any) -> Any:
    """Returns the value, decoded if it is an object or a list that was sent as a JSON text."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return read_exact(value)
        except ValueError:
            return value
    return value


def unpacked_texts(value: Any) -> Any:
    """Like `unpacked`, but keeps text that begins with `[`: a header or footer is never a list."""
    return value if isinstance(value, str) and value.lstrip()[:1] == "[" else unpacked(value)


def _texts(value: Any, where: str) -> Any:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        raise BadTable(f'{where} must be text, or an object of texts such as {{"date": "2026-11-16"}}')
    for key, text in value.items():
        if not (text is None or isinstance(text, str | int | float | Digits)):
            raise BadTable(f"{where}.{key} is not text: {str(text)[:60]}")
    return as_written(value)


def as_written(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the texts of a header or footer, with decimals as they were written."""
    return {key: digits_of(text) if isinstance(text, Digits) else text for key, text in texts.items()}


def _total(value: Any, number: int) -> int | None:
    """Returns the total that the source announced. None if the source does not know a total.

    A source that does not know a total sends none, "" or -1.
    """
    text = "" if value is None else str(value).removesuffix(".0")
    if text == "" or (text[0] == "-" and text[1:].isdigit() and text[1] != "0"):
        return None
    if isinstance(value, bool) or not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise SourceBroken(f"page {number}: total is {text[:100]!r}; it must be a number of rows")
    return int(text)


def _flag(value: Any, number: int) -> bool | None:
    if value is None:
        return None
    if str(value) not in ("0", "1", "True", "False"):
        raise SourceBroken(f"page {number}: force_continue is {value!r}; it must be 1 or 0"[:500])
    return str(value) in ("1", "True")


def _token(value: Any, name: str, number: int) -> str | None:
    """Returns a cursor or a snapshot as text; sources may send a number. None if there is none."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > _LONGEST_CURSOR:
        raise SourceBroken(
            f"page {number}: {name} is {str(value)[:200]!r}; it must be text of at most {_LONGEST_CURSOR} characters"
        )
    return str(value)


# --- paging
# The pages of a source: which to request, where they end, and what was pulled so far.

MAX_PAGES = 100_000
MAX_KEYS = 16_384
# Only pages with at least this many rows are compared, to find a source that returns the same page to every request:
# shorter pages may be equal by chance.
_FEWEST_ROWS = 20
# How many times in succession a page has to repeat.
_MOST_REPEATS = 2


@dataclass(slots=True)
class TablePages:
    """Which pages of one table were pulled, with their row counts and keys, and which page comes next.

    A source's total only shows which pages can be requested in parallel. The pages end with a short page, with an empty
    page or with the end of the cursor. If the total does not match the rows, the export gets a warning.
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
    # To find repeated pages: number, first and last row, and digest of the page before; how often it was repeated.
    _number: int = field(default=-1, compare=False, repr=False)
    _ends: tuple[int, bytes, bytes] | None = field(default=None, compare=False, repr=False)
    _digest: bytes | None = field(default=None, compare=False, repr=False)
    _repeats: int = field(default=0, compare=False, repr=False)

    @property
    def answered(self) -> dict[str, Any]:
        return {name: value for name, (_, value) in self.source_settings.items()}

    @property
    def sequential(self) -> bool:
        """Whether pages must be requested one after another. Then only each page shows whether another one follows."""
        return self.total is None or self.forced or self.by_cursor

    def all_keys(self) -> list[str]:
        return merge_keys(self.keys[page] for page in sorted(self.keys))

    def record_given(self, keys: list[str], rows: int) -> None:
        """Enters the rows that came with the order, as a single page."""
        self.keys, self.counts, self.rows, self.total = {0: keys}, {0: rows}, rows, rows
        self.upcoming, self.done = None, True

    def page_place(self, number: int) -> PagePlace:
        return PagePlace(number, self.cursor if self.by_cursor and number else None, self.snapshot)

    def record(self, number: int, page: SourcePage) -> None:
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

    def is_last_again(self, number: int, page: SourcePage) -> bool:
        """Whether page `number` comes after the last announced page and repeats that page.

        Then the total was right, and the pages end here. Some sources have no pages and return all rows to every
        request. Some return their last page for every later one. If page 0 was the same too although more pages were
        announced, the source ignores `page`, and the result is False.
        """
        if self.sequential or number != self.announced or page.crc != self.last_crc:
            return False
        return self.announced == 1 or page.crc != self.first_crc

    def _begin(self, page: SourcePage) -> None:
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
        """Yields the numbers of the announced pages that are still missing. Yields none after an empty page."""
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
        """How many pages there are according to the total."""
        total = self.total or 0
        return 1 if self.counts.get(0, 0) >= total else -(-total // self.size)

    def continue_after_plan(self) -> None:
        """Sets `upcoming` once all announced pages are pulled. If the last of them is full, another page may follow."""
        last = max(self.counts)
        # If page 0 is larger than requested, the source has no other. An empty page is the end, even if pages after it,
        # which were requested at the same time, have rows.
        full = self.counts[last] == self.size if last == 0 else self.counts[last] >= self.size
        self.upcoming = last + 1 if full and self.empty_page is None else None

    def confirms_total(self, number: int) -> bool:
        """Whether page `number` is requested only to check that nothing follows the total.

        Sources answer a page past their last in many ways; any answer without rows is the end.
        """
        return not self.sequential and number == self.announced and self.rows == self.total

    def next_after(self, number: int, page: SourcePage) -> int | None:
        """Returns the number of the page that follows page `number`. None if page `number` is the last one."""
        upcoming = self._next_after(number, page)
        if upcoming is not None:
            self.refuse_repeats(number, page)
        return upcoming

    def _next_after(self, number: int, page: SourcePage) -> int | None:
        """Like `next_after`, but without the check for repeats.

        `force_continue` overrides all other rules for the end.
        """
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

    def refuse_repeats(self, number: int, page: SourcePage) -> None:
        """Raises SourceBroken if the source returns the same full page to every request.

        Pulling from such a source would never end.
        """
        if not self._repeats_again(number, page.rows):
            return
        parameter = "`cursor`" if self.by_cursor else "`page`"
        raise SourceBroken(
            f"pages {number - 1} and {number} have the same {len(page.rows)} rows, like the page before them, and "
            f"more are announced: the source seems to ignore {parameter}. It has to return different rows for every "
            "page, and a short or an empty page (`next: null` with cursors) at the end"
        )

    def _repeats_again(self, number: int, rows: Sequence[Any]) -> bool:
        """Whether page `number` and the two pages before it have the same rows.

        Rows may repeat in valid data, so only pages whose rows all differ from one another are compared: a table with
        few different rows is never taken for a broken source. Rows are hashed only once two pages have the same first
        and last row.
        """
        follows, self._number = number == self._number + 1, number
        ends = (len(rows), _row_text(rows[0]), _row_text(rows[-1])) if len(rows) >= _FEWEST_ROWS else None
        if ends is None or not follows or ends != self._ends:
            self._ends, self._digest, self._repeats = ends, None, 0
            return False
        hashed = _digest_of(rows)
        self._repeats = self._repeats + 1 if hashed is not None and hashed == self._digest else 0
        self._digest = hashed
        return self._repeats >= _MOST_REPEATS

    def warnings(self) -> list[str]:
        """Returns texts about contradictions between the source's totals and its rows, for the export's record."""
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


def _digest_of(rows: Sequence[Any]) -> bytes | None:
    """Returns a digest of the rows of a page; None if a row occurs twice on the page."""
    texts = list(map(_row_text, rows))
    return sha256(b"\n".join(texts)).digest() if len(set(texts)) == len(texts) else None


def _row_text(row: Any) -> bytes:
    return write_exact(list(astuple(row)) if isinstance(row, TypedRow) else row)


def rows_pulled(tables: Iterable[TablePages]) -> int:
    return sum(table.rows for table in tables)


def total_of(tables: Iterable[TablePages]) -> int | None:
    """Returns the number of rows of all tables. None if the number of rows of one table is not known yet."""
    totals = [table.rows if table.done else table.total for table in tables]
    return None if None in totals else sum(total or 0 for total in totals)


# --- reading
# Fetches one page of a caller's source: by a signed HTTP request, or directly from an AWS service.

# For how many seconds a request waits for its turn under `source_rate`; after that the page is retried.
_PATIENCE = 60.0
# The time of a request without a `source_timeout`.
PAGE_SECONDS = 50.0
PAGE_LIMITS = Limits(connect=5.0, read=30.0, total=PAGE_SECONDS, max_bytes=16 * MEGABYTE)
# Above this rate, a process reserves several slots at once: one item of the table takes at most 1,000 writes a second.
_ONE_BY_ONE = 250
_SLOTS_TOGETHER = 4
_CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.ASCII | re.IGNORECASE)
# Charsets that are subsets of another one; servers that name the subset mean the larger set.
_CHARSETS = {"gb2312": "gb18030", "gbk": "gb18030", "cp936": "gb18030", "ms936": "gb18030", "x-gbk": "gb18030"}


class ReadPage(Protocol):
    def __call__(self, source_url: str, place: PagePlace, step: int, seconds: float | None = None) -> bytes:
        """Returns the body of a page. `seconds` limits the request further than the default timeouts."""


def page_source(
    exports: Exports,
    project_id: str,
    task_id: str,
    spec: ExportSpec | None = None,
    *,
    limits: Limits | None = None,
    for_caller: bool = False,
) -> ReadPage:
    """Returns a function that reads pages from the address of a table: a URL, or a direct source such as an S3 object.

    The order's credential is sent only to the origins that it is stored for. All exports of the project share the
    `source_rate`. `for_caller`: whether a caller waits for the answer. Then this runs in a function that may read
    neither secrets nor direct sources.
    """
    project, credential, limits = exports.projects.get(project_id), None, limits or PAGE_LIMITS
    seconds_given = spec.source_timeout if spec else None
    if seconds_given:
        limits = replace(limits, read=float(seconds_given), total=float(seconds_given))
    if spec and spec.credential is not None:
        if for_caller:
            raise UseAsync("stored credentials are only available to POST /v1/task: order the export there")
        credential = exports.credentials.get(project_id, spec.credential)
    pace = exports.pace_of(spec.source_rate) if spec and spec.source_rate else None

    def read(source_url: str, place: PagePlace, step: int, seconds: float | None = None) -> bytes:
        if source_url.startswith(DIRECT):
            if for_caller:
                raise UseAsync("`source` is only available to POST /v1/task: order the export there")
            from tidegate.exports.direct import direct_page

            return direct_page(exports, project_id, task_id, source_url, place, step, seconds_given)
        if pace:
            host = f"{project_id} {urlsplit(source_url).netloc.lower()}"
            waited = pace.wait(host, min(_PATIENCE, seconds or _PATIENCE))
            seconds = None if seconds is None else max(0.001, seconds - waited)
        within = limits if seconds is None else _within(limits, seconds)
        return _fetch(exports, project, task_id, credential, within, source_url, place, step)

    return read


def _fetch(
    exports: Exports,
    project: Project,
    task_id: str,
    credential: Credential | None,
    limits: Limits,
    source_url: str,
    place: PagePlace,
    step: int,
) -> bytes:
    if credential is not None:
        credential.require(source_url, plain_text=project.allow_private_urls)
    message_id = "msg_" + digest(task_id, source_url, str(place.page), length=32)
    try:
        reply = exports.http.send(
            "GET",
            page_url(source_url, place, step, task_id),
            headers={"accept": "application/json"},
            sign=lambda url: exports.sign(project, message_id, exports.clock(), url=url),
            allow_private=project.allow_private_urls,
            limits=limits,
            project_id=project.project_id,
            credential=credential,
        )
        reply.raise_for_status()
    except FetchError as error:
        detail = f"page {place.page} of the source: {error.detail}"
        if isinstance(error, ContentTooLarge):
            detail += f". Lower `step`, which is {step}, for smaller pages"
        raise type(error)(detail, retry_after=error.retry_after, upstream_status=error.upstream_status) from error
    return _as_utf8(reply.body, reply.headers.get("content-type", ""))


def _within(limits: Limits, seconds: float) -> Limits:
    return replace(
        limits, connect=min(limits.connect, seconds), read=min(limits.read, seconds), total=min(limits.total, seconds)
    )


def _as_utf8(body: bytes, content_type: str) -> bytes:
    """Returns the body as UTF-8.

    If the body is not in the charset that its content type names, returns it unchanged.
    """
    named = _CHARSET.search(content_type)
    charset = named[1].lower() if named else "utf-8"
    if charset in ("utf-8", "utf8"):
        return body
    try:
        if charset.startswith(("iso-8859", "us-ascii", "latin", "windows-")):
            # Some servers name their default charset, whatever the program sends.
            body.decode()
            return body
    except UnicodeDecodeError:
        pass
    try:
        return body.decode(_CHARSETS.get(charset, charset)).encode()
    except (LookupError, UnicodeError):
        return body


@dataclass(eq=False)
class SourcePace:
    """Spaces the requests of one project to a host evenly, over all functions."""

    usage: HostUsage
    rate: int
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    # By address: the reserved times at which this process may send a request.
    _slots: dict[str, deque[float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, address: str, patience: float) -> float:
        """Waits for the next slot and returns the seconds waited.

        Raises NotSent if the wait would be longer than `patience`.
        """
        with self._lock:
            now, gap = self.clock(), 1 / self.rate
            slots = self._slots.setdefault(address, deque())
            # Drop reserved times that have passed: used late, their requests would coincide with others.
            while slots and slots[0] < now - gap:
                slots.popleft()
            if not slots:
                count = 1 if self.rate <= _ONE_BY_ONE else _SLOTS_TOGETHER
                first = self._reserve(address, gap * count, now, now + patience)
                slots.extend(first + gap * number for number in range(count))
            wait = max(0.0, slots.popleft() - now)
        if wait:
            self.sleep(wait)
        return wait

    def _reserve(self, address: str, seconds: float, now: float, latest: float) -> float:
        try:
            first = self.usage.reserve(address, seconds, now, latest)
        except (ClientError, BotoCoreError) as error:
            raise NotSent(f"the rate of requests to the source could not be read: {error}", retry_after=1) from error
        if first is None:
            host = address.rpartition(" ")[2]
            raise NotSent(f"{host} already gets {self.rate} calls per second, its limit", retry_after=1)
        return first
