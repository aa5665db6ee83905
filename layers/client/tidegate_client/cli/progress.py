"""Progress: a bar on a terminal, otherwise a line every few seconds."""

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
    """A status line: redrawn in place on a terminal, printed every few seconds elsewhere."""

    def __init__(self, output: Output, *, now: Callable[[], float] = time.monotonic) -> None:
        self._stream: TextIO = output.err
        self._silent = output.as_json
        self._terminal = self._stream.isatty()
        self._now = now
        self._drawn_at = float("-inf")
        self._text = ""

    def show(self, text: str, *, important: bool = False) -> None:
        """Shows the text. `important`: a change of state, which is shown at once."""
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

    def print_line(self, text: str) -> None:
        """Prints a line that stays, above the status line."""
        if not self._silent:
            print(f"{ERASE}{text}" if self._terminal else text, file=self._stream, flush=True)
            self._text = ""

    def close(self) -> None:
        if self._terminal and self._text and not self._silent:
            print(file=self._stream, flush=True)


class Speed:
    """Bytes a second over the last 30 seconds, so that the estimate follows changes of speed."""

    _SECONDS = 30.0

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def at(self, now: float, done: int | None) -> float | None:
        """The speed, given that `done` bytes have arrived; None while it is unknown."""
        if done is None:
            return None
        if self._seen and done < self._seen[-1][1]:
            # The download started again.
            self._seen.clear()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= self._SECONDS:
            self._seen.popleft()
        since, before = self._seen[0]
        return (done - before) / (now - since) if done > before and now > since else None


class ByteBar:
    """Shows the progress of an upload or download; called with (bytes done, bytes in total)."""

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
