"""Who may be connected to the port, and how often one caller is answered: limits before and after a token is shown."""

from __future__ import annotations

import time
from collections import Counter, deque

CONNECTIONS, CONNECTIONS_A_PEER = 64, 3
# Callers that have not shown a token yet: they cannot take all the places of those that have.
STRANGERS, STRANGERS_AN_ADDRESS = 32, 16
# Every neighbour may come at once, with all its connections.
NEW_A_SECOND = 48


class Refused(Exception):
    """Nothing to answer: the connection is closed."""


class Callers:
    """The connections of one port."""

    def __init__(self) -> None:
        self._open = 0
        self.strangers: Counter[str] = Counter()
        self.known: Counter[str] = Counter()
        self._recent: deque[float] = deque(maxlen=NEW_A_SECOND)

    def enter(self, host: str) -> Caller | None:
        """A place for a connection from that address; None if there is none left."""
        now = time.monotonic()
        crowded = (
            self._open >= CONNECTIONS
            or self.strangers.total() >= STRANGERS
            or self.strangers[host] >= STRANGERS_AN_ADDRESS
            or (len(self._recent) == NEW_A_SECOND and now - self._recent[0] < 1.0)
        )
        if crowded:
            return None
        self._recent.append(now)
        self._open += 1
        self.strangers[host] += 1
        return Caller(self, host)

    def _left(self) -> None:
        self._open -= 1


class Caller:
    """A connection's place among the strangers until it has shown a token, then among its caller's connections."""

    def __init__(self, callers: Callers, host: str) -> None:
        self._callers = callers
        self._host: str | None = host
        self._name: str | None = None

    def is_known_as(self, name: str) -> None:
        if self._name == name:
            return
        if self._name is not None:
            raise Refused
        if self._callers.known[name] >= CONNECTIONS_A_PEER:
            raise Refused
        self._forget_host()
        self._callers.known[name] += 1
        self._name = name

    def leaves(self) -> None:
        self._forget_host()
        _less(self._callers.known, self._name)
        self._callers._left()

    def _forget_host(self) -> None:
        _less(self._callers.strangers, self._host)
        self._host = None


def _less(counter: Counter[str], name: str | None) -> None:
    if name is not None:
        counter[name] -= 1
        if counter[name] <= 0:
            del counter[name]
