"""The WebSocket: tickets, connections, watches, pushes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from tidegate.bootstrap.notifications import NotificationsWiring

if TYPE_CHECKING:
    from tidegate.notifications.websocket import Records, Sockets
    from tidegate.notifications.websocket_push import Pusher
    from tidegate.notifications.websocket_sender import Connections
    from tidegate.notifications.websocket_store import ConnectionRepository
    from tidegate.notifications.websocket_tickets import Tickets


class SocketsWiring(NotificationsWiring):
    @cached_property
    def _connections(self) -> ConnectionRepository:
        from tidegate.notifications.websocket_store import ConnectionRepository

        return ConnectionRepository(self.table)

    @cached_property
    def outgoing(self) -> Connections:
        from tidegate.aws.clients import credentials, region
        from tidegate.notifications.websocket_sender import Connections

        return Connections(self.settings.ws_endpoint, region(), credentials)

    @cached_property
    def records(self) -> Records:
        from tidegate.notifications.websocket import Records

        return Records(self.record_lookups())

    @cached_property
    def tickets(self) -> Tickets:
        from tidegate.notifications.websocket_tickets import Tickets

        return Tickets(self._connections, self.clock)

    @cached_property
    def sockets(self) -> Sockets:
        from tidegate.notifications.websocket import Sockets

        return Sockets(self._connections, self.watches, self.records, self.outgoing, self.clock)

    @cached_property
    def pusher(self) -> Pusher:
        from tidegate.notifications.websocket_push import Pusher

        return Pusher(self.watches, self._connections, self.records, self.outgoing, self.clock)
