"""Routes for the queue: channels and the requests in them."""

from __future__ import annotations

from typing import Annotated, Literal

from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.queue.channels.model import ALL
from tidegate.web.queue.schemas import (
    CapacityBody,
    ChannelAnswer,
    QueueStats,
    RequestAnswer,
    RequestList,
    ScopeBody,
)
from tidegate.web.routing import Cursor, Limit, Router

router = Router()
_TAGS = ["Queue"]

Status = Literal["pending", "queued", "running", "completed", "failed", "cancelled", "paused"]


def _stats() -> QueueStats:
    return QueueStats(
        channels={entry.channel: ChannelAnswer.model_validate(entry) for entry in app().queue.channels.stats()}
    )


@router.get("/v1/queue/stats", scope="read", tags=_TAGS, summary="Get the state of every channel")
def stats() -> QueueStats:
    return _stats()


@router.get("/v1/queue", scope="read", tags=_TAGS, summary="List requests")
def list_queue(
    channel: Annotated[str | None, Query(max_length=40)] = None,
    status: Annotated[Status | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> RequestList:
    wanted = {name: value for name, value in {"channel": channel, "status": status}.items() if value}
    page = app().queue.store.list(router.caller.project_id, limit, cursor, **wanted)
    return RequestList(
        items=[RequestAnswer.model_validate(item.shown()) for item in page.items], next_cursor=page.next_cursor
    )


@router.post("/v1/queue/capacity", scope="admin", tags=_TAGS, summary="Set the capacity of channels")
def capacity(body: CapacityBody) -> QueueStats:
    app().queue.channels.set_capacities(body.root, router.caller.key_id)
    return _stats()


@router.post("/v1/queue/pause", scope="admin", tags=_TAGS, summary="Pause one channel or all")
def pause(body: ScopeBody | None = None) -> QueueStats:
    app().queue.channels.set_paused(body.scope if body else ALL, True, router.caller.key_id)
    return _stats()


@router.post("/v1/queue/resume", scope="admin", tags=_TAGS, summary="Resume one channel or all")
def resume(body: ScopeBody | None = None) -> QueueStats:
    app().queue.channels.set_paused(body.scope if body else ALL, False, router.caller.key_id)
    return _stats()
