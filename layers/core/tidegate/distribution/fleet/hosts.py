"""The fleet: all hosts, their groups and labels, and their connections."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tidegate.common.ids import Clock
from tidegate.common.listing import Listed
from tidegate.distribution.fleet.last_jobs import LastJobs
from tidegate.distribution.fleet.model import FleetAgent, Inventory, LastJob
from tidegate.distribution.store.agent_inbox import AgentInboxStore
from tidegate.distribution.store.fleet import FleetStore
from tidegate.errors import Invalid, RecordNotFound, WrongState
from tidegate.projects.audit import act

# A filtered list returns what it found after this many reads of 500, with a cursor to continue from.
_READS = 20
# Seconds between two writes of `last_seen` for a host that polls. A connected host needs none.
_NOTED_EVERY = 240.0
_REMEMBERED = 5000
_LONGEST_TEXT = 128
MOST_SELECTED = 100_000


class Fleet:
    def __init__(
        self,
        store: FleetStore,
        inbox: AgentInboxStore,
        last_jobs: LastJobs,
        revoke_key: Callable[[str, str], None],
        clock: Clock,
    ) -> None:
        self._store = store
        self._inbox = inbox
        self._last_jobs = last_jobs
        self._revoke_key = revoke_key
        self._clock = clock
        # When `last_seen` was written for a host, and its newest transfer then.
        self._noted: OrderedDict[tuple[str, str], tuple[float, str | None]] = OrderedDict()

    # --- calls of hosts

    def connected(self, project_id: str, agent_id: str, connection_id: str, about: Mapping[str, str]) -> None:
        self._store.connected(project_id, agent_id, connection_id, inventory_of(about), self._clock())

    def disconnected(self, project_id: str, agent_id: str, connection_id: str) -> None:
        self._store.disconnected(project_id, agent_id, connection_id, self._clock())

    def polled(self, project_id: str, agent_id: str, last_job: LastJob | None = None) -> None:
        """Stores `last_seen` and the newest Job of a host in one write, if they have changed enough."""
        now = self._clock().timestamp()
        noted_at, noted_transfer = self._noted.get((project_id, agent_id), (0.0, None))
        is_new_job = last_job is not None and last_job.transfer_id != noted_transfer
        if now - noted_at < _NOTED_EVERY and not is_new_job:
            return
        self._store.seen(project_id, agent_id, self._clock(), last_job)
        self._noted[project_id, agent_id] = now, last_job.transfer_id if last_job else noted_transfer
        if len(self._noted) > _REMEMBERED:
            self._noted.popitem(last=False)

    # --- calls of operators

    def get(self, project_id: str, agent_id: str) -> dict[str, Any]:
        """The agent's record, with its unfinished transfers as `current`."""
        agent = self._known(project_id, agent_id)
        current = [
            {
                "transfer_id": one.transfer_id,
                "job_id": one.job_id,
                "file_name": one.file_name,
                "container_id": one.target.container_id,
                "progress": one.state.progress,
            }
            for one in self._inbox.inbox(project_id, agent_id)
            if one.until > self._clock().timestamp()
        ]
        return self._shown(project_id, [agent])[0] | {"current": current}

    def list(
        self, project_id: str, group: str | None, state: str | None, limit: int, cursor: str | None
    ) -> Listed[dict[str, Any]]:
        now, wanted = self._clock(), frozenset({group} if group else ())
        found: list[FleetAgent] = []
        for _ in range(_READS):
            page = self._store.list(project_id, cursor)
            for agent in page.items:
                if agent.has(wanted, {}) and state in (None, agent.state(now)):
                    found.append(agent)
                    if len(found) == limit:
                        last = agent is page.items[-1] and page.next_cursor is None
                        shown = self._shown(project_id, found)
                        return Listed([*shown], None if last else self._store.cursor_after(agent))
            cursor = page.next_cursor
            if cursor is None:
                break
        return Listed([*self._shown(project_id, found)], cursor)

    def _shown(self, project_id: str, agents: Sequence[FleetAgent]) -> Sequence[dict[str, Any]]:
        now, last_jobs = self._clock(), self._last_jobs.of(project_id, agents)
        return [agent.shown(now) | {"last_job": last_jobs.get(agent.agent_id)} for agent in agents]

    def change(
        self,
        project_id: str,
        agent_id: str,
        groups: Sequence[str] | None,
        labels: Mapping[str, str] | None,
        who: str,
    ) -> dict[str, Any]:
        if groups is None and labels is None:
            raise Invalid("neither groups nor labels were given: send at least one of them")
        parts = [f"groups {', '.join(groups) or 'none'}"] if groups is not None else []
        if labels is not None:
            parts.append("labels " + (", ".join(f"{name}={value}" for name, value in labels.items()) or "none"))
        line = act(project_id, agent_id, self._clock(), who, "agent.change", "; ".join(parts))
        if not self._store.change(project_id, agent_id, groups, labels, line):
            raise _unknown(agent_id)
        return self._shown(project_id, [self._known(project_id, agent_id)])[0]

    def remove(self, project_id: str, agent_id: str, who: str) -> None:
        """Deletes the agent. Revokes its key first: after a crash in between, the agent can be deleted again."""
        agent = self._known(project_id, agent_id)
        if agent.key_id:
            # The key may have expired, or an admin revoked it.
            with contextlib.suppress(RecordNotFound, WrongState):
                self._revoke_key(agent.key_id, who)
        line = act(project_id, agent_id, self._clock(), who, "agent.delete")
        self._store.remove(project_id, agent_id, line)

    def selected(self, project_id: str, groups: Iterable[str], labels: Mapping[str, str]) -> Sequence[str]:
        """The ids of the hosts that are in any of the groups and have all labels. Invalid if there are none."""
        wanted = frozenset(groups)
        found = [agent.agent_id for agent in self._store.memberships(project_id) if agent.has(wanted, labels)]
        selection = ", ".join([*sorted(wanted), *(f"{name}={value}" for name, value in labels.items())])
        if not found:
            raise Invalid(f"no agent has {selection}: GET /v1/agents shows the groups and labels of each")
        if len(found) > MOST_SELECTED:
            raise Invalid(
                f"{len(found)} agents have {selection}, but a Job takes {MOST_SELECTED} at most: select fewer"
            )
        return found

    def _known(self, project_id: str, agent_id: str) -> FleetAgent:
        agent = self._store.get(project_id, agent_id)
        if agent is None:
            raise _unknown(agent_id)
        return agent


def _unknown(agent_id: str) -> RecordNotFound:
    return RecordNotFound(f"this project has no agent {agent_id}: it has neither connected nor enrolled")


def inventory_of(about: Mapping[str, str]) -> Inventory:
    """The inventory from a connection's query string. Omits malformed values: they are only shown to people."""
    free = about.get("free_bytes", "")
    is_count = free.isascii() and free.isdecimal() and len(free) < 19
    return Inventory(_text(about.get("version")), _text(about.get("zone")), int(free) if is_count else None)


def _text(value: str | None) -> str | None:
    if value is None or not 0 < len(value) <= _LONGEST_TEXT or not value.isprintable():
        return None
    return value
