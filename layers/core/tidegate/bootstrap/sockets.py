"""The WebSocket: tickets, connections, watches, pushes."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tidegate.bootstrap.library import LibraryWiring
from tidegate.bootstrap.notifications import NotificationsWiring

if TYPE_CHECKING:
    from tidegate.adapters.dynamo.watches import ConnectionRepository
    from tidegate.adapters.websocket import Connections
    from tidegate.services.api_keys import ApiKeys
    from tidegate.services.compensate import DueHandler
    from tidegate.services.push import Pusher
    from tidegate.services.sockets import Records, Sockets
    from tidegate.services.tickets import Tickets


class SocketsWiring(LibraryWiring, NotificationsWiring):
    @cached_property
    def _connections(self) -> ConnectionRepository:
        from tidegate.adapters.dynamo.watches import ConnectionRepository

        return ConnectionRepository(self.table)

    @cached_property
    def outgoing(self) -> Connections:
        from tidegate.adapters.clients import credentials, region
        from tidegate.adapters.websocket import Connections

        return Connections(self.settings.ws_endpoint, region(), credentials)

    @cached_property
    def records(self) -> Records:
        from tidegate.services.sockets import Records

        return Records(self.record_lookups())

    @cached_property
    def tickets(self) -> Tickets:
        from tidegate.services.tickets import Tickets

        return Tickets(self._connections, self.clock)

    @cached_property
    def sockets(self) -> Sockets:
        from tidegate.services.sockets import Sockets

        return Sockets(
            self._connections, self.watches, self.records, self.outgoing, self.authentication.is_active, self.clock
        )

    @cached_property
    def api_keys(self) -> ApiKeys:
        from tidegate.services.api_keys import ApiKeys

        return ApiKeys(
            self.api_key_store,
            self._connections,
            lambda: self.outgoing,
            self.projects.get,
            self.clock,
            self.settings.admin_key_sha256,
        )

    def due_handlers(self) -> dict[str, DueHandler]:
        return super().due_handlers() | {"key": self._end_key}

    def _end_key(self, item: dict[str, Any]) -> bool:
        from tidegate.adapters.dynamo.api_keys import key_of

        return self.api_keys.finish_end(key_of(item))

    @cached_property
    def pusher(self) -> Pusher:
        from tidegate.services.push import Pusher

        return Pusher(self.watches, self._connections, self.records, self.outgoing, self.clock)
