"""Callbacks to URLs that callers named."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.outbound import OutboundWiring

if TYPE_CHECKING:
    from tidegate.adapters.callback_queue import CallbackQueue
    from tidegate.adapters.dynamo.deliveries import DeliveryRepository
    from tidegate.services.callback_secrets import CallbackSecrets
    from tidegate.services.callbacks import Callbacks
    from tidegate.services.compensate import DueHandler
    from tidegate.services.deliver import Deliverer


class CallbacksWiring(LibraryWiring, OutboundWiring):
    @cached_property
    def _deliveries(self) -> DeliveryRepository:
        from tidegate.adapters.dynamo.deliveries import DeliveryRepository

        return DeliveryRepository(self.table)

    @cached_property
    def _callback_queue(self) -> CallbackQueue:
        from tidegate.adapters.callback_queue import CallbackQueue
        from tidegate.adapters.sqs import Queue

        waiting, dead = self.settings.callbacks_queue_url, self.settings.callbacks_dead_queue_url
        return CallbackQueue(Queue(self.sqs, waiting), Queue(self.sqs, dead))

    @cached_property
    def callbacks(self) -> Callbacks:
        from tidegate.services.callbacks import Callbacks

        return Callbacks(
            self._deliveries, lambda: self._callback_queue, lambda: self.http, self.projects.get, self.clock
        )

    @cached_property
    def callback_secrets(self) -> CallbackSecrets:
        from tidegate.services.callback_secrets import CallbackSecrets

        return CallbackSecrets(self.project_store)

    @cached_property
    def deliverer(self) -> Deliverer:
        import random

        from tidegate.adapters.dynamo.deliveries import CircuitRepository
        from tidegate.services.circuits import Circuits
        from tidegate.services.deliver import Deliverer

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
        from tidegate.adapters.dynamo.deliveries import delivery_of

        self._callback_queue.later(delivery_of(item), 0)
