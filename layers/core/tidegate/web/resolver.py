"""The HTTP door: who may pass, what is refused before a route sees it, and how every error looks."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from aws_lambda_powertools import Logger
from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.openapi.exceptions import RequestUnsupportedContentType, RequestValidationError
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from tidegate.bootstrap import app as running_app
from tidegate.domain.outside_json import read_json
from tidegate.errors import BodyTooLarge, BrokenJson, DomainError, Invalid, MethodNotAllowed, RouteNotFound
from tidegate.web.caller import OPEN, caller_of, enter, scope_for
from tidegate.web.contract import Api
from tidegate.web.problems import field_errors, problem

BODY_LIMIT = 1024 * 1024
_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
_RECORD_PATHS = ("/v1/jobs/", "/v1/downloads/")
_ID_PREFIX = "AsyncDownload"
_SUB_PATHS = ("/targets",)

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


def serve(app: APIGatewayHttpResolver, event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Refuses first what no route should see, so that a stranger learns nothing from validation messages."""
    http = event["requestContext"]["http"]
    method, path = http["method"], _whole_ids(_path_of(event))
    event = {**event, "rawPath": path, "requestContext": {**event["requestContext"], "stage": "$default"}}
    logger.append_keys(request_id=event["requestContext"].get("requestId"))
    try:
        if (method, path) not in OPEN and path.startswith("/v1/"):
            caller = caller_of(event)
            caller.require(scope_for(method, path))
            if caller.requests_per_s is not None:
                here = running_app()
                here.rate_limiter.require(caller.project_id, caller.requests_per_s, here.clock().timestamp())
            enter(caller)
        event = _with_text_body(event)
    except DomainError as error:
        answer = _plain(problem(error))
    else:
        answer = app.resolve(event, context)
    headers = answer.setdefault("headers", {})
    headers["x-request-id"] = str(event["requestContext"].get("requestId", ""))
    headers["x-content-type-options"] = "nosniff"
    logger.info("answered", method=method, route=path[:200], status=answer["statusCode"])
    return answer


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


def _with_text_body(event: dict[str, Any]) -> dict[str, Any]:
    """The event with its body as text: a gateway hands over as base64 what it does not take for text."""
    body = event.get("body") or ""
    if event.get("isBase64Encoded"):
        try:
            body = base64.b64decode(body).decode()
        except ValueError as error:
            raise BrokenJson("the body is not UTF-8") from error
    if len(body.encode("utf-8", "surrogatepass")) > BODY_LIMIT:
        raise BodyTooLarge("a body may hold 1 MB")
    if body:
        _refuse_what_json_cannot_say(body)
    return {**event, "body": body, "isBase64Encoded": False}


def _refuse_what_json_cannot_say(body: str) -> None:
    try:
        read_json(body, exact=True)
    except ValueError as error:
        raise BrokenJson("the body could not be read as JSON") from error
