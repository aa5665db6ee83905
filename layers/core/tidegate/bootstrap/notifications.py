"""Notices, callbacks and what people watch."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.compensation.poll import DueHandler
    from tidegate.notifications.notify import Notifier
    from tidegate.notifications.progress import Live
    from tidegate.notifications.topic import Topic
    from tidegate.notifications.websocket_store import Watches


class NotificationsWiring(Base):
    @cached_property
    def topic(self) -> Topic:
        from tidegate.notifications.topic import Topic

        return Topic(self.sns, self.settings.notifications_topic_arn)

    @cached_property
    def notifier(self) -> Notifier:
        from tidegate.notifications.notify import Notifier
        from tidegate.notifications.outbox import Outbox

        return Notifier(self.topic, Outbox(self.table))

    @cached_property
    def watches(self) -> Watches:
        from tidegate.notifications.websocket_store import Watches

        return Watches(self.table)

    @cached_property
    def live(self) -> Live:
        from tidegate.notifications.progress import Live

        return Live(self.watches, self.topic, self.clock)

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {"notice": self._send_notice}

    def _send_notice(self, item: dict[str, Any]) -> None:
        from tidegate.notifications.outbox import notice_of

        self.notifier.send([notice_of(item)])
