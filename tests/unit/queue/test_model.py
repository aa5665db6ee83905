"""The rules of a request's life cycle: transitions, retries and policies."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate import errors
from tidegate.errors import DomainError, WrongState
from tidegate.queue.model import (
    POLICIES,
    STATES,
    TERMINAL,
    TRANSITIONS,
    Request,
    capacities_from,
    moved,
    next_state,
    policies_from,
    retry_delay,
)

RETRYABLE = [
    errors.ServiceUnavailable,
    errors.TooManyRequests,
    errors.UpstreamError,
    errors.FetchTimeout,
    errors.ConnectionFailed,
    errors.RequestTimedOut,
    errors.WorkerLost,
]
FINAL = [
    errors.BadRequest,
    errors.Unauthorized,
    errors.Forbidden,
    errors.NotFound,
    errors.NoSpace,
    errors.UrlNotAllowed,
]


@given(st.lists(st.sampled_from(sorted(TRANSITIONS)), max_size=30))
def test_no_sequence_of_actions_leaves_the_known_states(actions: list[str]) -> None:
    request = Request("req-1", "p", "check", "no_cookie", 5, "pending", "2026-01-01T00:00:00.000Z")
    for action in actions:
        try:
            after = moved(request, action)
        except WrongState:
            assert request.status not in TRANSITIONS[action][0]
            continue
        assert after.status in STATES
        assert after.version == request.version + 1
        assert request.status not in TERMINAL or action == "retry"
        request = after


@pytest.mark.parametrize("status", ["completed", "cancelled"])
@pytest.mark.parametrize("action", sorted(TRANSITIONS))
def test_completed_and_cancelled_are_final(status: str, action: str) -> None:
    with pytest.raises(WrongState):
        next_state(action, status)


@pytest.mark.parametrize("kind", RETRYABLE)
def test_retryable_errors_are_retried_after_60_120_and_240_s(kind: type[DomainError]) -> None:
    policy = POLICIES["download"]

    assert [retry_delay(policy, used, kind()) for used in range(4)] == [60, 120, 240, None]
    assert policy.backoff(3) == 300


@pytest.mark.parametrize("kind", FINAL)
def test_final_errors_are_not_retried(kind: type[DomainError]) -> None:
    assert retry_delay(POLICIES["download"], 0, kind()) is None


def test_retry_after_is_honoured_but_never_shortens_the_delay() -> None:
    policy = POLICIES["download"]

    assert retry_delay(policy, 0, errors.TooManyRequests(retry_after=500)) == 500
    assert retry_delay(policy, 0, errors.TooManyRequests(retry_after=1)) == 60
    assert retry_delay(policy, 0, errors.TooManyRequests(retry_after=10**9)) == 24 * 3600


def test_policies_of_the_types_are_as_designed() -> None:
    table = {name: (p.timeout, p.retries, p.backoff(0), p.backoff(1)) for name, p in POLICIES.items()}

    designed = {"download": (1800, 3, 60, 120), "scan": (300, 2, 30, 30)}
    designed |= {"associate": (120, 2, 10, 10), "check": (60, 1, 5, 5)}
    assert {name: table[name] for name in designed} == designed


def test_configuration_changes_policies_and_channels() -> None:
    assert policies_from('{"scan": {"retries": 9}}')["scan"].retries == 9
    assert policies_from("") == dict(POLICIES)
    assert capacities_from('{"slow_lane": 1}')["slow_lane"] == 1
    with pytest.raises(DomainError):
        policies_from('{"scan": {"tries": 9}}')
