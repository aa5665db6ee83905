"""Enrolment: with a token, a host gets its own API key, so that no key has to be copied to it."""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tidegate.common.ids import Clock, digest, iso, new_id
from tidegate.distribution.fleet.model import Enrolment, FleetAgent, Inventory
from tidegate.distribution.store.enrolments import EnrolmentStore
from tidegate.distribution.store.fleet import FleetStore
from tidegate.errors import AgentExists, TokenRefused
from tidegate.projects.api_keys import ApiKeys
from tidegate.projects.audit import AuditLine, act
from tidegate.projects.model import Project

_TOKEN = re.compile(r"tge_([0-9a-z]{10,40})_([0-9a-f]{40})")


class Enrolments:
    def __init__(
        self,
        store: EnrolmentStore,
        fleet: FleetStore,
        api_keys: Callable[[], ApiKeys],
        project_of: Callable[[str], Project],
        clock: Clock,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._api_keys = api_keys
        self._project_of = project_of
        self._clock = clock

    def add(
        self,
        project_id: str,
        groups: Sequence[str],
        labels: Mapping[str, str],
        uses: int,
        expires_in: int,
        who: str,
    ) -> dict[str, Any]:
        self._project_of(project_id)
        now = self._clock()
        enrolment_id = new_id("enr", now).replace("-", "")
        token = f"tge_{enrolment_id}_{secrets.token_hex(20)}"
        until = now + timedelta(seconds=expires_in)
        made = Enrolment(
            enrolment_id, project_id, digest(token), tuple(groups), dict(labels), uses, int(until.timestamp())
        )
        why = f"{uses} hosts until {iso(until)}" + (f", groups {', '.join(groups)}" if groups else "")
        self._store.add(made, act(project_id, enrolment_id, now, who, "enrolment.create", why))
        return {"enrolment_id": enrolment_id, "token": token, "expires_at": iso(_whole(made.valid_until))}

    def enrol(self, token: str, agent_id: str, inventory: Inventory) -> dict[str, Any]:
        """Returns a key that is bound to this agent. All records are written in one transaction."""
        found = self._checked(token)
        known = self._fleet.get(found.project_id, agent_id)
        if known is not None and not self._is_lost_answer(known, found):
            raise _exists(agent_id)
        key, text = self._api_keys().made(
            found.project_id, ("agent",), agent_id, f"enrolled {agent_id}"[:100], None, found.enrolment_id
        )
        agent = FleetAgent(
            found.project_id,
            agent_id,
            found.groups,
            found.labels,
            inventory,
            key_id=key.key_id,
            enrolment_id=found.enrolment_id,
        )
        line = self._line(found, agent_id, "agent.enrol", f"key {key.key_id}")
        if known is not None and known.key_id:
            # No host has the first key. A crash after this line leaves an agent that can enrol again.
            self._api_keys().revoke(known.key_id, found.enrolment_id)
            lost = self._line(found, agent_id, "agent.delete", "it enrols again: the first answer was lost")
            if not self._store.replace(known, key, agent, lost, line):
                raise _exists(agent_id)
        elif not self._store.use(found, key, agent, line):
            if self._fleet.get(found.project_id, agent_id) is None:
                raise TokenRefused(
                    f"the token was used {found.uses} times, as often as it allows: ask an admin for another one"
                )
            raise _exists(agent_id)
        return {"project_id": found.project_id, "agent_id": agent_id, "key_id": key.key_id, "key": text}

    def _line(self, enrolment: Enrolment, agent_id: str, action: str, why: str) -> AuditLine:
        """The actor is the enrolment: the host has no key yet."""
        return act(enrolment.project_id, agent_id, self._clock(), enrolment.enrolment_id, action, why)

    @staticmethod
    def _is_lost_answer(known: FleetAgent, found: Enrolment) -> bool:
        """Whether the agent enrolled with this token and never connected."""
        return known.enrolment_id == found.enrolment_id and known.last_seen is None

    def _checked(self, token: str) -> Enrolment:
        parts = _TOKEN.fullmatch(token)
        found = self._store.get(parts[1]) if parts else None
        if found is None or not hmac.compare_digest(found.token_sha256, digest(token)):
            raise TokenRefused("no enrolment has this token: ask an admin for one (POST /v1/enrolments)")
        if found.valid_until <= self._clock().timestamp():
            raise TokenRefused(f"the token expired at {iso(_whole(found.valid_until))}: ask an admin for another one")
        return found


def _exists(agent_id: str) -> AgentExists:
    return AgentExists(f"the agent {agent_id} exists already: delete it, or enrol under another id")


def _whole(epoch: int) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)
