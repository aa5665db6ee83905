from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tidegate import errors
from tidegate.http.model import Reply, error_for, retry_after_seconds

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("status", [200, 201, 204, 206, 304])
def test_success_is_no_error(status: int) -> None:
    assert error_for(status, {}) is None


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, errors.BadRequest, False),
        (401, errors.Unauthorized, False),
        (403, errors.Forbidden, False),
        (404, errors.NotFound, False),
        (410, errors.Gone, False),
        (418, errors.RequestRefused, False),
        (302, errors.RedirectRefused, False),
        (408, errors.FetchTimeout, True),
        (429, errors.TooManyRequests, True),
        (500, errors.UpstreamError, True),
        (502, errors.UpstreamError, True),
        (503, errors.ServiceUnavailable, True),
        (504, errors.UpstreamError, True),
    ],
)
def test_each_status_is_an_error_of_its_own_type(status: int, kind: type[errors.FetchError], retryable: bool) -> None:
    error = error_for(status, {})
    assert type(error) is kind
    assert (error.retryable, error.upstream_status) == (retryable, status)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        (" 5 ", 5.0),
        ("Mon, 16 Nov 2026 12:01:30 GMT", 90.0),
        ("Mon, 16 Nov 2026 11:00:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        ("Mon, 16 Nov 99999999999999999999 12:00:00 GMT", None),
        ("Mon, 16 Nov 2026 99999999999999999999:00:00 GMT", None),
        ("Mon, 16 Nov 2026 12:00:00 +99999999999999999999", None),
        ("", None),
        (None, None),
    ],
)
def test_retry_after_is_read_in_both_forms(value: str | None, seconds: float | None) -> None:
    assert retry_after_seconds(value, NOW) == seconds


def test_retryable_answer_carries_its_retry_after() -> None:
    with pytest.raises(errors.TooManyRequests) as busy:
        Reply(429, {"retry-after": "7"}, b"", "http://x/").raise_for_status()
    assert busy.value.retry_after == 7.0
