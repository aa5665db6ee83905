"""One circuit a host: a receiver in trouble gets one callback at a time, then pauses."""

from __future__ import annotations

from tidegate.notifications.circuit_rules import PROBE_SECONDS, SLOW_SECONDS, pause_after
from tidegate.notifications.delivery_store import CircuitStore


class CircuitBreaker:
    def __init__(self, store: CircuitStore) -> None:
        self._store = store

    def enter(self, project_id: str, host: str, now: float) -> tuple[bool, float]:
        """May it be tried now? Answers (is it in trouble, seconds to wait); 0 seconds means: go."""
        open_until = self._store.open_until(project_id, host)
        if open_until is None:
            return False, 0.0
        if open_until <= now and self._store.probe(project_id, host, now, now + PROBE_SECONDS):
            return True, 0.0
        return True, max(1.0, open_until - now)

    def leave(self, project_id: str, host: str, now: float, *, blamed: bool, took: float, in_trouble: bool) -> None:
        if blamed:
            pause = pause_after(self._store.fail(project_id, host, now))
            if pause:
                self._store.pause(project_id, host, now + pause)
        elif took >= SLOW_SECONDS:
            self._store.slow(project_id, host, now)
        elif in_trouble:
            self._store.clear(project_id, host)
