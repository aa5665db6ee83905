"""Limits how many callbacks of a project run at once while some of its hosts are slow.

Limits for each host are not enough: a project may have any number of hosts that do not answer, and a new host has no
limit. This one only limits callbacks that run at the same time. It never stops those to a project's healthy hosts.
"""

from __future__ import annotations

from random import SystemRandom

from tidegate.aws.keys import ALL_HOSTS
from tidegate.notifications.circuit_rules import (
    LONGEST_PUT_OFF_SECONDS,
    PLACE_SECONDS,
    PROJECT_FIRST_LIMIT,
    PROJECT_REST_SECONDS,
    SLOW_SECONDS,
    ProjectState,
    lowered_for_project,
    raised,
)
from tidegate.notifications.delivery_store import CircuitStore

_choice, _between = SystemRandom().sample, SystemRandom().uniform
_TRIES = 3


class ProjectPlaces:
    def __init__(self, store: CircuitStore) -> None:
        self._store = store

    def take(self, project_id: str, state: ProjectState, now: float, *, failing: bool) -> int | None:
        """A place for one callback, or None if all are taken."""
        free = state.free_places(now, failing=failing)
        for place in _choice(free, min(_TRIES, len(free))):
            if self._store.take(project_id, ALL_HOSTS, place, now, now + PLACE_SECONDS):
                return place
        return None

    def put_off(self, project_id: str, state: ProjectState, now: float, *, failing: bool) -> float:
        """Seconds to wait, as for a host: each callback reserves a time of its own.

        Callbacks to hosts that are known to fail have their own times, far apart, and do not delay the others.
        """
        limit, latest = state.limit_now(now), now + LONGEST_PUT_OFF_SECONDS
        if failing:
            at = self._store.reserve(
                project_id, ALL_HOSTS, now, latest, PROJECT_REST_SECONDS / limit, "next_failing_at"
            )
        else:
            at = self._store.reserve(project_id, ALL_HOSTS, now, latest, max(0.02, state.took / (2 * limit)))
        if at is None:
            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)
        return max(1.0, at - now)

    def leave(
        self,
        project_id: str,
        state: ProjectState | None,
        place: int | None,
        now: float,
        *,
        took: float,
        unanswered: bool,
        failing: bool,
    ) -> None:
        """Records the result of a call. `failing`: its host was known to fail, so it does not lower the limit again."""
        average = state.average(took) if state else took
        limit = state.limit_now(now) if state else PROJECT_FIRST_LIMIT
        if unanswered:
            lower = None if failing and state else lowered_for_project(limit)
            rest = {} if place is None else {place: now + PROJECT_REST_SECONDS}
            self._store.slow(project_id, now, None, lower, rest)
        elif took >= SLOW_SECONDS:
            # The place is free from now on.
            self._store.slow(project_id, now, average, raised(limit), {} if place is None else {place: now})
        elif place is not None:
            # Quick answers bring the first limit back, so that a dead host hardly delays a project's other hosts.
            self._store.quick(project_id, now, average, limit + 1 if limit < PROJECT_FIRST_LIMIT else None, place)

    def give_back(self, project_id: str, place: int | None, now: float, waited: float) -> None:
        """Frees the place of a call that was not sent. A long wait counts as slow: it held a place as well."""
        if waited >= SLOW_SECONDS:
            self._store.slow(project_id, now, None, None, {} if place is None else {place: now})
        elif place is not None:
            self._store.free(project_id, ALL_HOSTS, place)
