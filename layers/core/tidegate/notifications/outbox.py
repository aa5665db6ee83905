"""The outbox: notices that are committed with their record and may not have been sent yet."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, put
from tidegate.notifications.notice import Notice, data_text

DUE_KIND = "notice"


def notice_write(notice: Notice) -> Write:
    """Put it into the transaction that ends the record: then compensation sends the notice if nobody else does."""
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


class Outbox:
    def __init__(self, table: Table) -> None:
        self._table = table

    def remove(self, notices: Iterable[Notice]) -> None:
        self._table.batch_delete(keys.notice(notice.project_id, notice.notice_id) for notice in notices)
