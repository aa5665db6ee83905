"""`make test` names the tests that needed a second try."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import second_try
from tests.support.template import ROOT

_FAILS_ONCE = """
from pathlib import Path

def test_passes():
    pass

def test_fails_once():
    been = Path({been!r})
    first = not been.exists()
    been.touch()
    assert not first
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    # Most of a pytest's start is the plugins.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist.plugin")
    return tmp_path / "tries"


def suite(folder: Path, name: str, text: str) -> str:
    made = folder / name
    made.mkdir()
    (made / "test_it.py").write_text(text)
    return str(made)


def test_test_that_fails_once_is_named_and_the_suite_passes(tmp_path: Path, place: Path) -> None:
    flaky = suite(tmp_path, "flaky", _FAILS_ONCE.format(been=str(tmp_path / "been")))
    steady = suite(tmp_path, "steady", "def test_passes():\n    pass\n")

    assert second_try.run(flaky, [], place) == 0
    assert second_try.run(steady, [], place) == 0

    heading, *names = second_try.say(place).splitlines()
    assert heading == "1 needed a second try:"
    assert [name.rpartition("::")[2] for name in names] == ["test_fails_once"]

    second_try.forget(place)
    assert second_try.say(place) == ""


def test_test_that_fails_twice_fails_the_suite(tmp_path: Path, place: Path) -> None:
    broken = suite(tmp_path, "broken", "def test_fails():\n    assert False\n")

    assert second_try.run(broken, [], place) == 1


def test_make_test_prints_second_tries_even_after_failures() -> None:
    recipe = re.search(r"^test:.*?\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert recipe
    steps = recipe[1].splitlines()
    assert "second_try forget" in steps[0]
    assert "second_try say; exit $$ended" in steps[-1]
