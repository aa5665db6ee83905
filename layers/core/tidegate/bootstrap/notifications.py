"""Notices, callbacks and what people watch."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.base import Base

if TYPE_CHECKING:
    from tidegate.adapters.dynamo.watches import Watches
    from tidegate.adapters.sns import Topic
    from tidegate.services.compensate import DueHandler
    from tidegate.services.live import Live
    from tidegate.services.notify import Notifier


class NotificationsWiring(Base):
    @cached_property
    def topic(self) -> Topic:
        from tidegate.adapters.sns import Topic

        return Topic(self.sns, self.settings.notifications_topic_arn)

    @cached_property
    def notifier(self) -> Notifier:
        from tidegate.adapters.dynamo.outbox import Outbox
        from tidegate.services.notify import Notifier

        return Notifier(self.topic, Outbox(self.table))

    @cached_property
    def watches(self) -> Watches:
        from tidegate.adapters.dynamo.watches import Watches

        return Watches(self.table)

    @cached_property
    def live(self) -> Live:
        from tidegate.services.live import Live

        return Live(self.watches, self.topic, self.clock)

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {"notice": self._send_notice}

    def _send_notice(self, item: dict[str, Any]) -> None:
        from tidegate.adapters.dynamo.outbox import notice_of

        self.notifier.send([notice_of(item)])
