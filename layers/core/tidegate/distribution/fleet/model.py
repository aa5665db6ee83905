"""Hosts of the fleet: their inventory, groups, and whether they are online."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

ONLINE, OFFLINE = "online", "offline"
# API Gateway ends connections after two hours; the end of an older one was not reported.
CONNECTION_LASTS = timedelta(hours=2, minutes=10)
# Longer than the interval between two polls of a host without a connection.
POLL_LASTS = timedelta(minutes=7)
# API Gateway gives the function of `$connect` 29 s, and opens the connection only after it.
OPENING_LASTS = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Inventory:
    """What an agent reports about its host when it connects, and every hour."""

    version: str | None = None
    zone: str | None = None
    free_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class LastJob:
    """The newest Job for which the host has fetched its transfer, and when. Its outcome is read from the Job."""

    job_id: str
    file_name: str
    transfer_id: str
    container_id: str
    at: str


@dataclass(frozen=True, slots=True)
class FleetAgent:
    """`key_id` and `enrolment_id` are set for a host that enrolled by token."""

    project_id: str
    agent_id: str
    groups: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    inventory: Inventory = Inventory()
    connection_id: str | None = None
    connected_at: str | None = None
    last_seen: str | None = None
    key_id: str | None = None
    enrolment_id: str | None = None
    last_job: LastJob | None = None

    def state(self, now: datetime) -> str:
        if self.connection_id and self._within(self.connected_at, CONNECTION_LASTS, now):
            return ONLINE
        return ONLINE if self._within(self.last_seen, POLL_LASTS, now) else OFFLINE

    def may_be_opening(self, now: datetime) -> bool:
        """Whether the connection may not be open yet. Until then, API Gateway says that it is gone."""
        return self._within(self.connected_at, OPENING_LASTS, now)

    @staticmethod
    def _within(moment: str | None, span: timedelta, now: datetime) -> bool:
        return moment is not None and now - datetime.fromisoformat(moment) < span

    def has(self, groups: frozenset[str], labels: Mapping[str, str]) -> bool:
        """Whether the agent is in one of the groups, if any are given, and has all labels."""
        in_group = not groups or not groups.isdisjoint(self.groups)
        return in_group and all(self.labels.get(name) == value for name, value in labels.items())

    def shown(self, now: datetime) -> dict[str, Any]:
        return {
            "agent_id": self.agent_id,
            "groups": list(self.groups),
            "labels": dict(self.labels),
            "zone": self.inventory.zone,
            "version": self.inventory.version,
            "free_bytes": self.inventory.free_bytes,
            "state": self.state(now),
            "last_seen": self.last_seen,
        }


@dataclass(frozen=True, slots=True)
class Enrolment:
    """`used` counts the hosts that got a key. Only the hash of the token is stored."""

    enrolment_id: str
    project_id: str
    token_sha256: str
    groups: tuple[str, ...]
    labels: Mapping[str, str]
    uses: int
    valid_until: int
    used: int = 0


def why_silent(agent: FleetAgent | None, now: datetime) -> str:
    """The reason shown for a host without a report: since when it is offline, or that it is online."""
    if agent is None or agent.last_seen is None:
        return "offline: no agent of this name has ever connected"
    if agent.state(now) == OFFLINE:
        return f"offline: the agent was last seen at {agent.last_seen}"
    return "online, and has not reported on this transfer yet"
