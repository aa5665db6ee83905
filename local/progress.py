"""Prints the progress of steps, and failures with what to do about them.

On a terminal, a running step has a moving line. `python local/progress.py TITLE SECONDS COMMAND…` runs a command with
such a line. The Makefile uses it before there is a .venv, so this module imports only the standard library."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

Say = Callable[[str], None]
ERASE = "\r\x1b[2K"
REDRAW_SECONDS = 0.2
_TIMES = Path(".local/times")


class Failure(Exception):
    """A failure that a person can fix: what failed, and what to do about it."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.advice}"


def say(line: str) -> None:
    """Prints a line, over a moving line if there is one."""
    # On a terminal, over a moving line if there is one.
    print(f"{ERASE}{line}" if sys.stdout.isatty() else line, flush=True)


def silence(line: str) -> None:
    """Prints nothing. Used by callers, such as tests, that show progress themselves."""


def clock(seconds: float) -> str:
    """Formats seconds as 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def moving_line(text: str) -> None:
    """Draws the line in place. The next output overwrites it."""
    text = text[: shutil.get_terminal_size().columns - 1]
    print(f"{ERASE}{text}", end="\r", flush=True)


@contextmanager
def moving(title: Callable[[], str], usual: float | None) -> Iterator[None]:
    """While the block runs, shows the title, the time passed, and how much time is usually left.

    Shows nothing if the output is not a terminal."""
    if not sys.stdout.isatty():
        yield
        return
    over, began = threading.Event(), time.monotonic()

    def draw() -> None:
        while not over.wait(REDRAW_SECONDS):
            passed = time.monotonic() - began
            left = f", about {clock(usual - passed)} left" if usual and passed < usual else ""
            moving_line(f"  … {title()}  {clock(passed)}{left}")

    drawing = threading.Thread(target=draw, daemon=True)
    drawing.start()
    try:
        yield
    finally:
        over.set()
        drawing.join()
        print(ERASE, end="", flush=True)


@contextmanager
def step(name: str, tell: Say = say) -> Iterator[None]:
    """Runs the block as a named step and prints how long it took, or that it failed."""
    started = time.monotonic()
    try:
        if tell is say:
            with moving(lambda: name, usual_seconds(name)):
                yield
        else:
            yield
    except BaseException:
        tell(f"  ✗ {name}")
        raise
    seconds = time.monotonic() - started
    remember(name, seconds)
    tell(f"  ✓ {name:<52} {seconds:5.1f} s")


def fail(failure: Failure) -> int:
    """Prints the failure and returns exit code 1."""
    print(f"\n{failure}", file=sys.stderr, flush=True)
    return 1


def usual_seconds(name: str, otherwise: float | None = None, place: Path = _TIMES) -> float | None:
    """Returns how long the step took the last time on this machine, else `otherwise`."""
    try:
        return float((place / _file_name(name)).read_text())
    except (OSError, ValueError):
        return otherwise


def remember(name: str, seconds: float, place: Path = _TIMES) -> None:
    """Stores how long the step took, as the estimate for the next time."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / _file_name(name)).write_text(f"{seconds:.1f}")
    except OSError:
        # Only an estimate is lost.
        return


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() else "-" for char in name)


def run(title: str, otherwise: float, command: list[str], place: Path = _TIMES) -> int:
    """Runs a command with a moving line that shows the last line of its output.
    If it fails, prints all of the output."""
    if not sys.stdout.isatty():
        say(f"  … {title}")
    began, printed = time.monotonic(), [""]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, errors="replace"
    )
    assert process.stdout
    with moving(lambda: f"{title}: {printed[-1]}" if printed[-1] else title, usual_seconds(title, otherwise, place)):
        for line in process.stdout:
            printed += [line.strip()] if line.strip() else []
        code = process.wait()
    if code:
        say("\n".join(printed[1:]))
        say(f"  ✗ {title}")
        return code
    remember(title, time.monotonic() - began, place)
    say(f"  ✓ {title:<52} {time.monotonic() - began:5.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))
