from __future__ import annotations

import pytest

from tidegate.batches.model import DAY, ItemResult, PauseWindow, Rules, WindowState, paused_until, seconds_of_day
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
