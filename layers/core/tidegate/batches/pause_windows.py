"""Times of day at which a batch makes no calls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

DAY = 24 * 3600
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


class PauseWindow(NamedTuple):
    """Seconds since midnight UTC. A window that ends before it starts continues past midnight."""

    start: int
    end: int


def seconds_of_day(text: str) -> int:
    """Returns 34200 for `"09:30"`. ValueError if the text is not a time of day."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a time of day like 09:30")
    return int(found[1]) * 3600 + int(found[2]) * 60


def paused_until(windows: Sequence[PauseWindow], now: float) -> float:
    """Returns when calls may be made: `now` outside all windows, else the end of the window or of windows that follow
    it without a gap."""
    until = now
    # Each window can extend the pause once.
    for _ in range(len(windows) + 1):
        moved = max((_end(window, until) for window in windows), default=until)
        if moved <= until:
            break
        until = moved
    return until


def _end(window: PauseWindow, now: float) -> float:
    since_start = (now - window.start) % DAY
    length = (window.end - window.start) % DAY
    return now + length - since_start if since_start < length else now
