"""Wires notifications: the topic, callbacks and the WebSocket."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tidegate.aws.clients import credentials, region
from tidegate.aws.sqs import SqsQueue
from tidegate.notifications.callback_queue import CallbackQueue
from tidegate.notifications.callbacks import Callbacks
from tidegate.notifications.circuit_breaker import CircuitBreaker
from tidegate.notifications.delivery import Deliverer
from tidegate.notifications.delivery_store import CircuitStore, DeliveryStore
from tidegate.notifications.notify import Notifier
from tidegate.notifications.outbox import Outbox
from tidegate.notifications.progress import ProgressFeed
from tidegate.notifications.topic import Topic
from tidegate.notifications.websocket import RecordLookup, WebSocketClients
from tidegate.notifications.websocket_push import Pusher
from tidegate.notifications.websocket_sender import WebSocketSender
from tidegate.notifications.websocket_store import ConnectionStore, WatchStore
from tidegate.notifications.websocket_tickets import Tickets

if TYPE_CHECKING:
    from tidegate.app import App


class NotificationsPart:
    def __init__(self, app: App) -> None:
        settings, clock, table = app.settings, app.clock, app.table
        self.topic = Topic(app.sns, settings.notifications_topic_arn)
        self.notifier = Notifier(self.topic, Outbox(table))

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
            clock,
        )
        self.pusher = Pusher(self.watches, self.connections, self.records, self.outgoing, clock)
