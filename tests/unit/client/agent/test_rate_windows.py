"""Limits by time of day: what is accepted, which rate applies when, and changes while a download runs."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from tidegate_client.cli import main
from tidegate_client.rates import BothLimits, DailyLimit, DailyRate, RateLimit, RateWindow


def at(monkeypatch: pytest.MonkeyPatch, hours: int, minutes: int = 0) -> None:
    monkeypatch.setattr(time, "localtime", lambda: time.struct_time((2026, 1, 31, hours, minutes, 0, 5, 31, 0)))


NIGHT = DailyRate(1000, (RateWindow.parse("22:00-06:00", "none"), RateWindow.parse("08:30-09:00", "1K")))


@pytest.mark.parametrize(
    ("hours", "minutes", "rate"),
    [(21, 59, 1000), (22, 0, math.inf), (0, 0, math.inf), (5, 59, math.inf), (6, 0, 1000), (8, 30, 1024), (9, 0, 1000)],
)
def test_window_applies_from_its_first_to_its_last_minute(
    monkeypatch: pytest.MonkeyPatch, hours: int, minutes: int, rate: float
) -> None:
    at(monkeypatch, hours, minutes)
    assert NIGHT.now() == rate


def test_rate_changes_while_a_download_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    at(monkeypatch, 21, 59)
    limit = DailyLimit(NIGHT, clock=lambda: now[0], sleep=sleep)
    limit.take(5000)
    assert sum(slept) == pytest.approx(5)
    # Another thread has reserved a minute of the former rate.
    limit.reserve(60_000)
    at(monkeypatch, 22)
    limit.take(10**12)
    assert sum(slept) == pytest.approx(5)
    at(monkeypatch, 6)
    limit.take(2000)
    assert sum(slept) == pytest.approx(7)


def test_limit_of_a_job_applies_also_in_a_window_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, 23)
    both = BothLimits(DailyLimit(NIGHT), RateLimit(100))
    assert both.reserve(1000) == pytest.approx(10, abs=0.1)


def test_installed_service_gets_the_windows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_API_URL", "https://api.example.com")
    monkeypatch.setenv("TIDEGATE_KEY", "tg_key1_secret")
    rates = ["--limit-rate", "50M", "--limit-rate", "22:00-06:00=none", "--limit-rate", "08:00-09:00=1M"]
    words = ["agent", "install", "--print", "--agent-id", "h", "--root", str(tmp_path), *rates]
    assert main(words) == 0
    unit = capsys.readouterr().out
    assert "--limit-rate 52428800 --limit-rate 22:00-06:00=none --limit-rate 08:00-09:00=1048576" in unit


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        (["22:00-06:00=none", "05:00-07:00=1M"], "overlaps"),
        (["1M", "2M", "22:00-06:00=none"], "given twice"),
        (["24:00-06:00=none"], "no time of the day"),
        (["06:00-06:00=1M"], "ends when it begins"),
        (["22:00-06:00=fast"], "not a rate"),
        (["none"], "not a rate"),
        (["shop=22:00-06:00=none"], "not served"),
    ],
)
def test_wrong_windows_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, rates: list[str], message: str
) -> None:
    words = ["agent", "install", "--print", "--agent-id", "h", "--root", str(tmp_path)]
    try:
        code: object = main([*words, *(word for one in rates for word in ("--limit-rate", one))])
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert message in capsys.readouterr().err
