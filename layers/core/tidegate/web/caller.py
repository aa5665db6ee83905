"""Who calls, and what a key's scopes let it do."""

from __future__ import annotations

import re
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tidegate.errors import RecordNotFound, ScopeMissing, Unauthenticated

ADMIN = "admin"
DEFAULT_PROJECT = "default"

OPEN = {("GET", "/"), ("GET", "/healthz"), ("GET", "/docs"), ("GET", "/openapi.json")}

# First match wins; the last two lines are the rule, what stands above them its exceptions.
_SCOPE_RULES: tuple[tuple[str, str, str], ...] = (
    ("*", r"/v1/agents/.*", "agent"),
    ("*", r"/v1/(projects|keys)(/.*)?", ADMIN),
    ("POST", r"/v1/queue/(capacity|pause|resume)", ADMIN),
    ("POST", r"/v1/(cleanup|compensation/trigger)", ADMIN),
    ("POST", r"/v1/ws-tickets", "read"),
    ("POST", r"/v1/download/sync(/multiple)?", "read"),
    ("GET", r".*", "read"),
    ("*", r".*", "write"),
)
# A decoded path may hold line breaks.
_COMPILED = [(method, re.compile(path, re.DOTALL), scope) for method, path, scope in _SCOPE_RULES]


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
            raise ScopeMissing(f"this route needs the scope {scope}")

    def acting_for(self, project_id: str | None) -> str:
        """The project a body names: an admin may name any, others only their own."""
        if project_id and project_id != self.project_id and not self.is_admin:
            raise RecordNotFound("no such project")
        return project_id or self.project_id


_current: ContextVar[Caller] = ContextVar("caller")


def current_caller() -> Caller:
    """Whose request is being served."""
    return _current.get()


def enter(caller: Caller) -> None:
    _current.set(caller)


def scope_for(method: str, path: str) -> str:
    return next(scope for verb, pattern, scope in _COMPILED if verb in ("*", method) and pattern.fullmatch(path))


def caller_of(event: dict[str, Any]) -> Caller:
    """The caller as the authorizer put it into the request; it lets everyone through, so the refusal is here."""
    described = event.get("requestContext", {}).get("authorizer", {}).get("lambda") or {}
    if not described.get("key_id"):
        raise Unauthenticated("send a key as Authorization: Bearer <key>")
    scopes = frozenset(str(described.get("scopes", "")).split())
    project_id = str(described.get("project_id") or "")
    if ADMIN in scopes:
        query = event.get("queryStringParameters") or {}
        headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
        project_id = query.get("project_id") or headers.get("x-project-id") or project_id or DEFAULT_PROJECT
    rate = described.get("requests_per_s")
    agent_id = described.get("agent_id") or None
    return Caller(str(described["key_id"]), project_id, scopes, agent_id, float(rate) if rate else None)
