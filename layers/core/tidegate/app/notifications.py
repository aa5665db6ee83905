"""Wires notifications: the topic, callbacks and the WebSocket."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidegate.aws.clients import SqsQueue, credentials, region
from tidegate.compensation.freeze import CALLBACK_WAIT_SECONDS
from tidegate.notifications.callbacks import CallbackQueue, Callbacks, Deliverer
from tidegate.notifications.deliveries import CircuitBreaker, CircuitStore, DeliveryStore
from tidegate.notifications.notices import Notifier, Topic
from tidegate.notifications.websocket import (
    ConnectionStore,
    ProgressFeed,
    Pusher,
    RecordLookup,
    Tickets,
    WatchStore,
    WebSocketClients,
    WebSocketSender,
)

if TYPE_CHECKING:
    from tidegate.app import App


class NotificationsPart:
    def __init__(self, app: App) -> None:
        settings, clock, table = app.settings, app.clock, app.table
        self.topic = Topic(app.sns, settings.notifications_topic_arn)
        self.notifier = Notifier(self.topic, table)

        deliveries = DeliveryStore(table)
        self.callback_queue = CallbackQueue(
            SqsQueue(app.sqs, settings.callbacks_queue_url),
            SqsQueue(app.sqs, settings.callbacks_dead_queue_url),
        )
        project = app.projects.projects.get
        self.callbacks = Callbacks(deliveries, lambda: self.callback_queue, lambda: app.http, project, clock)
        self.deliverer = Deliverer(
            deliveries,
            CircuitBreaker(CircuitStore(table)),
            self.callback_queue,
            app.http,
            app.sign,
            project,
            clock,
            random.SystemRandom().random,
            settings.callback_timeout_seconds,
            lambda: CALLBACK_WAIT_SECONDS if app.freeze.is_on else 0.0,
        )

        self.connections = ConnectionStore(table)
        self.watches = WatchStore(table)
        self.progress = ProgressFeed(self.watches, self.topic, clock)
        self.outgoing = WebSocketSender(settings.ws_endpoint, region(), credentials)
        self.records = RecordLookup(app.record_lookups, app.batched_record_lookups)
        self.tickets = Tickets(self.connections, clock)
        self.websocket = WebSocketClients(
            self.connections,
            self.watches,
            self.records,
            self.outgoing,
            app.projects.authentication.is_active,
            lambda: app.distribution.fleet,
            app.projects.limit_socket,
            clock,
        )
        self.pusher = Pusher(self.watches, self.connections, self.records, self.outgoing, clock)
