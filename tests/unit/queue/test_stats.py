"""Statistics from counts."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.common.ids import iso
from tidegate.queue.model import Request, Usage, change_of, counts_of, percentile, stats_by_type

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)


def _ended(milliseconds: int, status: str = "completed") -> Request:
    times = iso(NOON), iso(NOON + timedelta(milliseconds=milliseconds))
    return Request(
        "req-1", "prj", "check", "no_cookie", 5, status, iso(NOON), start_time=times[0], finish_time=times[1]
    )


@given(st.lists(st.integers(1, 10**8), min_size=1, max_size=200))
def test_mean_is_exact_and_p95_within_its_class(values: list[int]) -> None:
    stats = stats_by_type(("check", counts_of(_ended(value))) for value in values)["check"]

    assert stats.count == len(values)
    assert stats.mean_s == pytest.approx(sum(values) / len(values) / 1000, abs=0.001)
    exact = percentile([float(value) for value in values], 0.95) / 1000
    assert stats.p95_s is not None
    # The classes of a few milliseconds are coarse: the error is one millisecond.
    assert math.isclose(stats.p95_s, exact, rel_tol=0.16, abs_tol=0.0015)


def test_figures_have_cpu_memory_and_bytes_of_ended_requests() -> None:
    used = [Usage(100, 40, 7), Usage(300, 200, 5), Usage(200, 40, 0)]
    ended = [one.added_to(_ended(1000)) for one in used]
    running = Usage(9000, 900, 9).added_to(_ended(1000, "running"))

    stats = stats_by_type(("check", counts_of(one)) for one in [*ended, running])["check"]

    assert (stats.mean_cpu_s, stats.peak_memory_mb, stats.bytes) == (0.2, 200, 12)


@given(st.lists(st.sampled_from(["pending", "queued", "running", "completed", "failed"]), min_size=1, max_size=20))
def test_changes_of_any_sequence_add_up_to_the_last_state(states: list[str]) -> None:
    requests = [_ended(500 * number, status) for number, status in enumerate(states)]
    moves = zip([None, *requests], requests, strict=False)

    stats = stats_by_type(("check", change_of(old, new)) for old, new in moves)["check"]

    assert stats == stats_by_type([("check", counts_of(requests[-1]))])["check"]


@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentile_is_a_value_of_the_list(values: list[float]) -> None:
    found = percentile(values, 0.95)
    assert found in values
    assert sum(value <= found for value in values) >= 0.95 * len(values)
