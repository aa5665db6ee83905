"""The exceptions of the client: a class for each HTTP status, with the code, status and detail of the API's answer."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# The query of a URL: of a presigned one it is a secret, as is the ticket of a WebSocket.
_QUERY = re.compile(r"\?[^\s'\"<>]*=[^\s'\"<>]*")


CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def without_queries(text: object) -> str:
    """Returns a text without the queries of its URLs, because the queries of presigned URLs are secrets."""
    return _QUERY.sub("?…", str(text))


def printable(text: str, keep: str = "") -> str:
    """Returns a text that is safe to print: control characters and those that change the text direction are escaped."""
    return CONTROLS.sub(lambda one: one[0] if one[0] in keep else one[0].encode("unicode_escape").decode(), text)


class TidegateError(Exception):
    """Base class of all errors that this package raises."""


class ConfigError(TidegateError):
    """The API address or the key is missing or malformed."""


class UsageError(TidegateError):
    """A command or call has an argument that is missing or not valid."""


class Unreachable(TidegateError):
    """The API did not answer, even after retries."""


class BadAnswer(Unreachable):
    """The answer did not come from the API: a proxy's page, a redirect, or JSON of another shape."""


class TransferError(TidegateError):
    """Bytes could not be uploaded or downloaded."""

    def __init__(self, detail: str, *, status: int | None = None) -> None:
        super().__init__(detail)
        self.status = status


class LinkExpired(TransferError):
    """S3 refused a presigned URL, which has probably expired; ask for a new one."""


class ChecksumMismatch(TransferError):
    """The received content has another size or SHA-256 than expected."""


class WaitTimeout(TidegateError):
    """The record had not ended when the timeout expired."""


class ApiError(TidegateError):
    """The API answered 4xx or 5xx.

    `request_id` is the call's id in the server's logs. `retry_after` is the number of seconds to wait, if the API gave
    one."""

    request_id: str | None = None
    retry_after: float | None = None

    def __init__(self, status: int, code: str, detail: str, errors: list[dict[str, Any]] | None = None) -> None:
        super().__init__(f"{detail} ({code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors or []


class Invalid(ApiError):
    """400, 413, 422: the request is invalid; `errors` names the fields."""


class Unauthorized(ApiError):
    """401: the key is missing or unknown."""


class Forbidden(ApiError):
    """403: the key lacks the scope for this call, or the project lacks a grant; `code` says which."""


class NotFound(ApiError):
    """404: no such record in this project."""


class Conflict(ApiError):
    """409: the record's state does not allow it, or the idempotency key was used for another body."""


class AlreadyCreated(Conflict):
    """409: this call was made before. The first answer was lost, or had a secret that is shown only once.

    `key_id`: the key that was created. If another kind of record was created, `key_id` is None, and the message names
    the record."""

    key_id: str | None = None


class Gone(ApiError):
    """410: the record existed, but is past its retention."""


class RateLimited(ApiError):
    """429: too many calls, even after retries."""


class ServerError(ApiError):
    """5xx: the API failed, even after retries."""


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


# The API's own id first; API Gateway's ids for answers that it gave without calling the API.
_REQUEST_IDS = ("x-request-id", "apigw-requestid", "x-amzn-requestid")


def request_id_of(headers: Mapping[str, str]) -> str | None:
    """Returns the id of this call in the server's logs, from the answer's headers; None if there is none."""
    lowered = {name.lower(): value for name, value in headers.items()}
    return next((lowered[name] for name in _REQUEST_IDS if lowered.get(name)), None)


def problem_of(status: int, body: bytes, headers: Mapping[str, str] | None = None) -> ApiError:
    """Returns the exception for an answer of 4xx or 5xx, also if API Gateway answered instead of the API."""
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
    lowered = {name.lower(): value for name, value in (headers or {}).items()}
    problem.request_id = request_id_of(lowered)
    wait = lowered.get("retry-after", "")
    problem.retry_after = float(wait) if wait.isascii() and wait.isdigit() else None
    if isinstance(problem, AlreadyCreated):
        problem.key_id = fields.get("key_id")
    return problem
