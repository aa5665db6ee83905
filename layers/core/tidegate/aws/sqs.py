"""SQS: sends messages in batches and sends refused ones again."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.errors import Busy

if TYPE_CHECKING:
    from mypy_boto3_sqs import SQSClient

_BATCH = 10
_TRIES = 4
LONGEST_DELAY = 900
_FIRST_PAUSE, _LONGEST_PAUSE = 3, 60

logger = Logger(service="tidegate", child=True)


@dataclass(frozen=True, slots=True)
class Message:
    body: Mapping[str, Any]
    group: str | None = None
    deduplication_id: str | None = None
    delay_seconds: int = 0

    def entry(self, index: int) -> dict[str, Any]:
        made: dict[str, Any] = {"Id": str(index), "MessageBody": json.dumps(self.body, separators=(",", ":"))}
        if self.group is not None:
            made |= {"MessageGroupId": self.group, "MessageDeduplicationId": self.deduplication_id}
        elif self.delay_seconds:
            made["DelaySeconds"] = min(self.delay_seconds, LONGEST_DELAY)
        return made


def _pause(record: Mapping[str, Any]) -> int:
    """Seconds until the message is visible again; doubled after each failure."""
    received = int(record.get("attributes", {}).get("ApproximateReceiveCount", 1))
    return min(_FIRST_PAUSE << min(max(0, received - 1), 10), _LONGEST_PAUSE)


class SqsQueue:
    def __init__(self, client: SQSClient, url: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._client = client
        self._url = url
        self._sleep = sleep

    def send(self, *messages: Message) -> None:
        """Sends the messages. Busy if SQS refuses some of them several times."""
        for start in range(0, len(messages), _BATCH):
            self._send_batch(messages[start : start + _BATCH])

    def retry_soon(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Makes failed messages visible again within a minute. SQS alone hides them, and their FIFO group, for longer.

        `records` are the event's, as Lambda gets them. If this fails, they come back after their visibility time-out.
        """
        for start in range(0, len(records), _BATCH):
            entries: Any = [
                {"Id": str(index), "ReceiptHandle": record["receiptHandle"], "VisibilityTimeout": _pause(record)}
                for index, record in enumerate(records[start : start + _BATCH])
            ]
            try:
                self._client.change_message_visibility_batch(QueueUrl=self._url, Entries=entries)
            except (ClientError, BotoCoreError):
                logger.exception("failed messages are retried only after their visibility time-out")
                return

    def size(self) -> int:
        """SQS's approximate number of waiting messages."""
        wanted: Any = ["ApproximateNumberOfMessages"]
        answer = self._client.get_queue_attributes(QueueUrl=self._url, AttributeNames=wanted)
        return int(answer["Attributes"]["ApproximateNumberOfMessages"])

    def _send_batch(self, messages: Sequence[Message]) -> None:
        left: list[Any] = [message.entry(index) for index, message in enumerate(messages)]
        for attempt in range(_TRIES):
            answer = self._client.send_message_batch(QueueUrl=self._url, Entries=left)
            refused = {entry["Id"] for entry in answer.get("Failed", [])}
            left = [entry for entry in left if entry["Id"] in refused]
            if not left:
                return
            self._sleep(0.1 * 2**attempt)
        raise Busy(f"SQS refused {len(left)} of {len(messages)} messages: try again in a few seconds")
