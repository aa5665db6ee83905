"""The body of a call to the business, and how its answer is parsed."""

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
    # ASCII with escapes, because a row may contain a lone surrogate, which UTF-8 cannot encode.
    return json.dumps(body, separators=(",", ":")).encode()


def read_reply(reply: Reply, now: datetime, indexes: Sequence[int], *, grouped: bool) -> list[ParsedAnswer]:
    """Returns the answer for each of these items. Grouped answers are in `results`, by `index` or in call order."""
    error = error_for(reply.status, reply.headers, now)
    if error is not None:
        return [failed(error)] * len(indexes)
    try:
        answer = reply.json()
    except ValueError:
        answer = None
    if not grouped:
        return [read_answer(answer)]
    results = answer.get("results") if isinstance(answer, dict) else None
    if not isinstance(results, list):
        return [_invalid_answer(f"the answer to {len(indexes)} items is not {{results: […]}}")] * len(indexes)
    entries = [entry for entry in results if isinstance(entry, dict)]
    by_index = {entry["index"]: entry for entry in entries if isinstance(entry.get("index"), int)}
    if not by_index and len(results) == len(indexes):
        return [read_answer(entry) for entry in results]
    return [
        read_answer(by_index[index]) if index in by_index else _invalid_answer(f"`results` lacks item {index}")
        for index in indexes
    ]


def read_answer(answer: object) -> ParsedAnswer:
    """Parses the answer for one item. Its `msg`, or else its first log line, is the reason shown to people."""
    if not isinstance(answer, dict) or answer.get("result") not in RESULTS or answer.get("stop") not in STOPS:
        return _invalid_answer(_EXPECTED)
    lines = tuple(_lines(answer.get("logs")))
    reason = answer.get("msg") or (lines[0][1] if lines else "")
    detail = _text(reason) if answer["result"] != "ok" or answer.get("stop") else ""
    return ParsedAnswer(ItemAnswer(answer["result"], detail, stop=answer.get("stop")), lines)


def _invalid_answer(why: str) -> ParsedAnswer:
    return ParsedAnswer(ItemAnswer("error", why))


def failed(error: FetchError) -> ParsedAnswer:
    return ParsedAnswer(ItemAnswer("error", error.detail, retry_after=error.retry_after))


def _lines(logs: object) -> list[tuple[str, str]]:
    """Returns (level, message) of the first log lines."""
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
    """Returns text that can be stored: shortened, and valid UTF-8."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:LONGEST_LINE].encode("utf-8", "replace").decode()
