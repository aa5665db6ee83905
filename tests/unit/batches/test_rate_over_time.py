"""The rate over any ten seconds, in simulated time, across slices and runners."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from itertools import pairwise

import pytest

from tidegate.batches.model import Carried, ItemCall, ItemResult, Rules, WindowState
from tidegate.batches.run_state import RunState

WINDOW = 10.0
# A sleeping thread wakes up this late at most.
JITTER = 0.004
CALL_SECONDS = 0.02


def call_times(
    rate: float, seconds: float, slice_seconds: float, seed: int, items_per_call: int = 1, most_gap: float = 0.05
) -> list[float]:
    """Returns the times of the calls, over many slices, each of which continues from the state of the last."""
    chance = random.Random(seed)
    moments: list[float] = []
    window, carried, now = WindowState(0), Carried(), 0.0
    while now < seconds:
        rules = Rules(rate=rate, items_per_call=items_per_call)
        state = RunState(10**9, rules, window, now, carried=carried)
        ends, under_way = now + slice_seconds, list[tuple[float, int]]()
        while now < ends:
            while under_way and under_way[0][0] <= now:
                _, index = heapq.heappop(under_way)
                state.record(ItemCall(index, 1), ItemResult("ok"), now)
            step = state.next(now)
            assert step is not None
            if isinstance(step, float):
                # Sleep like a worker: not far beyond the end of the slice, with a late wake-up.
                now += min(max(step, 0.0005), max(ends - now, 0.0005)) + chance.uniform(0, JITTER)
                continue
            moments += [now] * len(step)
            for call in step:
                heapq.heappush(under_way, (now + CALL_SECONDS, call.index))
        for _, index in under_way:
            state.record(ItemCall(index, 1), ItemResult("ok"), now)
        # Ending one function and starting the next takes some time.
        now += chance.uniform(most_gap / 2, most_gap)
        window, carried = state.window.state(), state.carry()
    return [moment for moment in moments if moment < seconds]


def counts_in_any_window(moments: Sequence[float], length: float) -> tuple[int, int]:
    """Returns (fewest, most) calls in any interval of this length between the first call and the last."""
    fewest, most, first = len(moments), 0, 0
    for last, moment in enumerate(moments):
        while moment - moments[first] >= length:
            first += 1
            # The interval that begins just after the call before `first` and ends before this one.
            if moments[first - 1] + length < moments[-1]:
                fewest = min(fewest, last - first)
        most = max(most, last - first + 1)
    return fewest, most


@pytest.mark.parametrize("rate", [2, 10, 100, 700, 2000])
def test_rate_over_any_ten_seconds_is_within_five_percent(rate: float) -> None:
    moments = call_times(rate, seconds=35, slice_seconds=7, seed=int(rate))
    fewest, most = counts_in_any_window(moments, WINDOW)
    # One call may fall on either side of the edge.
    assert most <= math.ceil(rate * WINDOW * 1.05) + 1
    assert fewest >= math.floor(rate * WINDOW * 0.95) - 1


@pytest.mark.parametrize("rate", [10, 700])
def test_slow_hand_over_causes_no_burst(rate: float) -> None:
    """As on AWS: long slices, and up to half a second between the last call of one and the first of the next."""
    moments = call_times(rate, seconds=95, slice_seconds=30, seed=7, most_gap=0.45)
    fewest, most = counts_in_any_window(moments, WINDOW)
    assert rate * WINDOW * 0.95 - 1 <= fewest <= most <= rate * WINDOW * 1.05 + 1


@pytest.mark.parametrize("rate", [0.001, 0.01, 0.5])
def test_calls_at_very_low_rates_are_evenly_spaced(rate: float) -> None:
    moments = call_times(rate, seconds=12 / rate, slice_seconds=2.5 / rate, seed=3)
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    assert len(moments) == pytest.approx(12, abs=1)
    assert all(gap == pytest.approx(1 / rate, rel=0.05) for gap in gaps), gaps


def test_ten_runners_together_keep_the_rate() -> None:
    moments = sorted(
        moment for seed in range(10) for moment in call_times(100, seconds=31, slice_seconds=6.5, seed=seed)
    )
    fewest, most = counts_in_any_window(moments, WINDOW)
    assert 1000 * WINDOW * 0.95 <= fewest <= most <= 1000 * WINDOW * 1.05


def test_calls_of_hundred_items_keep_the_rate_of_items() -> None:
    moments = call_times(2000, seconds=31, slice_seconds=7, seed=5, items_per_call=100)
    fewest, most = counts_in_any_window(moments, WINDOW)
    assert 20_000 * 0.95 <= fewest <= most <= 20_000 * 1.05
