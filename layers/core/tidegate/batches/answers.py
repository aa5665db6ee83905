"""What goes to the business for an item, and how its answer is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tidegate.batches.run_state import ItemAnswer, ItemCall
from tidegate.errors import FetchError
from tidegate.http.model import Reply, error_for

RESULTS = ("ok", "error", "abandon")
STOPS = (None, "stop", "finish")
MOST_LINES = 20
LONGEST_LINE = 1000


class _Nothing:
    """Told apart from None, which an item may well be."""


NOTHING: Final = _Nothing()


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    answer: ItemAnswer
    lines: tuple[tuple[str, str], ...] = ()


def item_body(batch_id: str, call: ItemCall, job_data: Any) -> bytes:
    body: dict[str, Any] = {"batch_id": batch_id, "index": call.index, "attempt": call.attempt}
    if job_data is not NOTHING:
        body["job_data"] = job_data
    # As ASCII: a row may hold half a surrogate pair, which UTF-8 cannot.
    return json.dumps(body, separators=(",", ":")).encode()


def read_reply(reply: Reply, now: datetime) -> ParsedAnswer:
    error = error_for(reply.status, reply.headers, now)
    if error is not None:
        return failed(error)
    try:
        said = reply.json()
    except ValueError:
        said = None
    if (
        not isinstance(said, dict)
        or said.get("result") not in RESULTS
        or said.get("stop") not in (None, "stop", "finish")
    ):
        return ParsedAnswer(
            ItemAnswer("error", "the answer is not {result: ok | error | abandon, stop?: stop | finish}")
        )
    lines = tuple(_lines(said.get("logs")))
    told = said.get("msg") or (lines[0][1] if lines else "")
    detail = _text(told) if said["result"] != "ok" else ""
    return ParsedAnswer(ItemAnswer(said["result"], detail, stop=said.get("stop")), lines)


def failed(error: FetchError) -> ParsedAnswer:
    return ParsedAnswer(ItemAnswer("error", error.detail, retry_after=error.retry_after))


def _lines(logs: object) -> list[tuple[str, str]]:
    """(level, message) of each; a business that sends a book is heard to its twentieth line."""
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
    """What can be stored, whatever was said."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:LONGEST_LINE].encode("utf-8", "replace").decode()
