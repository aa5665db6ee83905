"""A resolver that checks the scope of every route before it runs.

Each route declares its scope where it is defined. The check runs on the route that was matched, so no spelling of a
path can mean one route to the check and another to the router.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver
from aws_lambda_powertools.event_handler.api_gateway import ResponseBuilder, Route
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from tidegate.errors import DomainError
from tidegate.web.authentication import SCOPES, Scope, current_caller
from tidegate.web.body import text_body

KEYED_PATHS = "/v1/"


class ScopeNotDeclared(Exception):
    """A route was registered without a scope, with two, or with one that does not fit its path."""


class ScopedResolver(APIGatewayHttpResolver):
    """`scopes` has the scope of every (method, rule). Registering a route without one raises ScopeNotDeclared."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scopes: dict[tuple[str, str], Scope] = {}

    def include_router(self, router: APIGatewayHttpRouter, prefix: str | None = None) -> None:  # type: ignore[override]
        for (method, rule), scope in getattr(router, "scopes", {}).items():
            self.declare(method, rule, scope)
        super().include_router(router, prefix)

    def declare(self, method: str, rule: str, scope: Scope) -> None:
        """Refuses a second declaration: the first of two equal routes is matched, and must keep its own scope."""
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
        try:
            self._authorize(route, route_arguments)
        except DomainError as error:
            refused = self._call_exception_handler(error, route)
            if refused is None:
                raise
            return refused
        return super()._call_route(route, route_arguments)

    def _authorize(self, route: Route, route_arguments: dict[str, str]) -> None:
        """Checks the key, its scope and its agent, and only then the body: others see no validation messages."""
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
                caller.require_agent(unquote(route_arguments["agent_id"]))
        event = self.current_event.raw_event
        event.update(body=text_body(event), isBase64Encoded=False)
