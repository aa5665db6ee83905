"""Stores agents' presences and projects' swarm settings, and checks them."""

from __future__ import annotations

from datetime import timedelta

from tidegate.common.ids import Clock, iso
from tidegate.distribution.store.presences import PresenceStore, SwarmSettingsStore
from tidegate.distribution.swarm.presence import (
    LASTS_SECONDS,
    PRIVATE_NETWORKS,
    Presence,
    SwarmSettings,
    address_fault,
    network_fault,
)
from tidegate.errors import Invalid, RecordNotFound
from tidegate.projects.audit import AuditLine


class Presences:
    def __init__(self, store: PresenceStore, settings: SwarmSettingsStore, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock

    def put(self, project_id: str, presence: Presence, source: str) -> str:
        """Stores a presence and returns when it expires.

        Invalid if an address is neither in the project's networks nor that of the request (`source`)."""
        if presence.listen:
            if not presence.pin:
                raise _invalid("pin", "required with `listen`: send the SHA-256 of the agent's certificate")
            networks = self._settings.get(project_id).peer_networks or PRIVATE_NETWORKS
            for address in presence.listen:
                if fault := address_fault(address, networks, source):
                    raise _invalid("listen", fault)
        until = self._clock() + timedelta(seconds=LASTS_SECONDS)
        self._store.put(project_id, presence, int(until.timestamp()))
        return iso(until)

    def of(self, project_id: str, agent_id: str) -> Presence | None:
        """The agent's presence, if it has not expired; None if it takes part in no swarm."""
        return next(iter(self._store.get_many(project_id, [agent_id], self._clock().timestamp())), None)

    def settings(self, project_id: str) -> SwarmSettings:
        return self._settings.get(project_id)

    def change_settings(self, project_id: str, settings: SwarmSettings, line: AuditLine) -> SwarmSettings:
        for network in settings.peer_networks:
            if fault := network_fault(network):
                raise _invalid("peer_networks", fault)
        if not self._settings.put(project_id, settings, line):
            raise RecordNotFound(f"no project has the id {project_id}")
        return settings


def _invalid(field: str, fault: str) -> Invalid:
    return Invalid(fault, errors=[{"loc": ["body", field], "msg": fault}])
