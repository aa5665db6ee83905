"""Runs last: checks which operations the pages called in all the other tests."""

from __future__ import annotations

from urllib.parse import unquote

from tests.support.console import ASKED
from tests.support.console_routes import operations, table


def pattern_of(method: str, path: str) -> str | None:
    """The operation that a call was of; a route without parameters comes before one with."""
    parts = path.strip("/").split("/")
    for name in sorted(operations(), key=lambda name: name.count("{")):
        wanted, _, route = name.partition(" ")
        theirs = route.strip("/").split("/")
        alike = all(one == unquote(other) or one.startswith("{") for one, other in zip(theirs, parts, strict=False))
        if wanted == method and len(theirs) == len(parts) and alike:
            return name
    return None


def test_tests_press_everything_that_the_console_does() -> None:
    called = {pattern_of(method, path) for method, path in ASKED}
    assert sorted(set(table()["does"]) - called) == []
