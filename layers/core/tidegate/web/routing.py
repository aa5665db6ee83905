"""Shared by all route modules: the caller, the router, the parameters of lists, and how answers are made."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar, get_args

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel

from tidegate.errors import Invalid, RecordNotFound, ScopeMissing, Unauthenticated

# --- authentication
# The caller of the current request, and what its scopes allow.

# What a route may declare. `open`: no key is needed. `any`: every key is accepted, and the route checks its scopes.
# `agent`: a key that is bound to the agent_id in the path. An `admin` key is accepted by every route. Keys may also
# have the scope `unmask`, which no route needs: orders of exports check it. `sign_in` is that of a ticket.
Scope = Literal["open", "any", "read", "write", "agent", "admin", "sign_in"]
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
    # The life of the host that the key was created for.
    life: int = 0
    # Whether that is the default, with which more requests may be saved up.
    default_rate: bool = False

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
    limit, is_default = float(rate) if rate else None, context.get("default_rate") == "yes"
    life = int(context.get("life") or 0)
    return Caller(str(context["key_id"]), project_id, scopes, agent_id, limit, life, is_default)


# --- routing
# Shared by all route modules: the router, the parameters of lists, and how answers are made.

Limit = Annotated[int, Query(ge=1, le=100, description="the largest number of entries to return")]
Cursor = Annotated[str | None, Query(max_length=4096, description="`next_cursor` of the previous page")]
F = TypeVar("F", bound=Callable[..., Any])


class Router(APIGatewayHttpRouter):
    """A Powertools router whose routes declare the scope that a caller needs: `@router.get("/v1/…", scope="read")`.

    All other options are those of Powertools. The resolver checks the scope of the route that it matched.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.scopes: dict[tuple[str, str], Scope] = {}

    @property
    def caller(self) -> Caller:
        return current_caller()

    def get(self, rule: str, *, scope: Scope, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self._scoped("GET", rule, scope, options)

    def post(self, rule: str, *, scope: Scope, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self._scoped("POST", rule, scope, options)

    def put(self, rule: str, *, scope: Scope, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self._scoped("PUT", rule, scope, options)

    def patch(self, rule: str, *, scope: Scope, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self._scoped("PATCH", rule, scope, options)

    def delete(self, rule: str, *, scope: Scope, **options: Any) -> Callable[[F], F]:  # type: ignore[override]
        return self._scoped("DELETE", rule, scope, options)

    def _scoped(self, method: str, rule: str, scope: Scope, options: dict[str, Any]) -> Callable[[F], F]:
        if (method, rule) in self.scopes:
            raise ValueError(f"{method} {rule} is defined twice")
        self.scopes[method, rule] = scope
        return self.route(rule, method, **options)


def answer(model: BaseModel | None, status: int = 200, headers: dict[str, str] | None = None) -> Response[Any]:
    """A JSON answer without the fields that have no value; without a model, an empty answer."""
    body = None if model is None else model.model_dump(mode="json", exclude_none=True)
    all_headers: dict[str, str | list[str]] = {"cache-control": "no-store", **(headers or {})}
    return Response(
        status_code=status, content_type=None if body is None else "application/json", body=body, headers=all_headers
    )
