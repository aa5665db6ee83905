"""One page of a source: the URL that requests it, and the parsing of the response."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode
from zlib import crc32

from tidegate.errors import BadTable, SourceBroken
from tidegate.exports.rendering.columns import flat_rows
from tidegate.exports.rendering.template_parser import parse_template
from tidegate.exports.rendering.typed_rows import typed_answers
from tidegate.exports.source_json import Digits, digits_of, plain, read_exact

_LONGEST_CURSOR = 4096
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
    """Parses a source's response. SourceBroken, in words for the people who run the source, if it cannot be used."""
    try:
        answer = read_exact(body)
    except ValueError as error:
        raise SourceBroken(f"page {number}: the response is not JSON ({error}); {EXPECTED}") from error
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
    if str(status) != "200":
        reason = f": {msg}" if msg else f"; {EXPECTED}" if status is None else ""
        raise SourceBroken(f"page {number}: the source answered status {plain(status)}{reason}"[:500])


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
            found[name] = _texts(_unpacked(data[name]), f"data.{name}")
    if data.get("template"):
        found["template"] = plain(_unpacked(data["template"]))
        try:
            parse_template(found["template"])
        except BadTable as error:
            raise BadTable(f"data.{error.detail}") from error
    return found


def _unpacked(value: Any) -> Any:
    """Decodes an object that was sent as a string of JSON."""
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
        raise BadTable(f'{where} must be text, or an object of texts such as {{"date": "2026-11-16"}}')
    for key, text in value.items():
        if not (text is None or isinstance(text, str | int | float | Digits)):
            raise BadTable(f"{where}.{key} is not text: {str(text)[:60]}")
    return {key: digits_of(text) if isinstance(text, Digits) else text for key, text in value.items()}


def _total(value: Any, number: int) -> int | None:
    if value is None:
        return None
    text = str(value)
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
