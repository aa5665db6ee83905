"""Callbacks to URLs that callers named."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.outbound import OutboundWiring

if TYPE_CHECKING:
    from tidegate.compensation.poll import DueHandler
    from tidegate.notifications.callback_queue import CallbackQueue
    from tidegate.notifications.callbacks import Callbacks
    from tidegate.notifications.delivery import Deliverer
    from tidegate.notifications.delivery_store import DeliveryRepository
    from tidegate.projects.callback_secrets import CallbackSecrets


class CallbacksWiring(LibraryWiring, OutboundWiring):
    @cached_property
    def _deliveries(self) -> DeliveryRepository:
        from tidegate.notifications.delivery_store import DeliveryRepository

        return DeliveryRepository(self.table)

    @cached_property
    def _callback_queue(self) -> CallbackQueue:
        from tidegate.aws.sqs import Queue
        from tidegate.notifications.callback_queue import CallbackQueue

        waiting, dead = self.settings.callbacks_queue_url, self.settings.callbacks_dead_queue_url
        return CallbackQueue(Queue(self.sqs, waiting), Queue(self.sqs, dead))

    @cached_property
    def callbacks(self) -> Callbacks:
        from tidegate.notifications.callbacks import Callbacks

        return Callbacks(
            self._deliveries, lambda: self._callback_queue, lambda: self.http, self.projects.get, self.clock
        )

    @cached_property
    def callback_secrets(self) -> CallbackSecrets:
        from tidegate.projects.callback_secrets import CallbackSecrets
        from tidegate.projects.store import ProjectRepository

        return CallbackSecrets(ProjectRepository(self.table))

    @cached_property
    def deliverer(self) -> Deliverer:
        import random

        from tidegate.notifications.circuit_breaker import Circuits
        from tidegate.notifications.delivery import Deliverer
        from tidegate.notifications.delivery_store import CircuitRepository

        return Deliverer(
            self._deliveries,
            Circuits(CircuitRepository(self.table)),
            self._callback_queue,
            self.http,
            self.sign,
            self.projects.get,
            self.clock,
            random.SystemRandom().random,
            self.settings.callback_timeout_seconds,
        )

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {"callback": self._requeue_callback}

    def _requeue_callback(self, item: dict[str, Any]) -> None:
        from tidegate.notifications.delivery_store import delivery_of

        self._callback_queue.later(delivery_of(item), 0)
