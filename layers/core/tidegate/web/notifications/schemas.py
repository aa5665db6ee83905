"""Answers of callbacks, callback secrets and WebSocket tickets."""

from __future__ import annotations

from collections.abc import Callable

from tidegate.notifications.delivery_model import PENDING, Delivery
from tidegate.web.schemas import Answer


class AttemptAnswer(Answer):
    at: str
    duration_ms: int
    status: int | None = None
    error: str | None = None
    detail: str | None = None


class CallbackAnswer(Answer):
    """A callback and its delivery attempts."""

    delivery_id: str
    type: str
    task_id: str
    url: str
    callback_state: str
    tries: int
    attempts: list[AttemptAnswer]
    created_at: str
    next_attempt_at: str | None = None
    delivered_at: str | None = None
    body: str | None = None

    @classmethod
    def of(cls, delivery: Delivery, as_text: Callable[[float], str]) -> CallbackAnswer:
        return cls(
            delivery_id=delivery.delivery_id,
            type=delivery.kind,
            task_id=delivery.record_id,
            url=delivery.url,
            callback_state=delivery.state,
            tries=delivery.tries,
            attempts=[AttemptAnswer.model_validate(attempt) for attempt in delivery.attempts],
            created_at=delivery.created_at,
            next_attempt_at=as_text(delivery.next_attempt_at) if delivery.state == PENDING else None,
            delivered_at=delivery.delivered_at,
            body=delivery.body or None,
        )


class CallbackList(Answer):
    items: list[CallbackAnswer]
    next_cursor: str | None = None


class SecretAnswer(Answer):
    project_id: str
    callback_secret: str


class TicketAnswer(Answer):
    """A ticket, and the URL at which to connect with it."""

    ticket: str
    expires_at: str
    ws_url: str
