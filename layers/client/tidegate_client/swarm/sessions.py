"""The sessions of an agent by swarm id. One delivery reserves a swarm; others of the same host wait for its file."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate_client.download import Cancelled
from tidegate_client.swarm.session import Phase, Session

_WAIT_SECONDS = 0.2


class Sessions:
    """Used by the delivery threads and by the event loop."""

    def __init__(self) -> None:
        # None while a delivery has reserved the swarm and not opened its session yet.
        self._by_id: dict[str, Session | None] = {}
        self._changed = threading.Condition()

    def __getitem__(self, swarm_id: str) -> Session | None:
        return self._by_id[swarm_id]

    def get(self, swarm_id: str) -> Session | None:
        return self._by_id.get(swarm_id)

    def ids(self) -> list[str]:
        return list(self._by_id)

    def reserve(self, swarm_id: str) -> bool:
        """Returns False if another delivery of this host, for another container, has reserved the swarm."""
        with self._changed:
            if swarm_id in self._by_id:
                return False
            self._by_id[swarm_id] = None
            return True

    def release(self, swarm_id: str) -> None:
        with self._changed:
            self._by_id.pop(swarm_id, None)
            self._changed.notify_all()

    def opened(self, swarm_id: str, session: Session) -> None:
        with self._changed:
            self._by_id[swarm_id] = session

    def changed(self) -> None:
        """Wakes deliveries that wait for a session's file."""
        with self._changed:
            self._changed.notify_all()

    def remove(self, swarm_id: str, expected: Session | None = None) -> Session | None:
        """Removes and returns the session; None if there is none, or another one than expected."""
        with self._changed:
            session = self._by_id.get(swarm_id)
            if session is None or (expected is not None and session is not expected):
                return None
            del self._by_id[swarm_id]
            self._changed.notify_all()
            return session

    def wait_for_file(self, swarm_id: str, cancelled: Callable[[], bool]) -> Session | None:
        """Waits for the other delivery. Returns its session once it has the file; None if that delivery failed."""
        while True:
            with self._changed:
                if swarm_id not in self._by_id:
                    return None
                session = self._by_id[swarm_id]
                if session is not None and session.phase is not Phase.FETCHING:
                    return session
                self._changed.wait(_WAIT_SECONDS)
            if cancelled():
                raise Cancelled
