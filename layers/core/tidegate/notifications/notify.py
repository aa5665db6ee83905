"""Publishes notices to the topic and removes them from the outbox."""

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
        """Call it after the transaction with their `notice_write`. Never raises: compensation sends what fails here."""
        if not notices:
            return
        try:
            self.send(notices)
        except Exception:
            logger.exception(
                "notices were not sent; compensation will", notice_ids=[notice.notice_id for notice in notices[:10]]
            )

    def send(self, notices: Sequence[Notice]) -> bool:
        """Sends notices, then removes them from the outbox: a crash in between sends them twice, with the same id.

        False if the topic refused some: they stay in the outbox, and compensation sends them."""
        taken = self._topic.publish(notices)
        self._outbox.remove(taken)
        if len(taken) < len(notices):
            logger.warning("the topic refused notices", refused=len(notices) - len(taken))
        return len(taken) == len(notices)
