"""The list of accepted findings of other people's tools, and the clock by which tests wait."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from local import launcher
from tests.checks.__main__ import Finding, unaccepted
from tests.support import patience

LISTED = [{"id": "B101", "where": "layers/*", "reason": "…"}]


def test_new_finding_is_named_and_an_accepted_one_is_not() -> None:
    found = [Finding("B101", "layers/core/a.py", "assert"), Finding("B102", "layers/core/a.py", "exec")]
    assert unaccepted("bandit", found, LISTED) == ["bandit B102 layers/core/a.py: exec"]


def test_entry_without_a_finding_is_named() -> None:
    (line,) = unaccepted("bandit", [], LISTED)
    assert "B101 layers/* matches nothing" in line


def test_clock_of_deadlines_goes_slower_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "processes_per_core", lambda: 10.0)
    clock = patience._IdleClock()
    clock()
    time.sleep(0.3)
    began, really = clock(), time.monotonic()
    time.sleep(0.5)
    assert clock() - began < (time.monotonic() - really) / 5


def test_clock_of_deadlines_is_real_time_on_an_idle_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "processes_per_core", lambda: 1.0)
    clock = patience._IdleClock()
    began, really = clock(), time.monotonic()
    time.sleep(0.3)
    assert clock() - began == pytest.approx(time.monotonic() - really, rel=0.2)


def test_clock_of_deadlines_ignores_a_clock_that_a_test_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "processes_per_core", lambda: 1.0)
    clock, real = patience._IdleClock(), time.monotonic
    began = clock()
    monkeypatch.setattr(time, "monotonic", lambda: real() + 10_000)
    assert clock() - began < 5_000


def test_function_gets_more_time_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    config = launcher.PatientConfig(Timeout=10, Handler="app.handler")
    monkeypatch.setattr(launcher, "processes_per_core", lambda: 2.5)
    assert (config.get("Timeout"), config.get("Handler"), config.get("Runtime", "r")) == (25, "app.handler", "r")
    monkeypatch.setattr(launcher, "processes_per_core", lambda: 1.0)
    assert config.get("Timeout") == 10


def test_function_that_answers_callers_gets_a_minute_at_least(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("Api", (60, 319)), ("Submit", (60, 319)), ("Ingest", (29, 319))):
        worker = SimpleNamespace(config={"Timeout": 29, "FunctionName": f"tidegate-{name}Function-985f4b"})
        launcher.patient(lambda _: None)(worker)
        found = []
        for load in (1.0, 11.0):
            monkeypatch.setattr(launcher, "processes_per_core", lambda load=load: load)
            found.append(worker.config.get("Timeout"))
        assert tuple(found) == seconds
