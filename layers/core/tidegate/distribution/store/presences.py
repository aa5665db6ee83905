"""Agents' presences and projects' swarm settings in the table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields

from tidegate.aws import keys
from tidegate.aws.serialization import Item
from tidegate.aws.table import Table
from tidegate.aws.writes import put, update
from tidegate.distribution.swarm.presence import Presence, SwarmSettings
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write

_FIELDS = tuple(field.name for field in fields(Presence))


def _presence(item: Item) -> Presence:
    stored = {name: item[name] for name in _FIELDS if name in item}
    return Presence(**stored | {"listen": tuple(item["listen"])})


class PresenceStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def put(self, project_id: str, presence: Presence, expires_at: int) -> None:
        key = keys.presence(project_id, presence.agent_id)
        self._table.write(put(key | asdict(presence) | {"listen": list(presence.listen), "expires_at": expires_at}))

    def get_many(self, project_id: str, agent_ids: Iterable[str], now: float) -> list[Presence]:
        """The presences that have not expired. TTL may delete expired ones days later."""
        found = self._table.batch_get(keys.presence(project_id, agent_id) for agent_id in dict.fromkeys(agent_ids))
        return [_presence(item) for item in found if item["expires_at"] > now]


class SwarmSettingsStore:
    """Swarm settings, stored in the project's record."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def get(self, project_id: str) -> SwarmSettings:
        item = self._table.get(keys.project(project_id)) or {}
        return SwarmSettings(
            item.get("swarm", "auto"), tuple(item.get("peer_networks", ())), tuple(item.get("free_sites", ()))
        )

    def put(self, project_id: str, settings: SwarmSettings, line: AuditLine) -> bool:
        """False if there is no such project."""
        sets = {
            "swarm": settings.swarm,
            "peer_networks": list(settings.peer_networks),
            "free_sites": list(settings.free_sites),
        }
        return self._table.try_write(update(keys.project(project_id), sets), audit_write(line))
