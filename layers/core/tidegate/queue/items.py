"""A request as items: its record, its place in the lane, what makes it due."""

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
# As text: what a caller put there may be more than DynamoDB's numbers and depths can hold.
_TEXTS = ("payload", "result", "progress")
# A machine that was just started gets this long before someone looks whether it really was.
_FIRST_BEAT_SECONDS = 15


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
    """When someone must look at the request if nothing happens to it; for one that ended, when it is removed."""
    if request.status == PENDING:
        lane = {"due_lane": f"channel:{request.channel}"}
        return keys.due(request.request_id, max(now, request.not_before or _moment(request)), "request") | lane
    if request.status == RUNNING:
        return keys.due(request.request_id, now + _FIRST_BEAT_SECONDS, "request")
    return keys.retained(request.request_id, now + keep_seconds) if request.is_over else {}


def _moment(request: Request) -> float:
    return datetime.fromisoformat(request.created_at).timestamp()


def place_key(request: Request) -> dict[str, str]:
    where = (request.channel, request.project_id)
    return keys.waiting_place(*where, rank(request.priority, request.created_at), request.request_id)


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
