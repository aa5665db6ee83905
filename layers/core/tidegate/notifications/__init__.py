"""Notifications: the SNS topic, callbacks and WebSockets, as parts of the `Notifications` object of `app.py`.

Importing any module of this package also runs this file. So this file imports the other modules only when a part of
`Notifications` is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from random import SystemRandom
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mypy_boto3_sns import SNSClient
    from mypy_boto3_sqs import SQSClient

    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.http.client import SafeHttp
    from tidegate.notifications.callbacks import CallbackQueue, Callbacks, Deliverer
    from tidegate.notifications.deliveries import DeliveryStore
    from tidegate.notifications.notices import Notifier, Topic
    from tidegate.notifications.websocket import (
        AgentPresence,
        BatchLookup,
        ConnectionStore,
        Lookup,
        RecordLookup,
        WatchStore,
        WebSocketClients,
        WebSocketSender,
    )
    from tidegate.projects.model import Project
    from tidegate.projects.secrets import Signer
    from tidegate.settings import Settings


@dataclass(eq=False, repr=False, kw_only=True)
class Notifications:
    """The settings, stores and senders of notifications. Parts are made at their first use."""

    settings: Settings
    clock: Clock
    table: Table
    sns: SNSClient
    sqs: SQSClient
    http: Callable[[], SafeHttp]
    sign: Callable[[], Signer]
    project_of: Callable[[str], Project]
    # Seconds until a callback is looked at again if the system is frozen, else 0.
    frozen_for: Callable[[], float]
    # Whether the key of a connection, by its record, is still valid.
    key_is_active: Callable[[str], bool]
    # (project id, key id, agent id, what the message costs); RateLimited if it is too much.
    limit_socket: Callable[[str, str, str | None, int], None]
    presence: Callable[[], AgentPresence]
    # By the prefix of an id: how to read one record, or several at once.
    lookups: Mapping[str, Lookup]
    batched_lookups: Mapping[str, BatchLookup]

    @cached_property
    def topic(self) -> Topic:
        from tidegate.notifications.notices import Topic

        return Topic(self.sns, self.settings.notifications_topic_arn, self.table, self.clock)

    @cached_property
    def notifier(self) -> Notifier:
        from tidegate.notifications.notices import Notifier

        return Notifier(self.topic, self.table)

    # --- callbacks

    @cached_property
    def _deliveries(self) -> DeliveryStore:
        from tidegate.notifications.deliveries import DeliveryStore

        return DeliveryStore(self.table)

    @cached_property
    def callback_queue(self) -> CallbackQueue:
        from tidegate.aws.clients import SqsQueue
        from tidegate.notifications.callbacks import CallbackQueue

        settings = self.settings
        return CallbackQueue(
            SqsQueue(self.sqs, settings.callbacks_queue_url), SqsQueue(self.sqs, settings.callbacks_dead_queue_url)
        )

    @cached_property
    def callbacks(self) -> Callbacks:
        from tidegate.notifications.callbacks import Callbacks

        return Callbacks(self._deliveries, lambda: self.callback_queue, self.http, self.project_of, self.clock)

    @cached_property
    def deliverer(self) -> Deliverer:
        from tidegate.notifications.callbacks import Deliverer
        from tidegate.notifications.deliveries import CircuitBreaker, CircuitStore

        return Deliverer(
            self._deliveries,
            CircuitBreaker(CircuitStore(self.table)),
            self.callback_queue,
            self.http(),
            self.sign(),
            self.project_of,
            self.clock,
            SystemRandom().random,
            self.settings.callback_timeout_seconds,
            self.frozen_for,
        )

    # --- WebSockets

    @cached_property
    def connections(self) -> ConnectionStore:
        from tidegate.notifications.websocket import ConnectionStore

        return ConnectionStore(self.table)

    @cached_property
    def watches(self) -> WatchStore:
        from tidegate.notifications.websocket import WatchStore

        return WatchStore(self.table)

    @cached_property
    def outgoing(self) -> WebSocketSender:
        from tidegate.aws.clients import credentials, region
        from tidegate.notifications.websocket import WebSocketSender

        return WebSocketSender(self.settings.ws_endpoint, region(), credentials)

    @cached_property
    def records(self) -> RecordLookup:
        from tidegate.notifications.websocket import RecordLookup

        return RecordLookup(self.lookups, self.batched_lookups)

    @cached_property
    def websocket(self) -> WebSocketClients:
        from tidegate.notifications.websocket import WebSocketClients

        return WebSocketClients(
            self.connections,
            self.watches,
            self.records,
            self.outgoing,
            self.key_is_active,
            self.presence,
            self.limit_socket,
            self.clock,
        )
