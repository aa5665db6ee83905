"""A rate that functions share without a table call for each request."""

from __future__ import annotations

import pytest

from tidegate.errors import RateLimited
from tidegate.projects.limits import AGENT, REQUESTS_PER_SYNC, WINDOW_SECONDS, RateLimiter
from tidegate.projects.model import AGENT_RATE


class Registry:
    def __init__(self) -> None:
        self.windows: dict[tuple[str, int], set[str]] = {}
        self.calls = 0

    def __call__(self, project_id: str, window: int, name: str) -> int:
        self.calls += 1
        known = self.windows.setdefault((project_id, window), set())
        known.add(name)
        return len(known)


def passes(limiter: RateLimiter, rate: float, now: float) -> bool:
    try:
        limiter.require("p", rate, now)
    except RateLimited:
        return False
    return True


@pytest.mark.parametrize("functions", [1, 4, 20])
def test_functions_that_share_a_flood_pass_about_the_rate_together(functions: int) -> None:
    registry, rate, flood = Registry(), 50, 2000
    limiters = [RateLimiter(registry) for _ in range(functions)]
    passed = [0] * 30
    for number in range(flood * len(passed)):
        now = 1_000_000 + number / flood
        passed[int(now) - 1_000_000] += passes(limiters[number % functions], rate, now)

    # A burst may take one second's rate at once and, in each function, the requests before it knows of the others.
    assert passed[0] <= 2 * rate + functions * 2 * REQUESTS_PER_SYNC
    assert all(0.9 * rate <= count <= 1.1 * rate for count in passed[2:]), passed
    assert registry.calls <= flood * len(passed) / REQUESTS_PER_SYNC


def test_single_function_allows_the_whole_rate_and_sets_retry_after() -> None:
    limiter = RateLimiter(Registry())
    assert [passes(limiter, 2, 100.0) for _ in range(3)] == [True, True, False]
    with pytest.raises(RateLimited) as refused:
        limiter.require("p", 2, 100.0)

    assert refused.value.retry_after == pytest.approx(0.5)
    assert passes(limiter, 2, 100.6)


def test_rate_is_whole_again_when_the_other_functions_are_gone() -> None:
    registry = Registry()
    limiters = [RateLimiter(registry) for _ in range(5)]
    for number in range(5 * REQUESTS_PER_SYNC):
        passes(limiters[number % 5], 10, 1000.0)
    alone = limiters[0]
    passed = sum(passes(alone, 10, 1030.0 + number / 100) for number in range(1000))

    assert passed >= 90


def test_ten_thousand_busy_hosts_pass_without_a_table_call() -> None:
    """All of them report at the same moment and then every second, to three functions."""
    registry = Registry()
    limiters = [RateLimiter(registry, AGENT) for _ in range(3)]
    for second in (0, 1, 2, 9, 10):
        for host in range(10_000):
            for request in range(3):
                limiters[(host + request) % 3].require(f"key-{host}", AGENT_RATE, 1000.0 + second)

    assert registry.calls == 0


@pytest.mark.parametrize("functions", [1, 20])
def test_flood_of_one_host_is_limited_and_spares_the_others(functions: int) -> None:
    registry, flood = Registry(), 3000
    limiters = [RateLimiter(registry, AGENT) for _ in range(functions)]
    passed = [0] * 60
    for number in range(flood * len(passed)):
        now = 1_000_000 + number / flood
        passed[int(now) - 1_000_000] += passes(limiters[number % functions], AGENT_RATE, now)
        if number % 1000 == 0:
            limiters[number % functions].require("another host", AGENT_RATE, now)

    assert sum(passed[:20]) <= 40 * AGENT_RATE + functions * 2 * REQUESTS_PER_SYNC
    assert all(count <= 1.2 * AGENT_RATE for count in passed[30:]), passed


def test_host_has_its_whole_rate_again_after_a_flood() -> None:
    """Although it sends too little then to learn that the other functions are gone."""
    registry = Registry()
    limiters = [RateLimiter(registry, AGENT) for _ in range(100)]
    for number in range(100 * REQUESTS_PER_SYNC * 2):
        passes(limiters[number % 100], AGENT_RATE, 1000.0)
    calls = registry.calls

    assert all(passes(limiters[0], AGENT_RATE, 1000.0 + 2 * WINDOW_SECONDS + second) for second in range(30))
    assert registry.calls == calls
