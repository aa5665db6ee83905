"""Limits on the connections to the port, separately for callers with and without a valid token."""

from __future__ import annotations

import time
from collections import Counter, deque

CONNECTIONS, CONNECTIONS_A_PEER = 64, 3
# Connections that have not presented a token yet: they must not take all the places of those that have.
UNKNOWN, UNKNOWN_AN_ADDRESS = 32, 16
# Every neighbour may connect at the same moment, with all its connections.
NEW_A_SECOND = 48


class Refused(Exception):
    """The connection is closed without an answer."""


class Callers:
    """The connections of one port."""

    def __init__(self) -> None:
        self._open = 0
        # Connections by address until they have presented a token, then by agent id.
        self.unknown: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self._recent: deque[float] = deque(maxlen=NEW_A_SECOND)

    def enter(self, host: str) -> Caller | None:
        """Admits a connection from this address; None if a limit is reached."""
        now = time.monotonic()
        crowded = (
            self._open >= CONNECTIONS
            or self.unknown.total() >= UNKNOWN
            or self.unknown[host] >= UNKNOWN_AN_ADDRESS
            or (len(self._recent) == NEW_A_SECOND and now - self._recent[0] < 1.0)
        )
        if crowded:
            return None
        self._recent.append(now)
        self._open += 1
        self.unknown[host] += 1
        return Caller(self, host)

    def _left(self) -> None:
        self._open -= 1


class Caller:
    """One admitted connection, counted by its address until it is identified, then by its agent id."""

    def __init__(self, callers: Callers, host: str) -> None:
        self._callers = callers
        self._host: str | None = host
        self._agent_id: str | None = None

    def identify(self, agent_id: str) -> None:
        """Raises Refused if the caller has too many connections, or was another agent before."""
        if self._agent_id == agent_id:
            return
        if self._agent_id is not None:
            raise Refused
        if self._callers.known[agent_id] >= CONNECTIONS_A_PEER:
            raise Refused
        self._forget_host()
        self._callers.known[agent_id] += 1
        self._agent_id = agent_id

    def leave(self) -> None:
        self._forget_host()
        _decrement(self._callers.known, self._agent_id)
        self._callers._left()

    def _forget_host(self) -> None:
        _decrement(self._callers.unknown, self._host)
        self._host = None


def _decrement(counter: Counter[str], name: str | None) -> None:
    if name is not None:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]
