"""What every route module uses: a router, the caller, the parameters of lists, the shapes of answers."""

from __future__ import annotations

from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter
from pydantic import BaseModel

from tidegate.common.listing import Listed
from tidegate.web.authentication import Caller, current_caller

Limit = Annotated[int, Query(ge=1, le=100, description="how many, at most")]
Cursor = Annotated[str | None, Query(max_length=4096, description="next_cursor of the page before")]


class Router(APIGatewayHttpRouter):
    """Powertools' router, which knows the caller."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @property
    def caller(self) -> Caller:
        return current_caller()


def answer(model: BaseModel | None, status: int = 200, headers: dict[str, str] | None = None) -> Response[Any]:
    body = None if model is None else model.model_dump(mode="json", exclude_none=True)
    given: dict[str, str | list[str]] = {"cache-control": "no-store", **(headers or {})}
    return Response(
        status_code=status, content_type=None if body is None else "application/json", body=body, headers=given
    )


def listed(page: Listed[Any], shown: Any) -> dict[str, Any]:
    """`{items, next_cursor}`, with `next_cursor` null on the last page."""
    return {"items": [shown(item) for item in page.items], "next_cursor": page.next_cursor}
