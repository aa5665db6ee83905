"""The source of an export: asks for a page, checks the answer, reads its rows exactly."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlencode, urlsplit
from zlib import crc32

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.common.ids import Clock, digest
from tidegate.errors import BadTable, ContentTooLarge, FetchError, NotSent, SourceBroken, UpstreamError, UseAsync
from tidegate.exports.model import DIRECT, ExportSpec
from tidegate.http.client import SafeHttp
from tidegate.http.guard import Credential
from tidegate.http.model import MEGABYTE, Limits, error_for
from tidegate.projects.model import Project
from tidegate.projects.secrets import CredentialStore, Signer
from tidegate.sheets.rows import typed_answers
from tidegate.sheets.table import flat_rows, parse_template
from tidegate.sheets.values import Digits, digits_of, plain, read_exact

if TYPE_CHECKING:
    from tidegate.aws.host_usage import HostUsage
    from tidegate.common.sequences import Chunk
    from tidegate.exports.direct import DirectSources

# --- source page
# One page of a source: the URL that requests it, and the parsing of the response.

_LONGEST_CURSOR = 4096
_ERROR_STATUS = re.compile("[45][0-9]{2}", re.ASCII)
EXPECTED = 'expected is {"status": 200, "data": {"data": [{"key": "value"}, …], "total": 2431}}'


@dataclass(frozen=True, slots=True)
class Page:
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
class Place:
    """Identifies a page to the source: its number, and the cursor and snapshot that the source sent."""

    page: int
    cursor: str | None = None
    snapshot: str | None = None


def page_url(source_url: str, place: Place, step: int, task_id: str) -> str:
    base, hash_mark, fragment = source_url.partition("#")
    parameters: dict[str, Any] = {"page": place.page, "page_size": step, "_task_id": task_id}
    if place.cursor is not None:
        parameters["cursor"] = place.cursor
    if place.snapshot is not None:
        parameters["snapshot"] = place.snapshot
    joint = "" if base.endswith(("?", "&")) else "&" if "?" in base else "?"
    return f"{base}{joint}{urlencode(parameters)}{hash_mark}{fragment}"


def read_page(body: bytes, number: int) -> Page:
    """Parses a source's response. SourceBroken, in words for the people who run the source, if it cannot be used.

    A FetchError, which may be retryable, if the source did not answer with rows this time.
    """
    try:
        answer = read_exact(body)
    except ValueError as error:
        # Servers and proxies send a page of HTML, or nothing, when the program behind them failed.
        kind = UpstreamError if body.lstrip()[:1] in (b"", b"<") else SourceBroken
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


def page_reader(keys: Sequence[str]) -> Callable[[bytes, int], Page]:
    """Returns a `read_page` for pages that most likely have these keys: rows are then `TypedRow`s, parsed faster."""
    typed = typed_answers(keys)
    if typed is None:
        return read_page

    def read(body: bytes, number: int) -> Page:
        answer = typed(body)
        if answer is None:
            return read_page(body, number)
        _check_status(answer.status, answer.msg, number)
        return _page(answer.data.data, answer.data.rest(), number, crc32(body))

    return read


def _check_status(status: Any, msg: Any, number: int) -> None:
    """A status of 400 to 599 means what it means in HTTP."""
    if str(status) == "200":
        return
    reason = f": {msg}" if msg else f"; {EXPECTED}" if status is None else ""
    detail = f"page {number}: the source answered status {plain(status)}{reason}"[:500]
    if _ERROR_STATUS.fullmatch(str(status)) and (error := error_for(int(str(status)), {})):
        raise type(error)(detail, upstream_status=int(str(status)))
    raise SourceBroken(detail)


def _page(rows: list[Any], data: Mapping[str, Any], number: int, crc: int) -> Page:
    try:
        answered = _answered(data)
    except BadTable as error:
        raise SourceBroken(f"page {number}: {error.detail}") from error
    return Page(
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
    """Returns `header`, `footer` and `template`, as far as the source sent them, checked."""
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
    """Decodes an object that was sent as a string of JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return read_exact(value)
        except ValueError:
            return value
    return value


def unpacked_texts(value: Any) -> Any:
    """As `unpacked`; a text may begin with a bracket, because a header or footer is no list."""
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
    """Texts of a header or footer, with decimals as they were written."""
    return {key: digits_of(text) if isinstance(text, Digits) else text for key, text in texts.items()}


def _total(value: Any, number: int) -> int | None:
    """A total is a hint. None if the source does not know it, for which many send -1 or an empty text."""
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
    """A cursor or a snapshot as text; sources may send a number."""
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, str | int) or len(str(value)) > _LONGEST_CURSOR:
        raise SourceBroken(
            f"page {number}: {name} is {str(value)[:200]!r}; it must be text of at most {_LONGEST_CURSOR} characters"
        )
    return str(value)


# --- ports
# Interfaces of exports that have several implementations.


class Sink(Protocol):
    """A file that is being written to the bucket; it becomes visible with `close`."""

    size: int

    def write(self, data: Chunk) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ReadPage(Protocol):
    def __call__(self, source_url: str, place: Place, step: int, seconds: float | None = None) -> bytes:
        """Returns the body of a page. `seconds` limits the request further than the default timeouts."""


# --- source
# Fetches one page of a caller's source: by a signed HTTP request, or directly from an AWS service.

# How long a request waits for its turn under `source_rate`; after that the page is retried.
_PATIENCE = 60.0
# The time of a request without a `source_timeout`.
PAGE_SECONDS = 50.0
PAGE_LIMITS = Limits(connect=5.0, read=30.0, total=PAGE_SECONDS, max_bytes=16 * MEGABYTE)
# Above this rate, a process takes several slots at once: a record of the table takes 1,000 writes per second.
_ONE_BY_ONE = 250
_SLOTS_TOGETHER = 4
_CHARSET = re.compile(r"charset\s*=\s*\"?([\w.:-]+)", re.ASCII | re.IGNORECASE)
# Subsets by another name; servers mean the larger set.
_CHARSETS = {"gb2312": "gb18030", "gbk": "gb18030", "cp936": "gb18030", "ms936": "gb18030", "x-gbk": "gb18030"}


class SignedSource:
    def __init__(
        self,
        http: SafeHttp,
        sign: Signer,
        project_of: Callable[[str], Project],
        clock: Clock,
        limits: Limits = PAGE_LIMITS,
        credentials: CredentialStore | None = None,
    ) -> None:
        self._http = http
        self._sign = sign
        self._project_of = project_of
        self._clock = clock
        self._limits = limits
        # None in functions without the permission to read secrets.
        self._credentials = credentials

    def reader(self, project_id: str, task_id: str, spec: ExportSpec | None = None) -> ReadPage:
        """The order's credential is sent only to the origins that it is for."""
        stored, limits = None, self._limits
        if spec and spec.source_timeout:
            limits = replace(limits, read=float(spec.source_timeout), total=float(spec.source_timeout))
        if spec and spec.credential is not None:
            if self._credentials is None:
                raise UseAsync("stored credentials are only available to POST /v1/task: order the export there")
            stored = self._credentials.get(project_id, spec.credential)
        return partial(self._fetch, self._project_of(project_id), task_id, stored, limits)

    def _fetch(
        self,
        project: Project,
        task_id: str,
        credential: Credential | None,
        limits: Limits,
        source_url: str,
        place: Place,
        step: int,
        seconds: float | None = None,
    ) -> bytes:
        if credential is not None:
            credential.require(source_url, plain_text=project.allow_private_urls)
        message_id = "msg_" + digest(task_id, source_url, str(place.page), length=32)
        try:
            reply = self._http.send(
                "GET",
                page_url(source_url, place, step, task_id),
                headers={"accept": "application/json"},
                sign=lambda url: self._sign(project, message_id, self._clock(), url=url),
                allow_private=project.allow_private_urls,
                limits=limits if seconds is None else _within(limits, seconds),
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


def _as_utf8(body: bytes, content_type: str) -> bytes:
    """The body in UTF-8. One that is not in the charset that its header names is returned as it is."""
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


class SourcePace:
    """Spaces the requests of one project to a host evenly, over all functions."""

    def __init__(
        self,
        usage: HostUsage,
        rate: int,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._usage, self._rate, self._clock, self._sleep = usage, rate, clock, sleep
        # By address: the times at which this process may send.
        self._slots: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def wait(self, address: str, patience: float) -> float:
        """Waits for the next slot. Returns the seconds waited. NotSent if that takes longer than `patience`."""
        with self._lock:
            now, gap = self._clock(), 1 / self._rate
            slots = self._slots.setdefault(address, deque())
            # Slots that nobody used in time are lost: used late, they would come together with others.
            while slots and slots[0] < now - gap:
                slots.popleft()
            if not slots:
                count = 1 if self._rate <= _ONE_BY_ONE else _SLOTS_TOGETHER
                first = self._reserve(address, gap * count, now, now + patience)
                slots.extend(first + gap * number for number in range(count))
            wait = max(0.0, slots.popleft() - now)
        if wait:
            self._sleep(wait)
        return wait

    def _reserve(self, address: str, seconds: float, now: float, latest: float) -> float:
        try:
            first = self._usage.reserve(address, seconds, now, latest)
        except (ClientError, BotoCoreError) as error:
            raise NotSent(f"the rate of requests to the source could not be read: {error}", retry_after=1) from error
        if first is None:
            host = address.rpartition(" ")[2]
            raise NotSent(f"{host} already gets {self._rate} calls per second, its limit", retry_after=1)
        return first


class Sources:
    """Reads pages by the address of their table: a URL, or a direct source such as an S3 object."""

    def __init__(
        self,
        signed: SignedSource,
        direct: DirectSources | None = None,
        pace_of: Callable[[int], SourcePace] | None = None,
    ) -> None:
        self._signed = signed
        # By requests per second. None in functions that read a sample only.
        self._pace_of = cache(pace_of) if pace_of else None
        # None in functions without the permission to read them.
        self._direct = direct

    def reader(self, project_id: str, task_id: str, spec: ExportSpec | None = None) -> ReadPage:
        """Reads with the order's credential, `source_timeout` and `source_rate`, which is one of the project."""
        read_url = self._signed.reader(project_id, task_id, spec)
        pace = self._pace_of(spec.source_rate) if self._pace_of and spec and spec.source_rate else None

        def read(source_url: str, place: Place, step: int, seconds: float | None = None) -> bytes:
            if not source_url.startswith(DIRECT):
                if pace:
                    waited = pace.wait(
                        f"{project_id} {urlsplit(source_url).netloc.lower()}", min(_PATIENCE, seconds or _PATIENCE)
                    )
                    seconds = None if seconds is None else max(0.001, seconds - waited)
                return read_url(source_url, place, step, seconds)
            if self._direct is None:
                raise UseAsync("`source` is only available to POST /v1/task: order the export there")
            return self._direct.page(
                project_id, task_id, source_url, place, step, spec.source_timeout if spec else None
            )

        return read


def _within(limits: Limits, seconds: float) -> Limits:
    return replace(
        limits,
        connect=min(limits.connect, seconds),
        read=min(limits.read, seconds),
        total=min(limits.total, seconds),
    )
