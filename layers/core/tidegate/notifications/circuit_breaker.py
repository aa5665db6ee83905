"""Limits how many callbacks a host gets at once: one more after each success, half after a failure, and a pause after
several failures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import SystemRandom

from tidegate.notifications.circuit_rules import (
    EXPECTED_GROWTH,
    FIRST_LIMIT,
    LONGEST_PUT_OFF_SECONDS,
    MOST_AT_ONCE,
    PLACE_SECONDS,
    SLOW_SECONDS,
    ProjectState,
    lowered,
    pause_after,
    raised,
)
from tidegate.notifications.delivery_store import CircuitStore, HostState
from tidegate.notifications.project_places import ProjectPlaces

_choice, _between = SystemRandom().sample, SystemRandom().uniform
_TRIES = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """Permission to call a host (`wait` is 0), or the seconds to wait before asking again.

    `state` is None for a host that is neither slow nor failing: it has no limit. So is `project` for a project whose
    hosts are not slow.
    """

    wait: float = 0.0
    state: HostState | None = None
    place: int | None = None
    project: ProjectState | None = None
    project_place: int | None = None

    @property
    def failing(self) -> bool:
        """Whether the host was known to fail. A host that is only slow has at least the first limit."""
        return self.state is not None and self.state.limit < FIRST_LIMIT


class CircuitBreaker:
    def __init__(self, store: CircuitStore) -> None:
        self._store = store
        self._projects = ProjectPlaces(store)

    def enter(self, project_id: str, host: str, now: float) -> Entry:
        state, project = self._store.states(project_id, host)
        entry = Entry(0.0, state, None, project if project and project.is_slow(now) else None)
        if state is not None:
            entry = self._at_host(project_id, host, entry, state, now)
        if entry.project is None or entry.wait:
            return entry
        place = self._projects.take(project_id, entry.project, now, failing=entry.failing)
        if place is None:
            if entry.place is not None:
                self._store.free(project_id, host, entry.place)
            return Entry(self._projects.put_off(project_id, entry.project, now, failing=entry.failing), state)
        return replace(entry, project_place=place)

    def _at_host(self, project_id: str, host: str, entry: Entry, state: HostState, now: float) -> Entry:
        free = state.free_places(now) if state.open_until <= now else []
        if free and entry.project and not entry.project.free_places(now, failing=entry.failing):
            # No place of the host is needed: the project has none.
            return entry
        for place in _choice(free, min(_TRIES, len(free))):
            if self._store.take(project_id, host, place, now, now + PLACE_SECONDS):
                return replace(entry, place=place)
        return Entry(self._put_off(project_id, host, state, now), state)

    def _put_off(self, project_id: str, host: str, state: HostState, now: float) -> float:
        """Seconds to wait. Each waiting callback reserves a time of its own, spaced as fast as the host answers.

        So no more of them come back in a second than the host can take, however many wait. If no time is free within
        the longest wait, the callback asks again at a random time in its second half and reserves nothing.
        """
        step = max(0.05, state.took / min(MOST_AT_ONCE, state.limit * EXPECTED_GROWTH))
        latest = now + LONGEST_PUT_OFF_SECONDS
        at = self._store.reserve(project_id, host, max(now, state.open_until), latest, step)
        if at is None:
            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)
        return max(1.0, at - now)

    def leave(
        self,
        project_id: str,
        host: str,
        now: float,
        *,
        blamed: bool,
        took: float,
        entry: Entry,
        timed_out: bool = False,
    ) -> None:
        """Records the result of a call that `enter` allowed. `blamed`: the host failed. `took`: seconds."""
        self._projects.leave(
            project_id,
            entry.project,
            entry.project_place,
            now,
            took=took,
            unanswered=timed_out or (blamed and took >= SLOW_SECONDS),
            failing=entry.failing,
        )
        limit = entry.state.limit if entry.state else FIRST_LIMIT
        if blamed:
            failures = self._store.fail(project_id, host, now, lowered(limit), took, entry.place)
            pause = pause_after(failures)
            if pause:
                self._store.pause(project_id, host, now + pause)
        elif took < SLOW_SECONDS and limit >= FIRST_LIMIT:
            if entry.state is not None:
                self._store.clear(project_id, host)
        else:
            self._store.succeed(project_id, host, now, raised(limit), took, entry.place)

    def give_back(self, project_id: str, host: str, now: float, *, waited: float, entry: Entry) -> None:
        """Frees the places of a call that was not sent. `waited`: seconds."""
        self._projects.give_back(project_id, entry.project_place, now, waited)
        if entry.place is not None:
            self._store.free(project_id, host, entry.place)
