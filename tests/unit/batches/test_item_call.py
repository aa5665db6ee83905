from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from tidegate.batches.model import RUNNING, Batch, Business, ItemCall
from tidegate.batches.workers import ItemCaller
from tidegate.http.model import Reply
from tidegate.projects.model import Project

NOW = datetime(2026, 11, 17, tzinfo=UTC)


class RecordingConnection:
    def __init__(self) -> None:
        self.message_ids: list[str] = []

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        self.message_ids.append(headers["webhook-id"])
        entries = json.loads(body).get("items", [])
        return Reply(200, {}, json.dumps({"results": [{"result": "ok"} for _ in entries]}).encode(), "http://b/")


def signed(project: Project, message_id: str, now: datetime, body: bytes = b"", *, url: str) -> dict[str, str]:
    return {"webhook-id": message_id}


def message_ids(items_per_call: int, *calls: list[ItemCall]) -> list[str]:
    batch = Batch(
        batch_id="bat-1",
        project_id="prj-1",
        biz_id="biz-1",
        name="n",
        total=100,
        rate=10.0,
        status=RUNNING,
        created_at="2026-01-01T00:00:00.000Z",
        items_per_call=items_per_call,
    )
    project = Project("prj-1", "p", None, allow_private_urls=True, created_at="")
    business = Business(biz_id="biz-1", project_id="prj-1", name="b", process_url="http://b/", created_at="")
    b = cast(Any, SimpleNamespace(clock=lambda: NOW, sign=signed))
    caller = ItemCaller(b, batch, project, business)
    connection = RecordingConnection()
    for call in calls:
        caller.call(cast(Any, connection), call)
    return connection.message_ids


def test_groups_with_different_items_have_different_message_ids() -> None:
    """Receivers de-duplicate by this id: a retry grouped with new items must not look like the first call."""
    first = [ItemCall(0, 1), ItemCall(1, 1), ItemCall(2, 1)]
    retry_with_new_items = [ItemCall(0, 2), ItemCall(7, 1), ItemCall(8, 1)]
    one, other = message_ids(3, first, retry_with_new_items)
    assert one != other


def test_retry_of_the_same_items_has_the_same_message_id() -> None:
    group = message_ids(2, [ItemCall(4, 1), ItemCall(5, 1)], [ItemCall(4, 2), ItemCall(5, 2)])
    assert len(set(group)) == 1
    assert message_ids(1, [ItemCall(4, 1)], [ItemCall(4, 2)]) == ["bat-1.4", "bat-1.4"]
