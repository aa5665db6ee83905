"""A resolver that lets a caller reach only the routes that its key's scopes cover.

Each route declares its scope where it is defined. The check runs on the route that was matched, so no spelling of a
path can be read in one way by the check and in another by the router.
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
    """`scopes` holds (method, rule) of every route; registering a route that is not in it raises."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.scopes: dict[tuple[str, str], Scope] = {}

    def include_router(self, router: APIGatewayHttpRouter, prefix: str | None = None) -> None:  # type: ignore[override]
        for (method, rule), scope in getattr(router, "scopes", {}).items():
            self.declare(method, rule, scope)
        super().include_router(router, prefix)

    def declare(self, method: str, rule: str, scope: Scope) -> None:
        """Once a route: of two routes with one rule the first is matched, and must not get the second one's scope."""
        if (method, rule) in self.scopes:
            raise ScopeNotDeclared(f"{method} {rule} is declared twice")
        self.scopes[method, rule] = scope

    def route(self, rule: str, method: Any, *args: Any, **options: Any) -> Callable[..., Any]:
        for one in (method,) if isinstance(method, str) else method:
            scope = self.scopes.get((one, rule))
            if scope not in SCOPES:
                raise ScopeNotDeclared(f"{one} {rule} has the scope {scope!r}; declare one of {', '.join(SCOPES)}")
            if scope == "agent" and "<agent_id>" not in rule:
                raise ScopeNotDeclared(f"{one} {rule} has the scope agent, but no <agent_id> in its path")
        return super().route(rule, method, *args, **options)

    def _call_route(self, route: Route, route_arguments: dict[str, str]) -> ResponseBuilder[Any]:
        try:
            self._admit(route, route_arguments)
        except DomainError as error:
            refused = self._call_exception_handler(error, route)
            if refused is None:
                raise
            return refused
        return super()._call_route(route, route_arguments)

    def _admit(self, route: Route, route_arguments: dict[str, str]) -> None:
        """Key, scope and own agent first, then the body: a stranger learns nothing from validation messages."""
        scope = self.scopes.get((route.method, route.path))
        if scope is None:
            # No route matched: Powertools calls one of its own, which answers 404 or 405.
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
