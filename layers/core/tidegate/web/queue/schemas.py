"""Bodies and answers of requests, channels, statistics and the audit trail."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, RootModel, model_validator

from tidegate.queue.channels.model import ALL, MAX_CAPACITY, name_fault
from tidegate.web.schemas import Answer, Body, JsonObject, Priority, Text


def _channel(value: str) -> str:
    fault = name_fault(value)
    if fault:
        raise ValueError(fault)
    return value


ChannelName = Annotated[str, AfterValidator(_channel)]


class RequestBody(Body):
    type: Literal["scan", "associate", "check", "download", "extract"]
    payload: JsonObject
    subscription_id: Text | None = None
    priority: Annotated[Priority | None, Field(description="1 (first) to 10 (last); default 5, for a check 8")] = None
    channel: ChannelName | None = None
    not_before: Annotated[
        datetime | None, Field(description="do not run it before this time, ISO 8601; without an offset: UTC")
    ] = None
    dedupe_key: Annotated[
        Text | None, Field(description="while a request with this key has not ended, submitting again returns that one")
    ] = None


class BulkBody(Body):
    """Which requests, and what to do with them. Each call handles up to `limit`; repeat with `cursor` for the rest."""

    action: Literal["cancel", "retry", "prioritize"]
    priority: Priority | None = None
    type: Annotated[str | None, Field(max_length=40)] = None
    channel: ChannelName | None = None
    status: Literal["pending", "queued", "running", "failed", "paused"] | None = None
    subscription_id: Text | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 100
    cursor: Annotated[str | None, Field(max_length=2000)] = None

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.action == "prioritize" and self.priority is None:
            raise ValueError("prioritize needs a priority, 1 to 10")
        if not (self.type or self.channel or self.status or self.subscription_id):
            raise ValueError("give at least one of type, channel, status and subscription_id")
        return self


class BulkAnswer(Answer):
    changed: int
    skipped: int
    next_cursor: str | None = None


class PriorityBody(Body):
    priority: Priority


class CapacityBody(RootModel[dict[ChannelName, Annotated[int, Field(ge=0, le=MAX_CAPACITY)]]]):
    root: Annotated[dict[ChannelName, Annotated[int, Field(ge=0, le=MAX_CAPACITY)]], Field(min_length=1, max_length=50)]


class ScopeBody(Body):
    scope: Annotated[str, Field(max_length=40)] = ALL


class ErrorAnswer(Answer):
    code: str
    detail: str


class RequestAnswer(Answer):
    request_id: str
    name: str | None = None
    type: str
    status: str
    channel: str
    priority: int
    subscription_id: str | None = None
    attempts: int
    last_wait_reason: str | None = None
    error: ErrorAnswer | None = None
    result: dict[str, Any] | None = None
    progress: dict[str, Any] | None = None
    create_time: str
    start_time: str | None = None
    finish_time: str | None = None


class RequestList(Answer):
    items: list[RequestAnswer]
    next_cursor: str | None = None


class LogAnswer(Answer):
    """One step of an attempt."""

    at: str
    attempt: int
    event: str
    detail: str | None = None
    seconds: float | None = None
    code: str | None = None
    stack: str | None = None


class LogList(Answer):
    items: list[LogAnswer]
    next_cursor: str | None = None


class ChannelAnswer(Answer):
    capacity: int
    running: int
    queued: int
    paused: bool
    oldest_wait_s: float


class QueueStats(Answer):
    channels: dict[str, ChannelAnswer]


class TypeStats(Answer):
    count: int
    by_status: dict[str, int]
    success_rate: float | None = None
    mean_s: float | None = None
    p95_s: float | None = None


class StatsAnswer(Answer):
    since: str
    until: str
    types: dict[str, TypeStats]


class AuditAnswer(Answer):
    """One change of a record."""

    record: str
    at: str
    actor: str
    who: str
    action: str
    from_: str | None = Field(alias="from")
    to: str | None
    why: str
    attempt: int


class AuditList(Answer):
    items: list[AuditAnswer]
    next_cursor: str | None = None


class ArchiveList(Answer):
    items: list[dict[str, Any]]
    next_cursor: str | None = None


class CleanupAnswer(Answer):
    removed: int
    objects: int
    more: bool
