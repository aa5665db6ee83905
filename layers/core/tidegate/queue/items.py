"""The items of a request: its record, its place in the lane, and when it is due."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.queue.admission.fairness import rank
from tidegate.queue.channels.model import Place
from tidegate.queue.model import PENDING, RUNNING, Request

_FIELDS = tuple(field.name for field in fields(Request))
# Stored as JSON text: callers' values may have larger numbers or deeper nesting than DynamoDB allows.
_TEXTS = ("payload", "result", "progress")
# After this time compensation checks whether the state machine of an admitted request was really started.
_FIRST_HEARTBEAT_SECONDS = 15


def as_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def request_item(request: Request) -> Item:
    item = asdict(request) | {name: as_text(getattr(request, name)) for name in _TEXTS}
    order = f"{request.created_at}#{request.request_id}"
    item |= keys.request(request.project_id, request.request_id)
    item |= {"gsi1pk": keys.requests_list(request.project_id), "gsi1sk": order}
    if request.subscription_id:
        pk = keys.subscription_requests(request.project_id, request.subscription_id)
        item |= {"gsi2pk": pk, "gsi2sk": order}
    return item


def request_from(item: Item) -> Request:
    known = {name: item[name] for name in _FIELDS if name in item}
    return Request(**known | {name: json.loads(item[name]) for name in _TEXTS if item.get(name) is not None})


def due_of(request: Request, *, now: float, keep_seconds: int) -> dict[str, Any]:
    """When compensation checks the request if nothing happens to it; for an ended one, when retention removes it."""
    if request.status == PENDING:
        lane = {"due_lane": f"channel:{request.channel}"}
        return keys.due(request.request_id, max(now, request.not_before or _created(request)), "request") | lane
    if request.status == RUNNING:
        return keys.due(request.request_id, now + _FIRST_HEARTBEAT_SECONDS, "request")
    return keys.retained(request.request_id, now + keep_seconds) if request.is_over else {}


def _created(request: Request) -> float:
    return datetime.fromisoformat(request.created_at).timestamp()


def place_key(request: Request) -> dict[str, str]:
    lane = (request.channel, request.project_id)
    return keys.waiting_place(*lane, rank(request.priority, request.created_at), request.request_id)


def place_item(request: Request) -> Item:
    by_age = {"gsi1pk": keys.waiting_by_age(request.channel), "gsi1sk": f"{request.created_at}#{request.request_id}"}
    return place_key(request) | {
        **by_age,
        "channel": request.channel,
        "project_id": request.project_id,
        "request_id": request.request_id,
        "priority": request.priority,
        "since": request.created_at,
        "status": request.status,
        "reason": request.last_wait_reason,
        "not_before": request.not_before,
        "mutex": request.mutex,
    }


def place_from(item: Item) -> Place:
    return Place(**{field.name: item.get(field.name) for field in fields(Place)})  # type: ignore[arg-type]
