"""Enrolments in the table: the hash of the token, and the number of its uses."""

from __future__ import annotations

from dataclasses import asdict, fields

from tidegate.aws import keys
from tidegate.aws.table import Table
from tidegate.aws.writes import put_new, update
from tidegate.distribution.fleet.model import Enrolment, FleetAgent
from tidegate.distribution.store.fleet import new_agent, renewed_agent
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write
from tidegate.projects.key_store import new_key
from tidegate.projects.model import ApiKey

_KEPT_SECONDS = 7 * 86400


class EnrolmentStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, enrolment: Enrolment, line: AuditLine) -> None:
        item = keys.enrolment(enrolment.enrolment_id) | asdict(enrolment) | {"groups": list(enrolment.groups)}
        expires_at = {"expires_at": enrolment.valid_until + _KEPT_SECONDS}
        self._table.transact([put_new(item | expires_at), audit_write(line)])

    def get(self, enrolment_id: str) -> Enrolment | None:
        item = self._table.get(keys.enrolment(enrolment_id), consistent=True)
        if item is None:
            return None
        stored = {field.name: item[field.name] for field in fields(Enrolment) if field.name in item}
        return Enrolment(**stored | {"groups": tuple(item.get("groups", ())), "labels": dict(item.get("labels", {}))})

    def use(self, enrolment: Enrolment, key: ApiKey, agent: FleetAgent, line: AuditLine) -> bool:
        """Stores one use, the key and the agent, all or none. False if no use is left or the agent exists."""
        use = update(keys.enrolment(enrolment.enrolment_id), adds={"used": 1}, condition="#used < #uses")
        return self._table.try_write(use, new_key(key), new_agent(agent), audit_write(line))

    def replace(self, known: FleetAgent, key: ApiKey, agent: FleetAgent, *lines: AuditLine) -> bool:
        """Stores a new key for an agent that never connected: the answer with its first key was lost.

        The agent keeps its use of the enrolment. False if it has connected or was replaced meanwhile."""
        writes = [new_key(key), renewed_agent(agent, known), *map(audit_write, lines)]
        return self._table.try_write(*writes)
