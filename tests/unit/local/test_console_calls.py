"""A run of the browser suite fails if its tests left out an operation that the console calls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.browser import conftest as browser_suite
from tests.support import console
from tests.support.console_routes import never_called, table


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, str]]:
    calls: set[tuple[str, str]] = set()
    monkeypatch.setattr(console, "API_CALLS", calls)
    monkeypatch.setattr(browser_suite, "API_CALLS", calls)
    return calls


def every_call() -> list[tuple[str, str]]:
    operations = [name.partition(" ") for name in table()["does"]]
    return [(method, route.replace("{", "").replace("}", "-1")) for method, _, route in operations]


def config(**more: Any) -> Any:
    """Of a run, or of one of its processes, in which all files were collected."""
    made = SimpleNamespace(
        stash=pytest.Stash(), option=SimpleNamespace(keyword="", lf=False, collectonly=False), **more
    )
    folder = Path(browser_suite.__file__).parent
    items = [SimpleNamespace(path=path) for path in folder.glob("test_*.py")]
    browser_suite.pytest_collection_modifyitems(made, items)  # type: ignore[arg-type]
    return made


def finished(of: Any, status: int = 0) -> int:
    session = SimpleNamespace(config=of, exitstatus=status)
    browser_suite.pytest_sessionfinish(session, status)  # type: ignore[arg-type]
    return int(session.exitstatus)


def process_that_saw(calls: list[tuple[str, str]], asked: set[tuple[str, str]], run: Any) -> Any:
    """What pytest-xdist passes on when a process ends."""
    process = config(workeroutput={})
    asked.update(calls)
    assert finished(process) == 0
    asked.clear()
    return SimpleNamespace(workeroutput=process.workeroutput, config=run)


def test_calls_of_two_processes_are_counted_together(asked: set[tuple[str, str]]) -> None:
    calls = every_call()
    run = SimpleNamespace(stash=pytest.Stash())
    processes = [process_that_saw(half, asked, run) for half in (calls[::2], calls[1::2])]

    for process in processes:
        browser_suite.pytest_testnodedown(process, None)

    assert finished(run) == 0


def test_call_that_no_test_made_fails_the_run(asked: set[tuple[str, str]]) -> None:
    *calls, (method, _) = every_call()
    run = SimpleNamespace(stash=pytest.Stash())
    browser_suite.pytest_testnodedown(process_that_saw(calls, asked, run), None)

    assert [name.partition(" ")[0] for name in never_called(asked)] == [method]
    assert finished(run) == pytest.ExitCode.TESTS_FAILED


def test_single_process_is_judged_by_its_own_calls(asked: set[tuple[str, str]]) -> None:
    assert finished(config()) == pytest.ExitCode.TESTS_FAILED
    asked.update(every_call())
    assert finished(config()) == 0


def test_failed_or_partial_run_is_not_judged() -> None:
    narrowed = config()
    narrowed.option.keyword = "links"
    browser_suite.pytest_collection_modifyitems(narrowed, [])

    assert finished(narrowed) == 0
    assert finished(config(), 2) == 2
