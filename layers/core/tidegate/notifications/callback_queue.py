"""The queue of callbacks that wait, and where those end that were given up."""

from __future__ import annotations

import math

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.notifications.delivery_model import Delivery


class CallbackQueue:
    def __init__(self, waiting: SqsQueue, dead: SqsQueue) -> None:
        self._waiting = waiting
        self._dead = dead

    def later(self, delivery: Delivery, seconds: float) -> None:
        body = {
            "project_id": delivery.project_id,
            "delivery_id": delivery.delivery_id,
            "due": delivery.next_attempt_at,
        }
        self._waiting.send(Message(body, delay_seconds=max(0, math.ceil(seconds))))

    def bury(self, delivery: Delivery) -> None:
        last = delivery.attempts[-1]
        body = {
            "project_id": delivery.project_id,
            "delivery_id": delivery.delivery_id,
            "record_id": delivery.record_id,
            "type": delivery.kind,
            "url": delivery.url,
            "attempts": len(delivery.attempts),
            "error": last.error or f"answered {last.status}",
        }
        self._dead.send(Message(body))
