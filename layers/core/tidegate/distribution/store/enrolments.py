"""Enrolments in the table: a token's hash, and how often it was used."""

from __future__ import annotations

from dataclasses import asdict, fields

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import check, put_new, update
from tidegate.distribution.fleet.model import Enrolment, FleetAgent
from tidegate.distribution.store.fleet import new_agent
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
        known = {field.name: item[field.name] for field in fields(Enrolment) if field.name in item}
        return Enrolment(**known | {"groups": tuple(item.get("groups", ())), "labels": dict(item.get("labels", {}))})

    def use(self, enrolment: Enrolment, key: ApiKey, agent: FleetAgent, line: AuditLine, *, free: bool) -> bool:
        """One use, the key and the agent, all or none. False: no use is left, or the agent is known already.

        `free`: this host has paid its use before."""
        place = keys.enrolment(enrolment.enrolment_id)
        if free:
            use = check(place, "attribute_exists(#pk)")
        else:
            use = update(place, adds={"used": 1}, condition="#used < #uses")
        try:
            self._table.transact([use, new_key(key), new_agent(agent), audit_write(line)])
        except ConditionFailed:
            return False
        return True
