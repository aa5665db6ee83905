"""Tickets, with which a browser connects to the WebSocket: it cannot send a key there."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta

from tidegate.common.ids import Clock, iso
from tidegate.notifications.websocket_messages import TICKET_SECONDS, Holder
from tidegate.notifications.websocket_store import ConnectionStore


@dataclass(frozen=True, slots=True)
class Ticket:
    ticket: str
    expires_at: str


class Tickets:
    def __init__(self, store: ConnectionStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def issue(self, holder: Holder) -> Ticket:
        """A ticket for one connection. The connection ends at the latest with the holder's key."""
        made, until = secrets.token_urlsafe(32), self._clock() + timedelta(seconds=TICKET_SECONDS)
        self._store.add_ticket(made, holder, int(until.timestamp()))
        return Ticket(made, iso(until))
