"""A receiver of callbacks, and helpers that run what the cloud would run over time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import time_machine
from standardwebhooks import Webhook

from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws import keys
from tidegate.notifications.notices import Notice, notice_id_for, notice_write


@dataclass
class Receiver:
    """Answers requests with these entries in order, then with the last one: a status, or a function of the request."""

    answers: list[int | Callable[[Handler], None]]
    port: int = 0
    seen: list[tuple[dict[str, str], str]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def ids(self) -> list[str]:
        return [headers["webhook-id"] for headers, _ in self.seen]

    def route(self, request: Handler) -> None:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.seen.append((headers, request.body().decode()))
        answer = self.answers[min(len(self.seen), len(self.answers)) - 1]
        if callable(answer):
            answer(request)
        else:
            request.answer(answer)

    def hang(self, request: Handler) -> None:
        self.released.wait(20)


@contextmanager
def receiver(*answers: int | Callable[[Handler], None] | str, host: str = "127.0.0.1") -> Iterator[Receiver]:
    made = Receiver([])
    made.answers = [made.hang if answer == "hang" else answer for answer in answers or (200,)]  # type: ignore[misc]
    with serve(made.route, host=host) as port:
        made.port = port
        yield made
        made.released.set()


def send_notice(project: Project, url: str, record_id: str = "req-1", **data: Any) -> Notice:
    """Writes and publishes the notice of a record's end, as every capability does."""
    cloud = project.cloud
    notice = Notice(
        notice_id_for("task.completed", record_id),
        project.id,
        "task.completed",
        record_id,
        "completed",
        {"task_id": record_id, "status": "completed", **data},
        url,
        cloud.clock(),
    )
    cloud.app.table.transact([notice_write(notice)])
    cloud.app.notifications.notifier.publish([notice])
    return notice


def overdue(cloud: MotoCloud) -> list[dict[str, Any]]:
    now = int(cloud.clock().timestamp())
    pages = [
        cloud.app.table.query(keys.due_partition(shard), index="due", sk_between=(0, now))
        for shard in range(keys.DUE_SHARDS)
    ]
    return [item for page in pages for item in page.items if item["due_kind"] != keys.SHARD_KIND]


def pass_time(cloud: MotoCloud, seconds: float, step: float = 900) -> None:
    """Moves the clock and delivers due messages, in steps of limited length."""
    while seconds > 0:
        cloud.clock.advance(min(seconds, step))
        seconds -= step
        cloud.deliver("CallbacksQueue")


def compensate(cloud: MotoCloud, seconds: float) -> None:
    """Moves the clock, then runs compensation for overdue work."""
    cloud.clock.advance(seconds)
    for item in overdue(cloud):
        cloud.app.due_handlers[item["due_kind"]](item)
    cloud.deliver("CallbacksQueue")


def callbacks(project: Project, **query: Any) -> list[dict[str, Any]]:
    answer = project.cloud.http("GET", "/v1/callbacks", query=query, key=project.key)
    assert answer.status == 200, answer.body
    items: list[dict[str, Any]] = answer.json()["items"]
    return items


def verified(secret: str, headers: dict[str, str], body: str, late: float = 0) -> Any:
    """Verifies with the library, at the sender's time or that much later."""
    with time_machine.travel(datetime.fromtimestamp(int(headers["webhook-timestamp"]) + late, UTC), tick=False):
        return Webhook(secret).verify(body, headers)
