"""Publishes notices to the SNS topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError

from tidegate.common.ids import iso
from tidegate.errors import Busy
from tidegate.notifications.notice import Notice, data_text

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient

_BATCH = 10
_BATCH_BYTES = 250_000


class Topic:
    def __init__(self, client: SNSClient, arn: str) -> None:
        self._client = client
        self._arn = arn

    def publish(self, notices: Sequence[Notice]) -> list[Notice]:
        """Returns the notices that SNS accepted. Busy if it accepted none because the call failed."""
        taken: list[Notice] = []
        for batch in _batches(notices):
            entries: Any = [
                {"Id": str(index), "Message": text, "MessageAttributes": _attributes(notice)}
                for index, (notice, text) in enumerate(batch)
            ]
            try:
                answer = self._client.publish_batch(TopicArn=self._arn, PublishBatchRequestEntries=entries)
            except (BotoCoreError, ClientError) as error:
                if not taken:
                    raise Busy("SNS did not accept the notices: try again in a few seconds") from error
                break
            taken += [batch[int(entry["Id"])][0] for entry in answer.get("Successful", [])]
        return taken


def _batches(notices: Sequence[Notice]) -> Iterator[list[tuple[Notice, str]]]:
    batch: list[tuple[Notice, str]] = []
    size = 0
    for notice in notices:
        text = message_of(notice)
        length = len(text.encode()) + 1000
        if batch and (len(batch) == _BATCH or size + length > _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((notice, text))
        size += length
    if batch:
        yield batch


def message_of(notice: Notice) -> str:
    body = {
        "message_id": notice.message_id,
        "type": notice.kind,
        "timestamp": iso(notice.created_at),
        "project_id": notice.project_id,
        "record_id": notice.record_id,
        "status": notice.status,
        "data": json.loads(data_text(notice)),
    }
    return json.dumps(body | ({"callback": notice.callback} if notice.callback else {}), ensure_ascii=False)


def _attributes(notice: Notice) -> dict[str, dict[str, str]]:
    """`status` is in lower case, so that one filter policy matches a Job's `Failed` and an export's `failed`."""
    values = {"kind": notice.kind, "project_id": notice.project_id, "status": notice.status.lower()}
    if notice.callback:
        values["callback"] = "yes"
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}
