"""Messages of WebSocket clients, and messages to them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.common.json_input import read_json
from tidegate.errors import DomainError, Invalid

TICKET_SECONDS = 60
# API Gateway closes a connection after two hours; ten minutes more for its records.
CONNECTION_SECONDS = 2 * 3600 + 600
MOST_IDS = 100
# Records that one connection may watch.
MOST_WATCHES = 1000
LONGEST_ID = 2048
# API Gateway allows frames of 32 KB, and closes the connection (1009) if one is larger.
LARGEST_FRAME = 32 * 1024
ACTIONS = ("watch", "unwatch", "ping")


@dataclass(frozen=True, slots=True)
class Holder:
    """The project and key that a ticket or connection belongs to. It has no more rights than that key."""

    project_id: str
    key_record_id: str
    # Set for an agent's connection, which gets a message when there is something in the agent's inbox.
    agent_id: str | None = None
    may_watch: bool = True


@dataclass(frozen=True, slots=True)
class WatchEntry:
    """`record_id` is what the client watches; `followed_id` is the record whose notices report on it."""

    project_id: str
    followed_id: str
    record_id: str
    connection_id: str


@dataclass(frozen=True, slots=True)
class ClientMessage:
    action: str
    record_ids: tuple[str, ...]


def parse(text: str) -> ClientMessage:
    try:
        given = read_json(text)
    except ValueError as error:
        raise Invalid('a message must be JSON, such as {"action": "watch", "task_ids": ["…"]}') from error
    if not isinstance(given, dict) or given.get("action") not in ACTIONS:
        raise Invalid(f"action must be one of {', '.join(ACTIONS)}")
    ids = given.get("task_ids", [])
    if not isinstance(ids, list) or not all(map(_is_id, ids)):
        raise Invalid(f"task_ids must be a list of ids, each a text of 1 to {LONGEST_ID} characters")
    if given["action"] != "ping" and not 0 < len(ids) <= MOST_IDS:
        raise Invalid(f"task_ids must have 1 to {MOST_IDS} ids, not {len(ids)}")
    return ClientMessage(given["action"], tuple(dict.fromkeys(ids)))


def _is_id(value: object) -> bool:
    """Refuses half a surrogate pair: JSON can hold it, but no id has it, and the answer could not be encoded."""
    if not isinstance(value, str) or not 0 < len(value) <= LONGEST_ID:
        return False
    return not any(0xD800 <= ord(char) <= 0xDFFF for char in value)


def message(kind: str, data: Mapping[str, Any]) -> str:
    """The message as JSON. If it is too large for a frame: without its largest fields, and with `truncated`."""
    text = _json({"type": kind, "data": data})
    if _size(text) <= LARGEST_FRAME:
        return text
    kept: dict[str, Any] = {"truncated": True}
    room = LARGEST_FRAME - _size(_json({"type": kind, "data": kept}))
    for name, value in sorted(data.items(), key=lambda field: _size(_json(dict([field])))):
        room -= _size(_json({name: value}))
        if room < 0:
            break
        kept[name] = value
    return _json({"type": kind, "data": kept})


def id_messages(kind: str, record_ids: Sequence[str]) -> list[str]:
    """The ids, in as few messages as the frame size allows."""
    lists: list[list[str]] = [[]]
    size = start = _size(_json({"type": kind, "data": {"task_ids": []}}))
    for record_id in record_ids:
        more = _size(_json(record_id)) + 1
        if lists[-1] and size + more > LARGEST_FRAME:
            lists.append([])
            size = start
        lists[-1].append(record_id)
        size += more
    return [_json({"type": kind, "data": {"task_ids": ids}}) for ids in lists]


def error_message(error: DomainError, **about: str) -> str:
    return message("error", {"code": error.code, "detail": error.detail, **about})


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _size(text: str) -> int:
    return len(text.encode())
