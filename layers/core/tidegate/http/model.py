"""Values of outgoing requests: limits, answers, and the error for each HTTP status."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tidegate import errors
from tidegate.common.json_input import read_date, read_json

MEGABYTE = 1024 * 1024
# A year. A server may name any number, even one with a thousand digits.
LONGEST_WAIT = 365 * 86400.0
REDIRECTS = frozenset({301, 302, 303, 307, 308})

_BY_STATUS: dict[int, type[errors.FetchError]] = {
    400: errors.BadRequest,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    408: errors.FetchTimeout,
    410: errors.Gone,
    425: errors.UpstreamError,
    429: errors.TooManyRequests,
    503: errors.ServiceUnavailable,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a request: the seconds to connect, between two reads, and in total; and the most bytes of the body."""

    connect: float = 5.0
    read: float = 30.0
    total: float = 60.0
    max_bytes: int = 16 * MEGABYTE


DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with its whole body. Header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    url: str

    def json(self) -> Any:
        return read_json(self.body)

    def raise_for_status(self, now: datetime | None = None) -> None:
        error = error_for(self.status, self.headers, now)
        if error:
            raise error


def error_for(status: int, headers: Mapping[str, str], now: datetime | None = None) -> errors.FetchError | None:
    """Returns the error for a status, with the seconds of Retry-After; None for 2xx and 304."""
    if 200 <= status < 300 or status == 304:
        return None
    if status < 400:
        kind: type[errors.FetchError] = errors.RedirectRefused
    elif status < 500:
        kind = _BY_STATUS.get(status, errors.RequestRefused)
    else:
        kind = _BY_STATUS.get(status, errors.UpstreamError)
    wait = retry_after_seconds(headers.get("retry-after"), now or datetime.now(UTC)) if kind.retryable else None
    return kind(f"The remote server answered {status}", retry_after=wait, upstream_status=status)


def retry_after_seconds(value: str | None, now: datetime) -> float | None:
    """Returns the seconds of a Retry-After header, a number or a date; None if it is neither."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), LONGEST_WAIT)
    at = read_date(text)
    return None if at is None else min(max(0.0, (at - now).total_seconds()), LONGEST_WAIT)
