"""Messages that run admission: now, in the channel's FIFO group, or at a later time, as a delayed message."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws.sqs import Message, SqsQueue
from tidegate.common.ids import iso
from tidegate.errors import DomainError

logger = Logger(service="tidegate", child=True)


class AdmissionQueue:
    def __init__(self, admission: SqsQueue, wakeups: SqsQueue) -> None:
        self._admission = admission
        self._wakeups = wakeups

    def trigger(self, *channels: str) -> None:
        """Runs admission of these channels as soon as possible."""
        names = dict.fromkeys(channels)
        self._send(self._admission, *(Message({"channel": name}, name, uuid.uuid4().hex) for name in names))

    def retry_soon(self, record: Mapping[str, Any]) -> None:
        """Makes the message of a failed run visible again in seconds, because it blocks its channel's group."""
        self._admission.retry_soon([record])

    def wake(self, channel: str, at: datetime, now: datetime) -> None:
        """Runs admission of the channel at `at`."""
        delay = max(0, math.ceil((at - now).total_seconds()))
        self._send(self._wakeups, Message({"channel": channel, "at": iso(at)}, delay_seconds=delay))

    @staticmethod
    def _send(queue: SqsQueue, *messages: Message) -> None:
        """Only logs a failure: compensation triggers channels whose message was lost."""
        try:
            queue.send(*messages)
        except (ClientError, BotoCoreError, DomainError):
            logger.exception(
                "admission was not triggered; compensation will", messages=[message.body for message in messages]
            )
