"""The one path by which the outside hears of an end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from aws_lambda_powertools import Logger

from tidegate.notifications.notice import Notice

logger = Logger(service="tidegate", child=True)


class Publisher(Protocol):
    def publish(self, notices: Sequence[Notice]) -> list[Notice]: ...


class NoticeStore(Protocol):
    def remove(self, notices: Iterable[Notice]) -> None: ...


class Notifier:
    def __init__(self, topic: Publisher, outbox: NoticeStore) -> None:
        self._topic = topic
        self._outbox = outbox

    def publish(self, notices: Sequence[Notice]) -> None:
        """After the commit that holds their `notice_write`. Never raises: what is not sent now, compensation sends."""
        if not notices:
            return
        try:
            self.send(notices)
        except Exception:
            logger.exception("notices are sent later", notice_ids=[notice.notice_id for notice in notices[:10]])

    def send(self, notices: Sequence[Notice]) -> None:
        """Sends, then forgets: a crash in between sends twice, under the same id."""
        taken = self._topic.publish(notices)
        self._outbox.remove(taken)
        if len(taken) < len(notices):
            logger.warning("the topic refused notices", refused=len(notices) - len(taken))
