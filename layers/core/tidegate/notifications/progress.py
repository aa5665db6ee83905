"""Sends the progress of a record to the clients that watch it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.notifications.notice import Notice, id_field, kind_of, notice_id_for
from tidegate.notifications.topic import Topic
from tidegate.notifications.websocket_store import WatchStore

logger = Logger(service="tidegate", child=True)

INTERVAL_SECONDS = 1.0
_REMEMBERED = 4096


class ProgressFeed:
    def __init__(self, watches: WatchStore, topic: Topic, clock: Clock) -> None:
        self._watches = watches
        self._topic = topic
        self._clock = clock
        self._asked: dict[tuple[str, str], float] = {}

    def progress(self, project_id: str, record_id: str, data: Mapping[str, Any]) -> None:
        """At most one message per second and record; one read if nobody watches. Never raises."""
        now = self._clock()
        key = (project_id, record_id)
        if now.timestamp() - self._asked.get(key, 0) < INTERVAL_SECONDS:
            return
        if len(self._asked) >= _REMEMBERED:
            self._asked.clear()
        self._asked[key] = now.timestamp()
        try:
            if not self._watches.is_watched(project_id, record_id):
                return
            if not self._watches.take_turn(project_id, record_id, now.timestamp(), INTERVAL_SECONDS):
                return
            kind = kind_of(record_id, data)
            shown = {id_field(record_id, data): record_id, "status": "running", **data}
            notice_id = notice_id_for(kind, record_id, iso(now))
            status = str(shown["status"])
            self._topic.publish([Notice(notice_id, project_id, kind, record_id, status, shown, None, now)])
        except Exception:
            logger.exception("the progress of a record was not sent", record_id=record_id)
