"""The queue of waiting callbacks, and the dead-letter queue of those that were given up."""

from __future__ import annotations

import math

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.notifications.delivery_model import Delivery


class CallbackQueue:
    def __init__(self, waiting: SqsQueue, dead: SqsQueue) -> None:
        self._waiting = waiting
        self._dead = dead

    def later(self, delivery: Delivery, seconds: float) -> None:
        """Sends a message that starts the next attempt. SQS delays it by 15 minutes at most."""
        body = {
            "project_id": delivery.project_id,
            "delivery_id": delivery.delivery_id,
            "due": delivery.next_attempt_at,
        }
        self._waiting.send(Message(body, delay_seconds=max(0, math.ceil(seconds))))

    def send_to_dead_letters(self, delivery: Delivery) -> None:
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
