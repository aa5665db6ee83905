from __future__ import annotations

from math import inf

import pytest

from tidegate.batches.model import (
    DAY,
    ItemResult,
    PauseWindow,
    Rules,
    WindowState,
    paused_until,
    seconds_of_day,
    time_after_calls,
)
from tidegate.batches.run_state import RunState

HOUR = 3600
NIGHT = PauseWindow(22 * HOUR, 6 * HOUR)


def test_pause_window_may_cross_midnight() -> None:
    assert paused_until([NIGHT], 21 * HOUR) == 21 * HOUR
    assert paused_until([NIGHT], 23 * HOUR) == DAY + 6 * HOUR
    assert paused_until([NIGHT], 5 * HOUR) == 6 * HOUR
    assert paused_until([NIGHT], 6 * HOUR) == 6 * HOUR


def test_adjacent_pause_windows_are_one_pause() -> None:
    noon, after = PauseWindow(12 * HOUR, 13 * HOUR), PauseWindow(13 * HOUR, 14 * HOUR)
    assert paused_until([after, noon], 12.5 * HOUR) == 14 * HOUR


def test_pause_windows_that_cover_the_day_do_not_loop() -> None:
    halves = [PauseWindow(0, 12 * HOUR), PauseWindow(12 * HOUR, 0)]
    assert paused_until(halves, 100.0) > 100.0


@pytest.mark.parametrize(
    ("now", "hours", "end"),
    [
        (20, 1, 21),
        (20, 2, 22),
        (20, 3, 24 + 7),
        (23, 1, 24 + 7),
        (8, 16, 24 + 8),
        (8, 14 + 2 * 16, 2 * 24 + 22),
        (8, 14 + 100 * 16 + 1, 101 * 24 + 7),
    ],
)
def test_calls_that_meet_pauses_end_later(now: int, hours: int, end: int) -> None:
    assert time_after_calls([NIGHT], now * HOUR, hours * HOUR) == end * HOUR


def test_calls_between_several_pauses_end_as_if_followed_second_by_second() -> None:
    windows = [NIGHT, PauseWindow(5 * HOUR, 7 * HOUR), PauseWindow(12 * HOUR, 13 * HOUR), PauseWindow(9, 9)]
    for now, seconds in ((0, 100), (21 * HOUR, 4 * HOUR), (6 * HOUR, 40 * HOUR), (12 * HOUR, 14 * HOUR + 60)):
        moment, left = float(now), seconds
        while left:
            moment, paused = moment + 60, paused_until(windows, moment) > moment
            left -= 0 if paused else 60 if left >= 60 else left
        assert time_after_calls(windows, now, seconds) == pytest.approx(moment, abs=60)


def test_calls_that_are_always_paused_never_end() -> None:
    assert time_after_calls([PauseWindow(0, 12 * HOUR), PauseWindow(12 * HOUR, 0)], 0, 1) == inf
    assert time_after_calls([], 5, 7) == 12


@pytest.mark.parametrize("text", ["24:00", "9:00", "09:60", "", "09:00:00"])
def test_invalid_time_of_day_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a time of day"):
        seconds_of_day(text)


def test_paused_batch_makes_no_calls_until_window_ends() -> None:
    noon = 12.0 * HOUR
    rules = Rules(rate=10, pause_windows=(PauseWindow(12 * HOUR, 13 * HOUR),))
    state = RunState(5, rules, WindowState(0), now=noon)
    assert isinstance(state.next(noon + 1), float)
    assert state.next_at(noon + 1) == 13 * HOUR
    calls = state.next(13.0 * HOUR)
    assert isinstance(calls, tuple)
    state.record(calls[0], ItemResult("ok"), 13.0 * HOUR)
    assert state.window.position == 1
