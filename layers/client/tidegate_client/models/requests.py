"""Requests of the queue and their execution log, and tickets for the WebSocket."""

from __future__ import annotations

from tidegate_client.model import Model


class Problem(Model):
    code: str
    detail: str


class Bulk(Model):
    changed: int
    skipped: int
    next_cursor: str | None


class LogLine(Model):
    """One line of a request's execution log. `stack` is present for admin keys only."""

    at: str
    attempt: int
    event: str
    detail: str | None
    seconds: float | None
    code: str | None
    stack: str | None


class Request(Model):
    request_id: str
    type: str
    status: str
    channel: str
    priority: int
    subscription_id: str | None
    attempts: int
    last_wait_reason: str | None
    error: Problem | None
    result: Model | None
    progress: Model | None
    create_time: str
    start_time: str | None
    finish_time: str | None


class Ticket(Model):
    ticket: str
    expires_at: str
    ws_url: str | None
