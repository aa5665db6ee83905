"""Times of day at which a batch calls nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

DAY = 24 * 3600
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")


class PauseWindow(NamedTuple):
    """Seconds since midnight UTC. One that ends before it starts goes on past midnight."""

    start: int
    end: int


def seconds_of_day(text: str) -> int:
    """`"09:30"` → 34200; ValueError if it is no time of day."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is no time of day like 09:30")
    return int(found[1]) * 3600 + int(found[2]) * 60


def paused_until(windows: Sequence[PauseWindow], now: float) -> float:
    """When calls may be made again: `now` outside all windows, else the end of the window, or of those that follow
    it without a gap."""
    until = now
    # Each window can follow on another once.
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
