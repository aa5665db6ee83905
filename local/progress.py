"""Prints a line for each step, and failures with what to do about them."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Say = Callable[[str], None]


class Failure(Exception):
    """A failure that a person can fix: what failed, and what to do about it."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.what = what
        self.advice = advice

    def __str__(self) -> str:
        return f"{self.what}\n  → {self.advice}"


def say(line: str) -> None:
    print(line, flush=True)


def silence(line: str) -> None:
    """Prints nothing: for callers, such as tests, that show progress themselves."""


@contextmanager
def step(name: str, tell: Say = say) -> Iterator[None]:
    started = time.monotonic()
    try:
        yield
    except BaseException:
        tell(f"  ✗ {name}")
        raise
    tell(f"  ✓ {name:<52} {time.monotonic() - started:5.1f} s")


def fail(failure: Failure) -> int:
    print(f"\n{failure}", file=sys.stderr, flush=True)
    return 1
