"""The caller of the current request, and what its scopes allow."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tidegate.errors import Invalid, RecordNotFound, ScopeMissing, Unauthenticated

# What a route may declare. `open`: no key is needed. `any`: every key is accepted, and the route checks its scopes.
# `agent`: a key that is bound to the agent_id in the path. An `admin` key is accepted by every route.
Scope = Literal["open", "any", "read", "write", "agent", "admin"]
SCOPES: tuple[str, ...] = get_args(Scope)
ADMIN = "admin"
DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """The key of a request. `project_id` is the key's project; for an admin key, the project that the request names."""

    key_id: str
    project_id: str
    scopes: frozenset[str]
    agent_id: str | None = None
    # The project's quota, if it has one. Keys of hosts have a limit of their own instead.
    requests_per_s: float | None = None

    @property
    def is_admin(self) -> bool:
        return ADMIN in self.scopes

    def require(self, scope: str) -> None:
        if not self.is_admin and scope not in self.scopes:
            has = ", ".join(sorted(self.scopes)) or "none"
            raise ScopeMissing(
                f"this route needs the scope {scope}, but this key has {has}: ask an admin for another key"
            )

    def require_agent(self, agent_id: str) -> None:
        if not self.is_admin and self.agent_id != agent_id:
            raise ScopeMissing(
                f"this key is for the agent {self.agent_id}, not for {agent_id[:128]}: use the key of that agent"
            )

    def required_project(self) -> str:
        """The project. Raises Invalid for an admin key, which belongs to no project, if the request names none."""
        if self.is_admin and self.project_id == DEFAULT_PROJECT:
            raise Invalid(
                "an admin key belongs to no project: name one with ?project_id= (GET /v1/projects lists them; the "
                "command line has --project)",
                errors=[{"loc": ["query", "project_id"], "msg": "required with an admin key"}],
            )
        return self.project_id

    def acting_for(self, project_id: str | None) -> str:
        """The project that a body names, or the caller's. Only an admin may name another project."""
        if project_id and project_id != self.project_id and not self.is_admin:
            raise RecordNotFound(
                f"this key has no access to the project {project_id[:200]}: leave project_id out, or use an admin key"
            )
        return project_id or self.project_id


_current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller:
    """The caller of the request that is being served. Raises Unauthenticated if it had no valid key."""
    caller = _current.get()
    if caller is None:
        raise Unauthenticated(
            "the request has no valid key: send Authorization: Bearer <key>; if you did, the key is unknown, expired "
            "or revoked"
        )
    return caller


def set_current_caller(caller: Caller | None) -> None:
    """Call it for every request, also without a key: a warm function must not reuse the previous caller."""
    _current.set(caller)


def caller_of(event: dict[str, Any]) -> Caller | None:
    """The caller, as the authorizer described it; None without a valid key, which the authorizer does not refuse."""
    context = event.get("requestContext", {}).get("authorizer", {}).get("lambda") or {}
    if not context.get("key_id"):
        return None
    scopes = frozenset(str(context.get("scopes", "")).split())
    project_id = str(context.get("project_id") or "")
    if ADMIN in scopes:
        query = event.get("queryStringParameters") or {}
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        project_id = query.get("project_id") or headers.get("x-project-id") or project_id or DEFAULT_PROJECT
    rate = context.get("requests_per_s")
    agent_id = context.get("agent_id") or None
    return Caller(str(context["key_id"]), project_id, scopes, agent_id, float(rate) if rate else None)
