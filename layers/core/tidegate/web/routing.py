"""What every route module uses: a router, the caller, the parameters of lists, the shapes of answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel

from tidegate.common.listing import Listed
from tidegate.web.authentication import Caller, Scope, current_caller

Limit = Annotated[int, Query(ge=1, le=100, description="how many, at most")]
Cursor = Annotated[str | None, Query(max_length=4096, description="next_cursor of the page before")]
F = TypeVar("F", bound=Callable[..., Any])


class Router(APIGatewayHttpRouter):
    """Powertools' router, which knows the caller; each route says which scope it needs: `scope="read"`.

    Any other option is one of Powertools' `route`. The resolver checks the scope on the route that it matched.
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
    body = None if model is None else model.model_dump(mode="json", exclude_none=True)
    given: dict[str, str | list[str]] = {"cache-control": "no-store", **(headers or {})}
    return Response(
        status_code=status, content_type=None if body is None else "application/json", body=body, headers=given
    )


def listed(page: Listed[Any], shown: Any) -> dict[str, Any]:
    """`{items, next_cursor}`, with `next_cursor` null on the last page."""
    return {"items": [shown(item) for item in page.items], "next_cursor": page.next_cursor}
