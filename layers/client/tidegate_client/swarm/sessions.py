"""The swarms that an agent is in. A delivery reserves one; another of the same host waits for its file."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tidegate_client.download import Cancelled
from tidegate_client.swarm.session import Phase, Session

_LOOK_SECONDS = 0.2


class Sessions:
    """Safe to use from the delivery threads and from the event loop."""

    def __init__(self) -> None:
        # None while a delivery is about to open its session.
        self._by_id: dict[str, Session | None] = {}
        self._changed = threading.Condition()

    def __getitem__(self, swarm_id: str) -> Session | None:
        return self._by_id[swarm_id]

    def get(self, swarm_id: str) -> Session | None:
        return self._by_id.get(swarm_id)

    def ids(self) -> list[str]:
        return list(self._by_id)

    def reserve(self, swarm_id: str) -> bool:
        """False if another delivery of this host is at it, for another container."""
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
        with self._changed:
            self._changed.notify_all()

    def remove(self, swarm_id: str, expected: Session | None = None) -> Session | None:
        """The session that is over now; None if there is none, or another one than expected."""
        with self._changed:
            session = self._by_id.get(swarm_id)
            if session is None or (expected is not None and session is not expected):
                return None
            del self._by_id[swarm_id]
            self._changed.notify_all()
            return session

    def finished(self, swarm_id: str, cancelled: Callable[[], bool]) -> Session | None:
        """The session of the other delivery, once it has the file; None if that delivery came to nothing."""
        while True:
            with self._changed:
                if swarm_id not in self._by_id:
                    return None
                session = self._by_id[swarm_id]
                if session is not None and session.phase is not Phase.FETCHING:
                    return session
                self._changed.wait(_LOOK_SECONDS)
            if cancelled():
                raise Cancelled
