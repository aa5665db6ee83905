"""A project's quota requests_per_s, which the authorizer passes to the routes."""

from __future__ import annotations

from tidegate.common.ids import Clock
from tidegate.projects.store import ProjectStore

# A changed quota takes effect after this time; in exchange, a warm authorizer seldom reads the project.
KEPT_SECONDS = 10
_PROJECTS_KEPT = 10_000


class RateQuotas:
    def __init__(self, quotas: ProjectStore, clock: Clock) -> None:
        self._quotas = quotas
        self._clock = clock
        self._known: dict[str, tuple[float, int | None]] = {}

    def of_project(self, project_id: str) -> int | None:
        now = self._clock().timestamp()
        until, rate = self._known.get(project_id, (0.0, None))
        if now < until:
            return rate
        if len(self._known) >= _PROJECTS_KEPT:
            self._known.clear()
        rate = self._quotas.quotas(project_id).requests_per_s
        self._known[project_id] = (now + KEPT_SECONDS, rate)
        return rate
