"""Bars on a terminal; without one, a line now and then."""

from __future__ import annotations

import shutil
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from tidegate_client.cli.output import Output, width_of

REDRAW_SECONDS = 0.1
LINE_SECONDS = 5.0
BAR_CELLS = 24
ERASE = "\r\x1b[2K"


def human_bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def human_seconds(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def bar(share: float) -> str:
    filled = round(max(0.0, min(1.0, share)) * BAR_CELLS)
    return "█" * filled + "░" * (BAR_CELLS - filled)


class Live:
    """One line that is drawn over itself on a terminal, and printed seldom elsewhere."""

    def __init__(self, output: Output, *, now: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO = output.err
        self._silent = output.as_json
        self._terminal = self._stream.isatty()
        self._now = now
        self._drawn_at = float("-inf")
        self._text = ""

    def show(self, text: str, *, important: bool = False) -> None:
        """`important`: a change of state, shown also where there is no terminal."""
        every = REDRAW_SECONDS if self._terminal else LINE_SECONDS
        if self._silent or text == self._text or (not important and self._now() - self._drawn_at < every):
            return
        self._drawn_at, self._text = self._now(), text
        if not self._terminal:
            print(text, file=self._stream, flush=True)
            return
        room = shutil.get_terminal_size().columns - 1
        while width_of(text) > room:
            text = text[:-1]
        print(f"{ERASE}{text}", end="", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """A line that stays, above the one that moves."""
        if not self._silent:
            print(f"{ERASE}{text}" if self._terminal else text, file=self._stream, flush=True)
            self._text = ""

    def close(self) -> None:
        if self._terminal and self._text and not self._silent:
            print(file=self._stream, flush=True)


class Speed:
    """Bytes a second over the last half minute, so that the estimate follows a source that slows down."""

    _SECONDS = 30.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, done: int | None) -> float | None:
        """The speed, `done` bytes being here now; None while it is not known."""
        if done is None:
            return None
        if self._seen and done < self._seen[-1][1]:
            # Begun anew.
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done - before) / (now - since) if done > before and now > since else None


class ByteBar:
    """Progress of an upload or a download: called with (done, total)."""

    def __init__(self, output: Output, label: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self._live = Live(output, now=now)
        self._label = label
        self._now = now
        self._speed = Speed()

    def __call__(self, done: int, total: int | None) -> None:
        speed = self._speed.at(self._now(), done)
        amount = human_bytes(done)
        if total:
            amount = f"{bar(done / total)} {done * 100 // total:3d} %  {amount} of {human_bytes(total)}"
        left = f"  {human_seconds((total - done) / speed)} left" if speed and total and done < total else ""
        pace = f"  {human_bytes(speed)}/s" if speed else ""
        self._live.show(f"{self._label}  {amount}{pace}{left}", important=done == total)

    def close(self) -> None:
        self._live.close()
