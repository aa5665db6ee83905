"""The whole API: its routes by path, errors as problems, and how one API Gateway event is served."""

from __future__ import annotations

import json
import math
import os
import unicodedata
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, unquote

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestUnsupportedContentType, RequestValidationError
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from tidegate.app import App
from tidegate.app import app as running_app
from tidegate.errors import BadPath, BrokenJson, DomainError, Invalid, MethodNotAllowed, RouteNotFound
from tidegate.projects.model import (
    AGENT_RATE,
    AGENT_READ_UNITS,
    AGENT_WRITE_UNITS,
    ANSWER_BYTES,
    DEFAULT_BURST_SECONDS,
    READ_UNITS,
    REQUEST_SECONDS,
    USUAL_WRITE_UNITS,
    WRITE_UNITS,
)
from tidegate.web.openapi import Api
from tidegate.web.routing import Caller, caller_of, invalid_fields, problem, set_current_caller

if TYPE_CHECKING:
    from aws_lambda_powertools.event_handler.api_gateway import ResponseBuilder
    from aws_lambda_powertools.event_handler.openapi.models import OpenAPI

# By the start of a path (two parts under /v1, else one): the modules of `tidegate.web` with such routes. A cold start
# imports only those of the path that it serves.
ROUTES: dict[str, tuple[str, ...]] = {
    "/": ("console.routes",),
    "/console": ("console.routes",),
    "/docs": ("system",),
    "/healthz": ("system",),
    "/openapi.json": ("system",),
    "/start": ("system",),
    "/v1/agents": ("agents", "fleet"),
    "/v1/archive": ("queue",),
    "/v1/audit": ("queue",),
    "/v1/batch-schedules": ("schedules",),
    "/v1/batches": ("batches",),
    "/v1/biz": ("batches",),
    "/v1/callback-secret": ("notifications",),
    "/v1/callbacks": ("notifications",),
    "/v1/cleanup": ("queue",),
    "/v1/compensation": ("queue",),
    "/v1/credentials": ("ingest",),
    "/v1/download": ("exports",),
    "/v1/downloads": ("submits", "distribution"),
    "/v1/enrolments": ("fleet",),
    "/v1/export-schedules": ("schedules",),
    "/v1/files": ("files",),
    "/v1/host-pauses": ("ingest",),
    "/v1/jobs": ("distribution",),
    "/v1/keys": ("projects",),
    "/v1/me": ("console.routes",),
    "/v1/ops": ("queue",),
    "/v1/overview": ("console.routes",),
    "/v1/projects": ("notifications", "projects"),
    "/v1/queue": ("queue",),
    "/v1/releases": ("releases",),
    "/v1/requests": ("queue",),
    "/v1/sign-in": ("projects",),
    "/v1/sign-in-tickets": ("projects",),
    "/v1/stats": ("queue",),
    "/v1/subscriptions": ("ingest",),
    "/v1/system": ("console.routes",),
    "/v1/task": ("exports",),
    "/v1/tasks": ("exports",),
    "/v1/ws-tickets": ("notifications",),
}


class WholeApi(Api):
    """The resolver of all routes.

    It imports a module of routes at the first request for one of them. For the OpenAPI document, it imports all
    modules.
    """

    def __init__(self) -> None:
        super().__init__()
        self._included: set[str] = set()

    def include_all(self) -> None:
        """Includes the routes of every module. Raises ScopeNotDeclared if any route has no scope."""
        for start in ROUTES:
            self.include_routes_of(start)

    def get_openapi_schema(self, **options: Any) -> OpenAPI:
        self.include_all()
        return super().get_openapi_schema(**options)

    def _resolve(self) -> ResponseBuilder[Any]:
        self.include_routes_of(self.current_event.path)
        return super()._resolve()

    def include_routes_of(self, path: str) -> None:
        for name in ROUTES.get(start_of(path), ()):
            if name not in self._included:
                module = import_module(f"tidegate.web.{name}")
                self.include_router(module.build_router() if hasattr(module, "build_router") else module.router)
                self._included.add(name)


def start_of(path: str) -> str:
    """Returns the key in ROUTES for a path, or for the rule of a route."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[1:2] == ["v1"] else 2])


def build_api() -> WholeApi:
    """The API without any routes yet."""
    return with_error_handlers(WholeApi())


# --- answer size
# Keeps answers below the 6 MB that a Lambda function can return.

_MOST_BYTES = 5_000_000


def count_that_fit(entries: Sequence[Any]) -> int:
    """Returns how many of the first entries fit into one answer. The first entry always counts as one that fits."""
    total = 0
    for number, entry in enumerate(entries):
        total += _bytes_returned(entry)
        if total > _MOST_BYTES:
            return max(1, number)
    return len(entries)


def fits(value: Any) -> bool:
    """Whether a JSON value fits into one answer."""
    return _bytes_returned(value) <= _MOST_BYTES


def _bytes_returned(value: Any) -> int:
    """Returns the bytes that a JSON value takes in the function's result.

    The result is JSON, and the body is a string in it. So the value is escaped twice.
    """
    return len(json.dumps(json.dumps(value)))


# --- resolver
# The HTTP resolver with its error handlers, and one API Gateway event served by it.

# Control characters and the two line separators of Unicode.
_CONTROL = ("Cc", "Zl", "Zp")
_BAD_PATH = BadPath("the path contains a control character, perhaps percent-encoded: remove it")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_RECORD_PATHS = ("/v1/jobs/", "/v1/downloads/")
_ID_PREFIX = "AsyncDownload"
_SUB_PATHS = ("/targets", "/map", "/cancel", "/redrive")

logger = Logger(service="tidegate")
A = TypeVar("A", bound=Api)


def build_resolver(routers: Iterable[APIGatewayHttpRouter]) -> Api:
    app = with_error_handlers(Api())
    for router in routers:
        app.include_router(router)
    return app


def with_error_handlers(app: A) -> A:
    """Makes the resolver answer every error as a problem document, and returns the resolver.

    That includes an unknown path and an unknown method.
    """

    @app.exception_handler(DomainError)
    def domain(error: DomainError) -> Response[str]:
        if error.status >= 500:
            logger.exception("the request failed", code=error.code)
        return problem(error)

    @app.exception_handler(RequestValidationError)
    def invalid(error: RequestValidationError) -> Response[str]:
        found = list(error.errors())
        if any(entry.get("type") == "json_invalid" for entry in found):
            return problem(BrokenJson("the body is not valid JSON: correct it and send it again"))
        return problem(invalid_fields(found))

    @app.exception_handler(RequestUnsupportedContentType)
    def unsupported(_: RequestUnsupportedContentType) -> Response[str]:
        return problem(
            Invalid(
                "the body is not JSON: send it with Content-Type: application/json",
                errors=[{"loc": ["header", "content-type"], "msg": "must be application/json"}],
            )
        )

    @app.exception_handler(Exception)
    def unexpected(_: Exception) -> Response[str]:
        # A rollout is stopped by the failures of its release: see InternalErrors in template.yaml.
        logger.exception("the request failed unexpectedly", release=os.environ.get("RELEASE", ""))
        return problem(
            DomainError(
                "an unexpected error, which was logged: tell an operator the x-request-id header of this answer"
            )
        )

    @app.not_found
    def missing(_: Exception) -> Response[str]:
        path = app.current_event.path
        allowed = _methods_at(app, path)
        if not allowed:
            return problem(RouteNotFound(f"there is no route {path[:200]}: GET /docs lists all routes"))
        method = app.current_event.http_method
        answer = problem(MethodNotAllowed(f"{path[:200]} does not accept {method}: use {', '.join(allowed)}"))
        answer.headers["allow"] = ", ".join(allowed)
        return answer

    return app


def _methods_at(app: APIGatewayHttpResolver, path: str) -> list[str]:
    routes = [*app._static_routes, *app._dynamic_routes]
    found = {method for route in routes if route.rule.match(path) for method in _methods_of(route.method)}
    return [method for method in _METHODS if method in found]


def _methods_of(method: Any) -> list[str]:
    return [method] if isinstance(method, str) else list(method)


def serve(app: Api, event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Answers one request. Also logs every request, even a refused one, with its key id and request id."""
    http = event["requestContext"]["http"]
    method, path = http["method"], _quoted(_path_of(event))
    event = {**event, "rawPath": path, "requestContext": {**event["requestContext"], "stage": "$default"}}
    request_id = str(event["requestContext"].get("requestId", ""))
    running, caller = running_app(), caller_of(event)
    set_current_caller(caller)
    logger.append_keys(request_id=request_id, key_id=caller.key_id if caller else None)
    try:
        if _has_control_character(path):
            raise _BAD_PATH
        if caller is not None:
            _limit(running, caller)
    except DomainError as error:
        answer = _lambda_answer(problem(error))
    else:
        before = _used_so_far(running) if caller is not None else (0.0, 0.0, 0.0)
        answer = app.resolve(event, context)
        if caller is not None:
            used = (now - then for now, then in zip(_used_so_far(running), before, strict=True))
            _charge(running, caller, len(answer.get("body") or ""), *used)
    headers = answer.setdefault("headers", {})
    headers["x-request-id"] = request_id
    headers["x-content-type-options"] = "nosniff"
    logger.info("answered", method=method, route=path[:200], status=answer["statusCode"])
    return answer


def _limit(app: App, caller: Caller) -> None:
    """Raises RateLimited if the caller sends too many requests.

    The limit is for the caller's host, or else its project.
    """
    now = app.clock().timestamp()
    if caller.agent_id is not None:
        app.projects.agent_rate_limiter.require(caller.key_id, AGENT_RATE, now)
    elif caller.requests_per_s is not None:
        burst = DEFAULT_BURST_SECONDS if caller.default_rate else None
        app.projects.rate_limiter.require(caller.project_id, caller.requests_per_s, now, burst_seconds=burst)


def _used_so_far(app: App) -> tuple[float, float, float]:
    """Returns the read units, the write units and the seconds that this process has used so far.

    The seconds of slow calls are left out, because they are charged as runner time.
    """
    table = app.table
    return table.units_read, table.units_written, app.clock().timestamp() - app.projects.slow_calls.seconds_held


def _charge(
    app: App, caller: Caller, answer_bytes: int, units_read: float, units_written: float, seconds: float
) -> None:
    """Counts a request as several requests if its answer is large, if it read or wrote much, or if it took long."""
    used = answer_bytes / ANSWER_BYTES
    if caller.agent_id is not None:
        # Without the seconds: a poll may wait, and the number of waiting polls is limited.
        used += units_read / AGENT_READ_UNITS + max(0.0, units_written / AGENT_WRITE_UNITS - 1)
        app.projects.agent_rate_limiter.charge(caller.key_id, math.ceil(used) - 1)
    elif caller.requests_per_s is not None:
        used += units_read / READ_UNITS + max(0.0, seconds) / REQUEST_SECONDS
        used += max(0.0, units_written - USUAL_WRITE_UNITS) / WRITE_UNITS
        app.projects.rate_limiter.charge(caller.project_id, math.ceil(used) - 1)


def _has_control_character(path: str) -> bool:
    """Whether the path has a control character. Such a character may be percent-encoded twice, and decoded later."""
    decoded = unquote(path)
    return any(unicodedata.category(char) in _CONTROL for char in decoded + unquote(decoded))


def _lambda_answer(response: Response[str]) -> dict[str, Any]:
    headers = dict(response.headers) | {"content-type": response.content_type}
    return {"statusCode": response.status_code, "headers": headers, "body": response.body, "isBase64Encoded": False}


def _path_of(event: dict[str, Any]) -> str:
    path, stage = str(event["rawPath"]), event["requestContext"].get("stage", "$default")
    prefix = f"/{stage}"
    if stage != "$default" and (path == prefix or path.startswith(prefix + "/")):
        path = path[len(prefix) :]
    return path or "/"


def _quoted(path: str) -> str:
    """Returns the path, percent-encoded again.

    HTTP APIs decode the path, but the router accepts no `?` or `#` in a part. Slashes occur only in the ids of Tasks
    and Jobs. `%25` is decoded first, because some gateways do not decode it. So a `%25` that belongs to a name is lost.
    In place of such an id, clients send a Job's `key` or a Task's uuid.
    """
    decoded = path.replace("%25", "%")
    for start in _RECORD_PATHS:
        if decoded.startswith(start + _ID_PREFIX):
            rest = decoded[len(start) :]
            tail = next((sub for sub in _SUB_PATHS if rest.endswith(sub)), "")
            record_id = rest[: len(rest) - len(tail)] if tail else rest
            return start + quote(record_id, safe=":", errors="replace") + tail
    return quote(decoded, safe="/:@$", errors="replace")
