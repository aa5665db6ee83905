"""Agents in the table: one item each, spread over several partitions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import Item, decode_cursor, encode_cursor, unknown_cursor
from tidegate.aws.table import Table
from tidegate.aws.writes import Write, delete, put, put_new, update
from tidegate.common.ids import iso
from tidegate.common.listing import Listed
from tidegate.distribution.fleet.model import FleetAgent, Inventory, LastJob
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_write

_INVENTORY = tuple(field.name for field in fields(Inventory))
_NESTED = ("inventory", "groups", "labels", "last_job")
_PLAIN = tuple(field.name for field in fields(FleetAgent) if field.name not in _NESTED)
_MEMBERSHIP = ("project_id", "agent_id", "groups", "labels")
_LAST = "\U0010ffff"
_PAGE = 500


def _agent(item: Item) -> FleetAgent:
    return FleetAgent(
        **{name: item[name] for name in _PLAIN if name in item},
        groups=tuple(item.get("groups", ())),
        labels=dict(item.get("labels", {})),
        inventory=Inventory(**{name: item[name] for name in _INVENTORY if name in item}),
        last_job=LastJob(**item["last_job"]) if "last_job" in item else None,
    )


def _item(agent: FleetAgent) -> Item:
    plain = {name: getattr(agent, name) for name in _PLAIN}
    more = {"groups": list(agent.groups), "labels": dict(agent.labels), **asdict(agent.inventory)}
    return keys.agent(agent.project_id, agent.agent_id) | plain | more


def new_agent(agent: FleetAgent) -> Write:
    """For the transaction that enrols the agent."""
    return put_new(_item(agent))


def renewed_agent(agent: FleetAgent, known: FleetAgent) -> Write:
    """For the transaction that enrols the agent again: it has not connected, and still has the key of `known`."""
    return put(_item(agent), "#key_id = :replaced AND attribute_not_exists(#last_seen)", replaced=known.key_id)


class FleetStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def connected(
        self, project_id: str, agent_id: str, connection_id: str, inventory: Inventory, now: datetime
    ) -> None:
        """Stores the agent's connection. It has one: messages go to the one opened last."""
        sets = {"connection_id": connection_id, "connected_at": iso(now), **asdict(inventory)}
        self._seen(project_id, agent_id, sets, now)

    def disconnected(self, project_id: str, agent_id: str, connection_id: str, now: datetime) -> None:
        """Removes the agent's connection, unless it has a newer one or was deleted."""
        key = keys.agent(project_id, agent_id)
        same, removed = "#connection_id = :ended", ("connection_id", "connected_at")
        ended = update(key, {"last_seen": iso(now)}, removes=removed, condition=same, ended=connection_id)
        self._table.try_write(ended)

    def seen(self, project_id: str, agent_id: str, now: datetime, last_job: LastJob | None = None) -> None:
        self._seen(project_id, agent_id, {"last_job": asdict(last_job)} if last_job else {}, now)

    def _seen(self, project_id: str, agent_id: str, sets: Mapping[str, Any], now: datetime) -> None:
        """Stores the agent's last sign of life. Creates the record of an agent that did not enrol."""
        named = {"project_id": project_id, "agent_id": agent_id, "last_seen": iso(now)}
        self._table.write(update(keys.agent(project_id, agent_id), named | dict(sets), condition=""))

    def get(self, project_id: str, agent_id: str) -> FleetAgent | None:
        item = self._table.get(keys.agent(project_id, agent_id), consistent=True)
        return _agent(item) if item else None

    def get_many(self, project_id: str, agent_ids: Iterable[str]) -> dict[str, FleetAgent]:
        found = self._table.batch_get(keys.agent(project_id, agent_id) for agent_id in dict.fromkeys(agent_ids))
        return {item["agent_id"]: _agent(item) for item in found}

    def change(
        self,
        project_id: str,
        agent_id: str,
        groups: Sequence[str] | None,
        labels: Mapping[str, str] | None,
        line: AuditLine,
    ) -> bool:
        """False if there is no such agent."""
        sets = {"groups": None if groups is None else list(groups), "labels": None if labels is None else dict(labels)}
        return self._table.try_write(update(keys.agent(project_id, agent_id), sets), audit_write(line))

    def remove(self, project_id: str, agent_id: str, line: AuditLine) -> bool:
        """False if there is no such agent."""
        return self._table.try_write(
            delete(keys.agent(project_id, agent_id), "attribute_exists(#pk)"), audit_write(line)
        )

    def memberships(self, project_id: str) -> Iterator[FleetAgent]:
        """All agents, with groups and labels only: reading 100,000 whole records would exceed the API's time-out."""
        for spread in range(keys.AGENT_SPREAD):
            for item in self._table.query_all(keys.agents(project_id, spread), project=_MEMBERSHIP):
                yield _agent(item)

    def list(self, project_id: str, cursor: str | None) -> Listed[FleetAgent]:
        """A page of up to 500 agents, partition by partition, sorted by id within a partition."""
        spread, after = _position(cursor)
        found = self._table.query(keys.agents(project_id, spread), sk_between=(after, _LAST), limit=_PAGE)
        agents = [_agent(item) for item in found.items if item["sk"] != after]
        if found.cursor:
            return Listed(agents, _cursor(spread, found.items[-1]["sk"]))
        return Listed(agents, _cursor(spread + 1, " ") if spread + 1 < keys.AGENT_SPREAD else None)

    @staticmethod
    def cursor_after(agent: FleetAgent) -> str:
        pk = keys.agent(agent.project_id, agent.agent_id)["pk"]
        return _cursor(int(pk.rsplit("#", 1)[1]), agent.agent_id)


def _cursor(spread: int, after: str) -> str:
    return encode_cursor({"after": {"S": f"{spread}#{after}"}})


def _position(cursor: str | None) -> tuple[int, str]:
    if cursor is None:
        return 0, " "
    text = decode_cursor(cursor).get("after", {}).get("S", "")
    spread, hash_sign, after = str(text).partition("#")
    if not hash_sign or not after or not spread.isdecimal() or int(spread) >= keys.AGENT_SPREAD:
        raise unknown_cursor()
    return int(spread), after
