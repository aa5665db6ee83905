"""Shared by all route modules: the router, the parameters of lists, and how answers are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel

from tidegate.web.authentication import Caller, Scope, current_caller

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
