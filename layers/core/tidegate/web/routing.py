"""Shared by all route modules: callers and scopes, routers, bodies and forms, answers, and errors as RFC 9457."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, Literal, TypeVar, get_args
from urllib.parse import parse_qsl, unquote

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.api_gateway import ResponseBuilder, Route
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel

from tidegate.common.json_input import read_json
from tidegate.errors import (
    AlreadyCreated,
    BodyTooLarge,
    BrokenJson,
    DomainError,
    FieldError,
    Invalid,
    RecordNotFound,
    ScopeMissing,
    Unauthenticated,
)

# --- authentication
# The caller of the current request, and what its scopes allow.

# What a route may declare. `open`: no key is needed. `any`: every key is accepted, and the route checks its scopes.
# `agent`: a key that is bound to the agent_id in the path. An `admin` key is accepted by every route. Keys may also
# have the scope `unmask`, which no route needs: orders of exports check it. `sign_in` is the scope of a ticket.
Scope = Literal["open", "any", "read", "write", "agent", "admin", "sign_in"]
SCOPES: tuple[str, ...] = get_args(Scope)
ADMIN = "admin"
DEFAULT_PROJECT = "default"


@dataclass(frozen=True, slots=True)
class Caller:
    """The key of a request. `project_id` is the key's project.

    For an admin key, it is the project that the request names.
    """

    key_id: str
    project_id: str
    scopes: frozenset[str]
    agent_id: str | None = None
    # The project's quota, if it has one. Keys of hosts have a limit of their own instead.
    requests_per_s: float | None = None
    # The life of the host that the key was created for.
    life: int = 0
    # Whether `requests_per_s` is the default, with which more requests may be saved up.
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
        """The project of the request. Raises Invalid if the caller has an admin key and the request names no project.

        An admin key belongs to no project.
        """
        if self.is_admin and self.project_id == DEFAULT_PROJECT:
            raise Invalid(
                "an admin key belongs to no project: name one with ?project_id= (GET /v1/projects lists them; the "
                "command line has --project)",
                errors=[{"loc": ["query", "project_id"], "msg": "required with an admin key"}],
            )
        return self.project_id

    def acting_for(self, project_id: str | None) -> str:
        """Returns the project that a body names, or else the caller's project.

        Only an admin may name another project.
        """
        if project_id and project_id != self.project_id and not self.is_admin:
            raise RecordNotFound(
                f"this key has no access to the project {project_id[:200]}: leave project_id out, or use an admin key"
            )
        return project_id or self.project_id


_current: ContextVar[Caller | None] = ContextVar("caller", default=None)


def current_caller() -> Caller:
    """Returns the caller of the request that is being served.

    Raises Unauthenticated if the request has no valid key.
    """
    caller = _current.get()
    if caller is None:
        raise Unauthenticated(
            "the request has no valid key: send Authorization: Bearer <key>; if you did, the key is unknown, expired "
            "or revoked"
        )
    return caller


def set_current_caller(caller: Caller | None) -> None:
    """Sets the caller of a request. Call it for a request without a key, too.

    Otherwise a warm function would keep the caller of the previous request.
    """
    _current.set(caller)


def caller_of(event: dict[str, Any]) -> Caller | None:
    """Returns the caller in the authorizer's context. None for a request without a valid key."""
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

    def __init__(self, tag: str = "") -> None:
        """`tag`: the API reference lists the routes under this capability, except routes with a tag of their own."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.scopes: dict[tuple[str, str], Scope] = {}
        self._options = {"tags": [tag]} if tag else {}

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
        return self.route(rule, method, **self._options | options)


def answer(model: BaseModel | None, status: int = 200, headers: dict[str, str] | None = None) -> Response[Any]:
    """Returns a JSON answer without the fields that have no value. If there is no model, the answer is empty."""
    body = None if model is None else model.model_dump(mode="json", exclude_none=True)
    all_headers: dict[str, str | list[str]] = {"cache-control": "no-store", **(headers or {})}
    return Response(
        status_code=status, content_type=None if body is None else "application/json", body=body, headers=all_headers
    )


# --- problems
# Turns errors into RFC 9457 answers (`application/problem+json`).

CONTENT_TYPE = "application/problem+json"


def problem_body(error: DomainError) -> dict[str, Any]:
    body: dict[str, Any] = {
        "type": f"urn:tidegate:{error.code}",
        "title": error.title,
        "status": error.status,
        "detail": error.detail,
        "code": error.code,
    }
    if error.errors:
        body["errors"] = list(error.errors)
    if isinstance(error, AlreadyCreated):
        body |= error.created_ids
    return body


def problem(error: DomainError) -> Response[str]:
    headers: dict[str, str | list[str]] = {"cache-control": "no-store"}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    # A refused field is named, and its name may contain half a surrogate pair, which UTF-8 cannot encode.
    body = json.dumps(problem_body(error), ensure_ascii=False).encode("utf-8", "replace").decode()
    return Response(status_code=error.status, content_type=CONTENT_TYPE, body=body, headers=headers)


def invalid_fields(errors: Iterable[Mapping[str, Any]]) -> Invalid:
    """Returns the error for a request with these Pydantic errors.

    It names each field and what is wrong with the field.
    """
    fields: list[FieldError] = [
        {
            "loc": [part for part in error["loc"] if part != "request"],
            "msg": str(error["msg"]).removeprefix("Value error, "),
        }
        for error in errors
    ]
    names = ", ".join(".".join(str(part) for part in field["loc"]) for field in fields)
    return Invalid(f"these fields are not valid: {names}; `errors` says why", errors=fields)


# --- body
# Decodes and checks the body of a request.

BODY_LIMIT = 1024 * 1024


def json_body(event: dict[str, Any], *, takes_forms: bool = False) -> str:
    """Returns the body as JSON text. Raises BrokenJson or BodyTooLarge.

    A body that API Gateway does not recognise as text arrives in base64, and is decoded. `takes_forms`: whether the
    body may also be a form, as PHP sends it.
    """
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body).decode()
        except ValueError as error:
            raise BrokenJson("the body is not valid UTF-8: send JSON encoded in UTF-8") from error
    size = len(body.encode("utf-8", "surrogatepass"))
    if size > BODY_LIMIT:
        raise BodyTooLarge(
            f"the body has {size:,} bytes, but at most {BODY_LIMIT:,} are accepted: upload larger data as a file, or "
            "let it be pulled from a source_url"
        )
    if body and takes_forms and is_form(event):
        return json.dumps(form_fields(body))
    if body:
        _require_json(body)
    return str(body)


def _require_json(body: str) -> None:
    try:
        read_json(body, exact=True)
    except ValueError as error:
        raise BrokenJson(f"the body is not valid JSON: {str(error).partition(';')[0][:200]}") from error


# --- forms
# Bodies of the older PHP clients, which send objects and lists as `template[0][title]=Id` or as strings with JSON.

_FORM = "application/x-www-form-urlencoded"
# Routes that also take a form.
_FORM_ROUTES = frozenset(("/v1/task", "/v1/task/multiple", "/v1/download/sync", "/v1/download/sync/multiple"))
_FORM_NAME = re.compile(r"([^\[\]]+)((?:\[[^\[\]]*\])*)")
_FORM_DEPTH = 20
# PHP sends true and false as 1 and 0, and all numbers as text.
_FLAGS = {"0": False, "": False, "false": False, "1": True, "true": True}
_WIDTH = re.compile(r"[0-9]{1,6}(\.[0-9]{1,6})?")
_FLAG_FIELDS = ("bold", "wrap", "total", "merge")


def is_form(event: Mapping[str, Any]) -> bool:
    kinds = [value for name, value in (event.get("headers") or {}).items() if name.lower() == "content-type"]
    return any(kind.partition(";")[0].strip().lower() == _FORM for kind in kinds)


def form_fields(body: str) -> dict[str, Any]:
    """Returns the fields of a form: `a[b]=1` is an object, `a[]=1&a[]=2` and `a[0]=1&a[1]=2` are lists.

    Raises BrokenJson if the form is not percent-encoded UTF-8, or has a name such as `a[b`.
    """
    try:
        pairs = parse_qsl(body, keep_blank_values=True, errors="strict", max_num_fields=100_000)
    except ValueError as error:
        raise BrokenJson("the body is not a valid form: send percent-encoded UTF-8, or JSON") from error
    fields: dict[str, Any] = {}
    for name, value in pairs:
        known = _FORM_NAME.fullmatch(name)
        steps = [known[1], *known[2][1:-1].split("][")] if known and known[2] else [name]
        if known is None or len(steps) > _FORM_DEPTH:
            raise BrokenJson(f"the body is not a valid form: {name[:100]!r} is no name of a field")
        holder = fields
        for step, following in pairwise([*steps, None]):
            # PHP numbers the entries of a list without indexes.
            here = step or str(len(holder))
            if following is None:
                holder[here] = value
            elif not isinstance(holder.get(here), dict):
                holder[here] = {}
            holder = holder[here] if following is not None else holder
    return {name: _form_value(value, name) for name, value in fields.items()}


def _form_value(value: Any, name: str) -> Any:
    if not isinstance(value, dict):
        return value
    if name == "style":
        typed = {each: _FLAGS.get(given, given) if each in _FLAG_FIELDS else given for each, given in value.items()}
        width = str(typed.get("width"))
        return typed | {"width": float(width)} if _WIDTH.fullmatch(width) else typed
    inner = {each: _form_value(given, each) for each, given in value.items()}
    return list(inner.values()) if list(inner) == [str(number) for number in range(len(inner))] else inner


# --- scopes
# A resolver that checks the scope of every route before it runs.
#
# Each route declares its scope where it is defined. The check runs on the route that was matched, so no spelling of a
# path can mean one route to the check and another to the router.

KEYED_PATHS = "/v1/"


class ScopeNotDeclared(Exception):
    """A route was registered without a scope, with two scopes, or with a scope that does not fit its path."""


class ScopedResolver(APIGatewayHttpResolver):
    """A resolver that checks a route's scope before it runs the route.

    Raises ScopeNotDeclared for a route without a scope.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scopes: dict[tuple[str, str], Scope] = {}

    def include_router(self, router: APIGatewayHttpRouter, prefix: str | None = None) -> None:  # type: ignore[override]
        for (method, rule), scope in getattr(router, "scopes", {}).items():
            self.declare(method, rule, scope)
        super().include_router(router, prefix)

    def declare(self, method: str, rule: str, scope: Scope) -> None:
        """Stores the scope of a route. Raises ScopeNotDeclared if an equal route has a scope already.

        Of two equal routes, only the first would be matched.
        """
        if (method, rule) in self.scopes:
            raise ScopeNotDeclared(f"{method} {rule} is declared twice")
        self.scopes[method, rule] = scope

    def route(self, rule: str, method: Any, *args: Any, **options: Any) -> Callable[..., Any]:
        for verb in (method,) if isinstance(method, str) else method:
            scope = self.scopes.get((verb, rule))
            if scope not in SCOPES:
                raise ScopeNotDeclared(f"{verb} {rule} has the scope {scope!r}; declare one of {', '.join(SCOPES)}")
            if scope == "agent" and "<agent_id>" not in rule:
                raise ScopeNotDeclared(f"{verb} {rule} has the scope agent, but no <agent_id> in its path")
        return super().route(rule, method, *args, **options)

    def _call_route(self, route: Route, route_arguments: dict[str, str]) -> ResponseBuilder[Any]:
        # The parts of the path were percent-encoded by `serve`.
        route_arguments = {name: unquote(value) for name, value in route_arguments.items()}
        try:
            self._authorize(route, route_arguments)
        except DomainError as error:
            refused = self._call_exception_handler(error, route)
            if refused is None:
                raise
            return refused
        return super()._call_route(route, route_arguments)

    def _authorize(self, route: Route, route_arguments: dict[str, str]) -> None:
        """Checks the key, its scope and its agent. Checks the body last.

        So only callers with access learn what is wrong in the body.
        """
        scope = self.scopes.get((route.method, route.path))
        if scope is None:
            # No route matched. Powertools calls its own not-found route, which answers 404 or 405.
            if route.path.startswith(KEYED_PATHS):
                current_caller()
            return
        if scope != "open":
            caller = current_caller()
            if scope != "any":
                caller.require(scope)
            if scope == "agent":
                caller.require_agent(route_arguments["agent_id"])
        _refuse_unknown_parameters(route, self.current_event.raw_event)
        event = self.current_event.raw_event
        takes_forms = route.method == "POST" and route.path in _FORM_ROUTES
        event.update(body=json_body(event, takes_forms=takes_forms), isBase64Encoded=False)
        if takes_forms and is_form(event):
            event["headers"] = {
                name: "application/json" if name.lower() == "content-type" else value
                for name, value in event["headers"].items()
            }


_UNPAGED_LISTS = ("/v1/credentials", "/v1/stats", "/v1/queue/stats")


def _refuse_unknown_parameters(route: Route, event: Mapping[str, Any]) -> None:
    """Raises Invalid if the query of a list has an unknown parameter.

    Otherwise a list with a misspelt filter would return everything.
    """
    given = event.get("queryStringParameters")
    if route.method != "GET" or not given:
        return
    declared = [field.alias for field in route.dependant.query_params]
    if "cursor" not in declared and route.path not in _UNPAGED_LISTS:
        return
    # An admin key names the project with `project_id`; other keys may too.
    unknown = [name for name in given if name not in declared and name != "project_id"]
    if unknown:
        errors: list[FieldError] = [{"loc": ["query", name[:100]], "msg": "unknown parameter"} for name in unknown[:20]]
        names = ", ".join(name[:100] for name in unknown[:20])
        raise Invalid(f"this list has no parameter {names}: it takes {', '.join(declared) or 'none'}", errors=errors)
