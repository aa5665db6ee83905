"""The states of hosts and projects in memory, because simulations take minutes on moto."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tidegate.aws.keys import ALL_HOSTS
from tidegate.notifications.deliveries import PROJECT_FIRST_TOOK, CircuitStore, HostState, ProjectState


@dataclass
class _Record:
    limit: int = 0
    took: float = 0.0
    open_until: float = 0.0
    failures: int = 0
    limit_at: float = 0.0
    slow_at: float = 0.0
    places: dict[int, float] = field(default_factory=dict)
    reserved: dict[str, float] = field(default_factory=dict)


class CircuitsInMemory(CircuitStore):
    """For one project."""

    def __init__(self) -> None:
        self.records: dict[str, _Record] = {}

    def states(self, project_id: str, host: str) -> tuple[HostState | None, ProjectState | None]:
        one, every = self.records.get(host), self.records.get(ALL_HOSTS)
        return (
            HostState(one.limit, one.open_until, one.took, dict(one.places)) if one else None,
            ProjectState(every.limit, every.limit_at, every.slow_at, every.took, dict(every.places)) if every else None,
        )

    def claim_place(self, project_id: str, host: str, place: int, now: float, until: float) -> bool:
        record = self.records[host]
        if record.open_until > now or record.places.get(place, 0.0) > now:
            return False
        record.places[place] = until
        return True

    def free(self, project_id: str, host: str, place: int) -> None:
        self.records[host].places.pop(place, None)

    def reserve(
        self, project_id: str, host: str, earliest: float, latest: float, step: float, name: str = "next_at"
    ) -> float | None:
        at = max(self.records[host].reserved.get(name, 0.0), earliest) + step
        if at > latest:
            return None
        self.records[host].reserved[name] = at
        return at

    def fail(self, project_id: str, host: str, now: float, limit: int, took: float, place: int | None) -> int:
        failures = self.records.get(host, _Record()).failures + 1
        self._set(host, place, limit=limit, took=took, open_until=now, failures=failures)
        return failures

    def succeed(self, project_id: str, host: str, now: float, limit: int, took: float, place: int | None) -> None:
        self._set(host, place, limit=limit, took=took, open_until=now, failures=0)

    def pause(self, project_id: str, host: str, until: float) -> None:
        self._set(host, None, open_until=until)

    def clear(self, project_id: str, host: str) -> None:
        self.records.pop(host, None)

    def record_slow(
        self, project_id: str, now: float, took: float | None, limit: int | None, places: Mapping[int, float]
    ) -> None:
        before = self.records.get(ALL_HOSTS, _Record(took=PROJECT_FIRST_TOOK))
        self._set(ALL_HOSTS, None, slow_at=now, took=before.took if took is None else took)
        if limit is not None:
            self._set(ALL_HOSTS, None, limit=limit, limit_at=now)
        self.records[ALL_HOSTS].places |= places

    def record_quick(self, project_id: str, now: float, took: float, limit: int | None, place: int) -> None:
        self._set(ALL_HOSTS, place, took=took)
        if limit is not None:
            self._set(ALL_HOSTS, None, limit=limit, limit_at=now)

    def _set(self, host: str, place: int | None, **changes: float) -> None:
        self.records[host] = replace(self.records.get(host, _Record()), **changes)  # type: ignore[arg-type]
        self.records[host].places.pop(-1 if place is None else place, None)
