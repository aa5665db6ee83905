"""What goes to the business for items, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.batches.run.values import ItemAnswer
from tidegate.errors import FetchError
from tidegate.http.model import Reply, error_for

RESULTS = ("ok", "error", "abandon")
STOPS = (None, "stop", "finish")
MOST_LINES = 20
LONGEST_LINE = 1000
_EXPECTED = "the answer is not {result: ok | error | abandon, msg?, stop?: stop | finish, logs?}"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    answer: ItemAnswer
    lines: tuple[tuple[str, str], ...] = ()


def call_body(batch_id: str, items: Sequence[Mapping[str, Any]], *, grouped: bool, dry_run: bool = False) -> bytes:
    body: dict[str, Any] = {"batch_id": batch_id} | ({"items": list(items)} if grouped else dict(items[0]))
    if dry_run:
        body["dry_run"] = True
    # As ASCII: a row may hold half a surrogate pair, which UTF-8 cannot.
    return json.dumps(body, separators=(",", ":")).encode()


def read_reply(reply: Reply, now: datetime, indexes: Sequence[int], *, grouped: bool) -> list[ParsedAnswer]:
    """The answer for each of these items; grouped, they come as `results`, by `index` or in the order of the call."""
    error = error_for(reply.status, reply.headers, now)
    if error is not None:
        return [failed(error)] * len(indexes)
    try:
        said = reply.json()
    except ValueError:
        said = None
    if not grouped:
        return [read_answer(said)]
    results = said.get("results") if isinstance(said, dict) else None
    if not isinstance(results, list):
        return [_not_understood(f"the answer to {len(indexes)} items is not {{results: […]}}")] * len(indexes)
    by_index = {one["index"]: one for one in results if isinstance(one, dict) and isinstance(one.get("index"), int)}
    if not by_index and len(results) == len(indexes):
        return [read_answer(one) for one in results]
    return [
        read_answer(by_index[index]) if index in by_index else _not_understood(f"results does not name item {index}")
        for index in indexes
    ]


def read_answer(said: object) -> ParsedAnswer:
    """What the business says of one item. `msg` is the reason that people see where it did not succeed."""
    if not isinstance(said, dict) or said.get("result") not in RESULTS or said.get("stop") not in STOPS:
        return _not_understood(_EXPECTED)
    lines = tuple(_lines(said.get("logs")))
    told = said.get("msg") or (lines[0][1] if lines else "")
    detail = _text(told) if said["result"] != "ok" or said.get("stop") else ""
    return ParsedAnswer(ItemAnswer(said["result"], detail, stop=said.get("stop")), lines)


def _not_understood(why: str) -> ParsedAnswer:
    return ParsedAnswer(ItemAnswer("error", why))


def failed(error: FetchError) -> ParsedAnswer:
    return ParsedAnswer(ItemAnswer("error", error.detail, retry_after=error.retry_after))


def _lines(logs: object) -> list[tuple[str, str]]:
    """(level, message) of the first twenty."""
    entries = logs if isinstance(logs, list) else [] if logs is None else [logs]
    found = []
    for entry in entries[:MOST_LINES]:
        if isinstance(entry, dict):
            level, message = str(entry.get("level") or "info")[:20], entry.get("message", entry)
        else:
            level, message = "info", entry
        found.append((_text(level), _text(message)))
    return found


def _text(value: object) -> str:
    """As text that can be stored."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:LONGEST_LINE].encode("utf-8", "replace").decode()
