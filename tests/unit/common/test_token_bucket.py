from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidegate.common.token_bucket import TokenBucket


def calls(bucket: TokenBucket, start: float, seconds: float, stalls: list[float] | None = None) -> list[float]:
    """The times of the calls of one caller that sleeps exactly as told, except for the stalls."""
    now, made, late = start, [], iter(stalls or [])
    while now < start + seconds:
        wait = bucket.take(now)
        if wait:
            now += wait
        else:
            made.append(now)
            now += next(late, 0.0)
    return made


def busiest_second(moments: list[float]) -> int:
    return max((sum(1 for other in moments if moment <= other < moment + 1) for moment in moments), default=0)


@given(st.floats(0.5, 300))
def test_rate_is_kept(rate: float) -> None:
    made = calls(TokenBucket(rate, 0.0), 0.0, 4.0)
    assert abs(len(made) - 4 * rate) <= 2


@given(st.floats(1, 200), st.lists(st.floats(0, 0.5), max_size=50))
def test_late_caller_never_exceeds_the_rate_by_a_tenth(rate: float, stalls: list[float]) -> None:
    assert busiest_second(calls(TokenBucket(rate, 0.0), 0.0, 3.0, stalls)) <= max(rate + 2, rate * 1.1)


def test_changed_rate_holds_at_once() -> None:
    bucket = TokenBucket(10, 0.0)
    assert len(calls(bucket, 0.0, 1.0)) in (10, 11)
    bucket.change_rate(100, 1.0)
    assert 99 <= len(calls(bucket, 1.0, 1.0)) <= 102
    bucket.change_rate(1, 2.0)
    assert len(calls(bucket, 2.0, 3.0)) in (3, 4)
