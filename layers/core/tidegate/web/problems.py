"""Turns errors into RFC 9457 answers (`application/problem+json`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.errors import AlreadyCreated, DomainError, FieldError, Invalid

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
    """The error of a request with these Pydantic errors. Names each field and what is wrong with it."""
    fields: list[FieldError] = [
        {
            "loc": [part for part in error["loc"] if part != "request"],
            "msg": str(error["msg"]).removeprefix("Value error, "),
        }
        for error in errors
    ]
    names = ", ".join(".".join(str(part) for part in field["loc"]) for field in fields)
    return Invalid(f"these fields are not valid: {names}; `errors` says why", errors=fields)
