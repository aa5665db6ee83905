"""The HTTP resolver: who may call a route, what is refused before it runs, and how errors are answered."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestUnsupportedContentType, RequestValidationError
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from tidegate.app import app as running_app
from tidegate.errors import BadPath, BrokenJson, DomainError, Invalid, MethodNotAllowed, RouteNotFound
from tidegate.web.authentication import caller_of, enter
from tidegate.web.openapi import Api
from tidegate.web.problems import field_errors, problem

# Control characters and the two line separators of Unicode.
_CONTROL = ("Cc", "Zl", "Zp")
_BAD_PATH = BadPath("the path holds a control character; leave it out")
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_RECORD_PATHS = ("/v1/jobs/", "/v1/downloads/")
_ID_PREFIX = "AsyncDownload"
_SUB_PATHS = ("/targets", "/map", "/cancel", "/redrive")

logger = Logger(service="tidegate")


def build_resolver(routers: Iterable[APIGatewayHttpRouter]) -> Api:
    app = Api(enable_validation=True, response_validation_error_http_code=500)
    for router in routers:
        app.include_router(router)

    @app.exception_handler(DomainError)
    def domain(error: DomainError) -> Response[str]:
        if error.status >= 500:
            logger.exception("the request failed", code=error.code)
        return problem(error)

    @app.exception_handler(RequestValidationError)
    def invalid(error: RequestValidationError) -> Response[str]:
        found = list(error.errors())
        if any(entry.get("type") == "json_invalid" for entry in found):
            return problem(BrokenJson("the body could not be read as JSON"))
        fields = field_errors(found)
        named = ", ".join(".".join(str(part) for part in field["loc"]) for field in fields)
        return problem(Invalid(f"not valid: {named}", errors=fields))

    @app.exception_handler(RequestUnsupportedContentType)
    def unsupported(_: RequestUnsupportedContentType) -> Response[str]:
        return problem(
            Invalid("send JSON", errors=[{"loc": ["header", "content-type"], "msg": "must be application/json"}])
        )

    @app.exception_handler(Exception)
    def unexpected(_: Exception) -> Response[str]:
        logger.exception("the request failed unexpectedly")
        return problem(DomainError("something went wrong here; the request id tells us what"))

    @app.not_found
    def missing(_: Exception) -> Response[str]:
        path = app.current_event.path
        allowed = _methods_at(app, path)
        if not allowed:
            return problem(RouteNotFound(f"there is no route {path[:200]}"))
        answer = problem(MethodNotAllowed(f"this route takes {', '.join(allowed)}"))
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
    """Answers one request. The log line of every request names the key and the request id, also of a refused one."""
    http = event["requestContext"]["http"]
    method, path = http["method"], _whole_ids(_path_of(event))
    event = {**event, "rawPath": path, "requestContext": {**event["requestContext"], "stage": "$default"}}
    request_id = str(event["requestContext"].get("requestId", ""))
    caller = caller_of(event)
    enter(caller)
    logger.append_keys(request_id=request_id, key_id=caller.key_id if caller else None)
    try:
        if _has_control_character(path):
            raise _BAD_PATH
        if caller is not None and caller.requests_per_s is not None:
            here = running_app()
            here.projects.rate_limiter.require(caller.project_id, caller.requests_per_s, here.clock().timestamp())
    except DomainError as error:
        answer = _plain(problem(error))
    else:
        answer = app.resolve(event, context)
    headers = answer.setdefault("headers", {})
    headers["x-request-id"] = request_id
    headers["x-content-type-options"] = "nosniff"
    logger.info("answered", method=method, route=path[:200], status=answer["statusCode"])
    return answer


def _has_control_character(path: str) -> bool:
    """In the path as it came or decoded once more: a gateway may or may not have decoded it."""
    return any(unicodedata.category(char) in _CONTROL for char in path + unquote(path))


def _plain(response: Response[str]) -> dict[str, Any]:
    headers = dict(response.headers) | {"content-type": response.content_type}
    return {"statusCode": response.status_code, "headers": headers, "body": response.body, "isBase64Encoded": False}


def _path_of(event: dict[str, Any]) -> str:
    path, stage = str(event["rawPath"]), event["requestContext"].get("stage", "$default")
    prefix = f"/{stage}"
    if stage != "$default" and (path == prefix or path.startswith(prefix + "/")):
        path = path[len(prefix) :]
    return path or "/"


def _whole_ids(path: str) -> str:
    """Ids of Tasks and Jobs hold slashes; a gateway that decodes the path has taken them apart."""
    for start in _RECORD_PATHS:
        if path.startswith(start + _ID_PREFIX):
            rest = path[len(start) :]
            tail = next((sub for sub in _SUB_PATHS if rest.endswith(sub)), "")
            whole = rest[: len(rest) - len(tail)] if tail else rest
            return start + quote(whole, safe="%:") + tail
    return path
