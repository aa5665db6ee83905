"""RFC 9457: the one place where errors become answers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.errors import AlreadyCreated, DomainError, FieldError

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
        body |= error.made
    return body


def problem(error: DomainError) -> Response[str]:
    headers: dict[str, str | list[str]] = {"cache-control": "no-store"}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    # What was refused is told by its name, which may hold half a surrogate pair; UTF-8 cannot.
    body = json.dumps(problem_body(error), ensure_ascii=False).encode("utf-8", "replace").decode()
    return Response(status_code=error.status, content_type=CONTENT_TYPE, body=body, headers=headers)


def field_errors(errors: Iterable[dict[str, Any]]) -> list[FieldError]:
    return [
        {"loc": [part for part in error["loc"] if part != "request"], "msg": _plain(error["msg"])} for error in errors
    ]


def _plain(message: object) -> str:
    """Without pydantic's own opening, which tells a caller nothing."""
    return str(message).removeprefix("Value error, ")
