"""Notices about changes of records.

A notice is stored in the outbox in the same transaction as the change. Then it is published to the SNS topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.table import Table, Write, put, update
from tidegate.common.ids import Clock, digest, iso
from tidegate.errors import Busy

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient

# The final states of all kinds of records.
ENDED = frozenset(
    {"completed", "failed", "cancelled", "expired", "success", "timeout", "superseded", "finished", "stopped"}
)
# The smallest of the limits: a WebSocket message has 128 KB, an SNS message 256 KB, an item 400 KB.
_MOST_BYTES = 120_000


@dataclass(frozen=True, slots=True)
class Notice:
    """News of a record. `kind`: the webhook type, such as `task.completed`. `data`: the record as the API shows it."""

    notice_id: str
    project_id: str
    kind: str
    record_id: str
    status: str
    data: Mapping[str, Any]
    callback: str | None
    created_at: datetime

    @property
    def message_id(self) -> str:
        """The id that receivers see. It includes the project, because two projects may have Jobs with the same id."""
        return "msg_" + digest(self.project_id, self.notice_id, length=32)


def data_text(notice: Notice) -> str:
    """Returns the notice's record as JSON.

    If the record is too large to send, the JSON has only its id, its status and the field `truncated`.
    """
    text = json.dumps(notice.data, ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) <= _MOST_BYTES:
        return text
    field = id_field(notice.record_id, notice.data)
    return json.dumps({field: notice.record_id, "status": notice.status, "truncated": True})


def notice_id_for(kind: str, record_id: str, occasion: str = "") -> str:
    """Returns an id that is always the same for the same arguments, so that receivers can detect repeats.

    `occasion` is different each time that a record ends.
    """
    return "msg_" + digest(kind, record_id, occasion, length=32)


def is_over(status: object) -> bool:
    return str(status).lower() in ENDED


def kind_of(record_id: str, record: Mapping[str, Any]) -> str:
    """The notice type for a record's present state."""
    what = id_field(record_id, record).removesuffix("_id")
    status = str(record.get("status", "")).lower()
    if not is_over(status):
        return f"{what}.progress"
    if what == "task":
        return "task.completed" if status in ("success", "completed") else "task.failed"
    return f"{what}.finished"


def id_field(record_id: str, record: Mapping[str, Any]) -> str:
    """Returns the name of the field that holds a record's id. An export is a request, but its field is `task_id`."""
    if record_id.startswith("AsyncDownloadJob"):
        return "job_id"
    if record_id.startswith("bat-"):
        return "batch_id"
    return "request_id" if record_id.startswith("req-") and record.get("task_id") != record_id else "task_id"


def followed_id(record_id: str, record: Mapping[str, Any]) -> str:
    """Returns the id of the record whose notices report on this record.

    For a Task, that is its Job, because few Tasks have notices of their own.
    """
    job_id = record.get("job_id")
    return str(job_id) if job_id and id_field(record_id, record) == "task_id" else record_id


def webhook_body(kind: str, at: datetime, data: Mapping[str, Any]) -> str:
    return json.dumps({"type": kind, "timestamp": iso(at), "data": data}, ensure_ascii=False, separators=(",", ":"))


DUE_KIND = "notice"


def notice_write(notice: Notice) -> Write:
    """Returns the write that stores the notice in the outbox. Use it in the transaction that changes the record.

    If nobody publishes the notice after that transaction, compensation does it later.
    """
    at = notice.created_at.timestamp()
    return put(
        keys.notice(notice.project_id, notice.notice_id)
        | keys.due(notice.notice_id, at, DUE_KIND)
        | {
            "notice_id": notice.notice_id,
            "project_id": notice.project_id,
            "kind": notice.kind,
            "record_id": notice.record_id,
            "status": notice.status,
            # As text: callers' values may have larger numbers or deeper nesting than DynamoDB allows.
            "data": data_text(notice),
            "callback": notice.callback,
            "created_at": at,
        }
    )


def notice_of(item: dict[str, Any]) -> Notice:
    return Notice(
        notice_id=item["notice_id"],
        project_id=item["project_id"],
        kind=item["kind"],
        record_id=item["record_id"],
        status=item["status"],
        data=json.loads(item["data"]),
        callback=item.get("callback"),
        created_at=datetime.fromtimestamp(item["created_at"], UTC),
    )


logger = Logger(service="tidegate", child=True)

INTERVAL_SECONDS = 1.0
_REMEMBERED = 4096
_BATCH = 10
_BATCH_BYTES = 250_000


class Topic:
    """Publishes notices to the SNS topic, and the progress of records that a WebSocket client watches."""

    def __init__(self, client: SNSClient, arn: str, table: Table, clock: Clock) -> None:
        self._client = client
        self._arn = arn
        self._table = table
        self._clock = clock
        self._asked: dict[tuple[str, str], float] = {}

    def publish(self, notices: Sequence[Notice]) -> list[Notice]:
        """Publishes the notices. Returns the notices that SNS accepted.

        Raises Busy if a call of SNS fails before any notice was accepted.
        """
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

    def publish_progress(self, project_id: str, record_id: str, data: Mapping[str, Any]) -> None:
        """Publishes a record's progress if a client watches it, at most once a second. Never raises."""
        now = self._clock()
        key = (project_id, record_id)
        if now.timestamp() - self._asked.get(key, 0) < INTERVAL_SECONDS:
            return
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked[key] = now.timestamp()
        try:
            marker = keys.watched(project_id, record_id)
            if self._table.get(marker) is None or not self._is_first(marker, now.timestamp()):
                return
            kind = kind_of(record_id, data)
            shown = {id_field(record_id, data): record_id, "status": "running", **data}
            notice_id = notice_id_for(kind, record_id, iso(now))
            self.publish([Notice(notice_id, project_id, kind, record_id, str(shown["status"]), shown, None, now)])
        except Exception:
            logger.exception("the progress of a record was not sent", record_id=record_id)

    def _is_first(self, marker: Mapping[str, str], now: float) -> bool:
        """Returns True to only one caller in each interval, over all functions."""
        sent = update(
            marker,
            {"told_at": now},
            condition="attribute_exists(#pk) AND (attribute_not_exists(#told_at) OR #told_at <= :before)",
            before=now - INTERVAL_SECONDS,
        )
        return self._table.try_write(sent)


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
    """Returns the SNS attributes of a notice.

    `status` is in lower case, so that one filter matches `Failed` and `failed`.
    """
    values = {"kind": notice.kind, "project_id": notice.project_id, "status": notice.status.lower()}
    if notice.callback:
        values["callback"] = "yes"
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}


class Notifier:
    """Publishes notices to the topic and removes them from the outbox."""

    def __init__(self, topic: Topic, table: Table) -> None:
        self._topic = topic
        self._table = table

    def publish(self, notices: Sequence[Notice]) -> None:
        """Sends notices after the transaction that stored them in the outbox.

        Never raises, because compensation sends the notices that stay in the outbox.
        """
        if not notices:
            return
        try:
            self.send(notices)
        except Exception:
            logger.exception(
                "notices were not sent; compensation will", notice_ids=[notice.notice_id for notice in notices[:10]]
            )

    def send(self, notices: Sequence[Notice]) -> bool:
        """Sends notices, then removes them from the outbox. False if the topic refused some of them.

        Refused notices stay in the outbox, and compensation sends them. After a crash in between, a notice is sent
        twice, with the same id.
        """
        taken = self._topic.publish(notices)
        self._table.batch_delete([keys.notice(notice.project_id, notice.notice_id) for notice in taken])
        if len(taken) < len(notices):
            logger.warning("the topic refused notices", refused=len(notices) - len(taken))
        return len(taken) == len(notices)
