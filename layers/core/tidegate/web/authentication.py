"""Who calls, and what a key's scopes let it do."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tidegate.errors import Invalid, RecordNotFound, ScopeMissing, Unauthenticated

# What a route may declare: `open` needs no key, `any` takes every key and looks at its scopes itself, `agent` is bound
# to the agent_id in the path, `admin` covers the rest.
Scope = Literal["open", "any", "read", "write", "agent", "admin"]
SCOPES: tuple[str, ...] = get_args(Scope)
ADMIN = "admin"
DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """A key as the authorizer described it. `project_id` is the key's own; an admin's is the one it named."""

    key_id: str
    project_id: str
    scopes: frozenset[str]
    agent_id: str | None = None
    # The project's quota, if it has one; a host's key is not limited, since it only answers what we ask of it.
    requests_per_s: float | None = None

    @property
    def is_admin(self) -> bool:
        return ADMIN in self.scopes

    def require(self, scope: str) -> None:
        if not self.is_admin and scope not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise ScopeMissing(f"this route needs the scope {scope}; this key has {has}: ask an admin for another key")

    def require_agent(self, agent_id: str) -> None:
        if not self.is_admin and self.agent_id != agent_id:
            raise ScopeMissing(f"this key is for the agent {self.agent_id}, not for {agent_id[:128]}")

    def named_project(self) -> str:
        """The project, which an admin must have named: the key itself belongs to none."""
        if self.is_admin and self.project_id == DEFAULT_PROJECT:
            raise Invalid(
                "an admin key belongs to no project, so there is nothing to show: name one with ?project_id= "
                "(GET /v1/projects lists them, tidegate --project in the command line)",
                errors=[{"loc": ["query", "project_id"], "msg": "required with an admin key"}],
            )
        return self.project_id

    def acting_for(self, project_id: str | None) -> str:
        """The project a body names: an admin may name any, others only their own."""
        if project_id and project_id != self.project_id and not self.is_admin:
            raise RecordNotFound(f"this key's project is {self.project_id}; leave project_id out")
        return project_id or self.project_id


_current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller:
    """Whose request is being served."""
    caller = _current.get()
    if caller is None:
        raise Unauthenticated(
            "no valid key came with the request: send one as Authorization: Bearer <key>; "
            "a key that was sent is unknown, expired or revoked"
        )
    return caller


def enter(caller: Caller | None) -> None:
    """Once a request, also without a key: a warm function must not remember the caller before."""
    _current.set(caller)


def caller_of(event: dict[str, Any]) -> Caller | None:
    """The caller as the authorizer put it into the request, which lets everyone through. None: no valid key."""
    described = event.get("requestContext", {}).get("authorizer", {}).get("lambda") or {}
    if not described.get("key_id"):
        return None
    scopes = frozenset(str(described.get("scopes", "")).split())
    project_id = str(described.get("project_id") or "")
    if ADMIN in scopes:
        query = event.get("queryStringParameters") or {}
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        project_id = query.get("project_id") or headers.get("x-project-id") or project_id or DEFAULT_PROJECT
    rate = described.get("requests_per_s")
    agent_id = described.get("agent_id") or None
    return Caller(str(described["key_id"]), project_id, scopes, agent_id, float(rate) if rate else None)
