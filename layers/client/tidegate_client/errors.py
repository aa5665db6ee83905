"""What can go wrong, as types: one class per kind of answer, each with the problem's code, status and detail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


class TidegateError(Exception):
    """Base of everything this package raises on purpose."""


class ConfigError(TidegateError):
    """There is no API address or key to use."""


class UsageError(TidegateError):
    """The command was not given what it needs."""


class Unreachable(TidegateError):
    """No answer came, also after retrying."""


class BadAnswer(Unreachable):
    """Something answered that is not the API: a proxy's page, or a document of another shape."""


class TransferError(TidegateError):
    """Bytes could not be uploaded or downloaded."""

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


class LinkExpired(TransferError):
    """A presigned URL is no longer accepted; a fresh one may be."""


class ChecksumMismatch(TransferError):
    """The bytes that arrived are not the bytes that were promised."""


class WaitTimeout(TidegateError):
    """Watching took longer than the caller allowed."""


class ApiError(TidegateError):
    """The API answered with a problem.

    `request_id` names the call in the server's logs; `retry_after` is in how many seconds to try again, if it says so.
    """

    request_id: str | None = None
    retry_after: float | None = None

    def __init__(self, status: int, code: str, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(f"{detail} ({code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []


class Invalid(ApiError):
    """400, 413, 422: the request itself is wrong."""


class Unauthorized(ApiError):
    """401: the key is missing or unknown."""


class Forbidden(ApiError):
    """403: the key lacks the scope."""


class NotFound(ApiError):
    """404: no such record in this project."""


class Conflict(ApiError):
    """409: the record's state, or an idempotency key, does not allow it."""


class AlreadyCreated(Conflict):
    """409 to a repeat: the first answer held a secret that is not shown again. `key_id` is the key that it made."""

    key_id: str | None = None


class Gone(ApiError):
    """410: it was there, and its retention is over."""


class RateLimited(ApiError):
    """429, still after retrying."""


class ServerError(ApiError):
    """5xx, still after retrying."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Gone,
    413: Invalid,
    422: Invalid,
    429: RateLimited,
}


# The API's own, by which its logs name a call; else API Gateway's, where the API was not reached.
_REQUEST_IDS = ("x-request-id", "apigw-requestid", "x-amzn-requestid")


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """What the server's logs call an exchange."""
    told = {name.lower(): value for name, value in headers.items()}
    return next((told[name] for name in _REQUEST_IDS if told.get(name)), None)


def problem_of(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
    """The exception for an answer; API Gateway's own `{message}` answers are understood too."""
    try:
        document: Any = json.loads(body)
    except ValueError:
        document = None
    fields: Mapping[str, Any] = document if isinstance(document, dict) else {}
    detail = fields.get("detail") or fields.get("message") or fields.get("title") or f"HTTP {status}"
    errors = fields.get("errors")
    kind = _BY_STATUS.get(status, ServerError if status >= 500 else ApiError)
    code = str(fields.get("code") or f"http_{status}")
    if code == "already_created":
        kind = AlreadyCreated
    problem = kind(status, code, str(detail), errors if isinstance(errors, list) else None)
    told = {name.lower(): value for name, value in (headers or {}).items()}
    problem.request_id = request_id_of(told)
    wait = told.get("retry-after", "")
    problem.retry_after = float(wait) if wait.isascii() and wait.isdigit() else None
    if isinstance(problem, AlreadyCreated):
        problem.key_id = fields.get("key_id")
    return problem
