"""The one path by which the outside hears of an end."""

from __future__ import annotations

from collections.abc import Sequence

from aws_lambda_powertools import Logger

from tidegate.notifications.notice import Notice
from tidegate.notifications.outbox import Outbox
from tidegate.notifications.topic import Topic

logger = Logger(service="tidegate", child=True)


class Notifier:
    def __init__(self, topic: Topic, outbox: Outbox) -> None:
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
