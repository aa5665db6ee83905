"""A host that is offline for a day: no result is lost, and old content does not replace new."""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import time_machine

from tests.support.patience import idle_clock
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, Store
from tidegate_client.agent.codes import Code
from tidegate_client.agent.inbox import FIRST_PAUSE, LONGEST_PAUSE
from tidegate_client.rates import LONGEST_IDLE_ROUND, Backoff

OLD, NEW, BIG = os.urandom(50_000), os.urandom(50_000), os.urandom(3_000_000)


def test_day_offline_loses_no_result_and_refuses_old_content(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent
) -> None:
    """It went offline with an unreported result and a part file; meanwhile a Job with older content waits."""
    first = start_agent()
    applied = api.add("app", NEW, sequence=5)
    assert api.wait_for(applied)["error_code"] == 0
    api.refuse_results = True
    unreported = api.add("unreported", OLD, sequence=6)
    store.slow["half"] = 0.05
    half = api.add("half", BIG, sequence=7)
    deadline = idle_clock() + 20
    while not (root / "data/unreported").exists() or not list((root / "data").glob(".tidegate-*.part/*")):
        assert idle_clock() < deadline
        time.sleep(0.02)
    api.unavailable = True
    first.agent.stop()
    first.stop()

    with time_machine.travel(datetime.now(timezone.utc) + timedelta(days=1, hours=1)):
        start_agent()
        time.sleep(0.5)
        api.unavailable = api.refuse_results = False
        store.slow.clear()
        stale = api.add("app", OLD, sequence=4)

        assert api.wait_for(unreported)["error_code"] == 0
        assert api.wait_for(half)["error_code"] == 0
        assert api.wait_for(stale)["error_code"] == Code.SUPERSEDED

    assert (root / "data/app").read_bytes() == NEW
    assert (root / "data/half").read_bytes() == BIG
    assert len(api.finals(unreported)) == 1
    assert not list((root / "data").glob(".tidegate-*.part/*"))


@pytest.mark.parametrize(
    ("first", "longest", "at_most"),
    [(None, None, 4000), (FIRST_PAUSE, LONGEST_PAUSE, 1000)],
    ids=["poll", "connection"],
)
def test_day_without_the_api_makes_few_attempts_with_bounded_pauses(
    first: float | None, longest: float | None, at_most: int
) -> None:
    backoff = Backoff(first, longest) if first and longest else Backoff()
    waited, tries, longest_pause = 0.0, 0, 0.0
    while waited < 86_400:
        pause = backoff.next()
        waited, tries, longest_pause = waited + pause, tries + 1, max(longest_pause, pause)

    assert tries <= at_most
    assert longest_pause <= max(LONGEST_IDLE_ROUND, LONGEST_PAUSE)


@pytest.mark.parametrize("days", [-400, 400])
def test_clock_jump_during_a_download_changes_nothing(
    api: AgentApi, store: Store, root: Path, start_agent: StartAgent, days: int
) -> None:
    store.slow["file"] = 0.03
    start_agent()
    transfer = api.add("file", BIG, sequence=1)
    deadline = idle_clock() + 20
    while not list((root / "data").glob(".tidegate-*.part/*")):
        assert idle_clock() < deadline
        time.sleep(0.02)

    with time_machine.travel(datetime.now(timezone.utc) + timedelta(days=days)):
        result = api.wait_for(transfer)

    assert result["error_code"] == 0
    assert (root / "data/file").read_bytes() == BIG
    assert result["speed"] > 0
    assert result["end_time"] > result["start_time"]
