"""Results reach the API: later if it is unavailable, again if it lost them, once if it accepted them."""

from __future__ import annotations

import logging
import random
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import until
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AGENT, AgentApi
from tidegate_client.agent import daemon
from tidegate_client.agent import inbox as reporter
from tidegate_client.agent.journal import Journal
from tidegate_client.client import Client
from tidegate_client.errors import Unauthorized
from tidegate_client.rates import Backoff, Pace

CONTENT = random.Random(5).randbytes(50_000)


@pytest.fixture(autouse=True)
def short_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Backoff.__init__, "__defaults__", (0.05, 0.4, 0, 0.5))


def test_agent_backs_off_and_recovers_when_the_api_is_unavailable(
    api: AgentApi, root: Path, start_agent: StartAgent
) -> None:
    api.unavailable = True
    transfer = api.add("f", CONTENT)
    start_agent()
    time.sleep(0.6)
    assert api.results == []

    api.unavailable = False

    assert api.wait_for(transfer)["error_code"] == 0
    assert (root / "data/f").read_bytes() == CONTENT


def test_back_off_grows_with_jitter_to_its_limit() -> None:
    backoff = Backoff(first=0.5, longest=30)

    pauses = [backoff.next() for _ in range(12)]

    ceilings = [min(30, 0.5 * 2**failures) for failures in range(12)]
    assert all(ceiling / 2 <= pause <= ceiling for pause, ceiling in zip(pauses, ceilings))
    assert len(set(pauses)) == 12


def test_result_refused_with_503_is_reported_later(api: AgentApi, root: Path, start_agent: StartAgent) -> None:
    api.refuse_results = True
    transfer = api.add("f", CONTENT)
    start_agent()
    while not (root / "data/f").exists():
        time.sleep(0.02)
    time.sleep(0.3)
    assert api.results == []

    api.refuse_results = False

    assert api.wait_for(transfer)["error_code"] == 0


def test_unreported_result_is_reported_by_the_next_process(
    api: AgentApi, tmp_path: Path, start_agent: StartAgent
) -> None:
    """As after a kill -9 between the rename and the report: the result is in the journal only."""
    transfer = api.add("f", CONTENT)
    journal = Journal(tmp_path / "state")
    journal.record({"transfer_id": transfer, "container_id": "", "error_code": 1002, "error_msg": "was wrong"})
    journal.close()

    start_agent()

    assert api.wait_for(transfer)["error_code"] == 1002
    assert api.store.requests == []


def test_reported_result_leaves_the_journal(api: AgentApi, tmp_path: Path, start_agent: StartAgent) -> None:
    transfer = api.add("f", CONTENT)
    agent = start_agent()
    api.wait_for(transfer)
    agent.stop()

    assert Journal(tmp_path / "state").pending() == []


def test_result_that_the_api_lost_is_reported_without_downloading_again(api: AgentApi, start_agent: StartAgent) -> None:
    transfer = api.add("f", CONTENT)
    start_agent()
    api.wait_for(transfer)
    asked = len(api.store.requests)

    api.results.clear()

    assert api.wait_for(transfer)["error_code"] == 0
    assert len(api.store.requests) == asked


def test_result_of_an_unknown_transfer_does_not_block_others(
    api: AgentApi, tmp_path: Path, start_agent: StartAgent
) -> None:
    api.unknown = {"tr-old"}
    transfer = api.add("f", CONTENT)
    journal = Journal(tmp_path / "state")
    for transfer_id in ("tr-old", transfer):
        journal.record({"transfer_id": transfer_id, "container_id": "", "error_code": 0})
    journal.close()

    agent = start_agent()

    assert api.wait_for(transfer)["error_code"] == 0
    agent.stop()
    assert Journal(tmp_path / "state").pending() == []


def test_inbox_is_not_polled_in_a_tight_loop(api: AgentApi, start_agent: StartAgent) -> None:
    api.store.seconds_a_chunk = 0.2
    transfer = api.add("f", CONTENT * 4)
    start_agent()
    api.wait_for(transfer)

    gaps = [later - earlier for earlier, later in zip(api.polls, api.polls[1:])]
    assert sum(1 for gap in gaps if gap < 0.05) <= 1


def test_refused_key_ends_the_agent(api: AgentApi, start_agent: StartAgent) -> None:
    api.key_status = 401

    running = start_agent()
    running.wait()

    assert isinstance(running.agent.failure, Unauthorized)


def test_agent_whose_id_another_host_has_stops_and_keeps_results(
    api: AgentApi, tmp_path: Path, start_agent: StartAgent
) -> None:
    api.refuse_results = True
    api.add("a.bin", b"tide " * 100)
    running = start_agent()
    until(lambda: api.refused)
    api.duplicate = True

    running.thread.join(20)

    assert running.agent.failure
    assert running.agent.failure.code == "agent_duplicate"
    journal = Journal(tmp_path / "state")
    assert journal.pending_count() == 1
    journal.close()


def test_every_call_names_the_process_and_the_one_before(tmp_path: Path, api: AgentApi) -> None:
    first = Journal(tmp_path / "state")
    before = first.begin_process()
    first.close()
    second = Journal(tmp_path / "state")
    client = Client(api.url, "key", attempts=0)
    client.agents.instance = now = second.begin_process()
    second.close()

    client.agents.transfers(AGENT)
    client.agents.report(AGENT, [{"transfer_id": "t", "container_id": "", "error_code": 0}])
    client.agents.tell_presence(AGENT, {})  # type: ignore[typeddict-item]

    assert api.instances == [now] * 3
    assert now.split()[1] == before
    assert len(set(now.split())) == 2


def test_idle_agent_makes_no_long_polls_and_polls_rarely() -> None:
    pace = Pace(20, active_until=60)
    assert [pace.wait(now) for now in (0, 59, 60, 600)] == [20, 20, 0, 0]

    pauses = [pace.pause(now, listed=False, new=False) for now in range(100, 110)]

    assert pauses[0] <= 5
    assert all(60 <= pause <= 120 for pause in pauses[5:])


def test_new_work_makes_an_idle_agent_poll_often() -> None:
    pace = Pace(20, active_until=0)
    pace.pause(100, listed=False, new=False)

    assert pace.pause(110, listed=True, new=True) == 0
    assert pace.wait(111) == 20
    assert pace.pause(112, listed=False, new=False) <= 1
    assert pace.wait(171) == 0


def test_api_that_refuses_the_figures_gets_the_bare_result(
    api: AgentApi, tmp_path: Path, start_agent: StartAgent
) -> None:
    api.refused_fields = {"speed"}
    transfers = [api.add(name, CONTENT) for name in "fg"]

    agent = start_agent()

    for transfer in transfers:
        result = api.wait_for(transfer)
        assert result["error_code"] == 0
        assert "speed" not in result
    agent.stop()
    assert Journal(tmp_path / "state").pending() == []


def test_journal_stays_open_for_a_report_during_the_stop(
    api: AgentApi,
    tmp_path: Path,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(daemon, "LAST_REPORT_SECONDS", 0.1)
    monkeypatch.setattr(reporter, "END_SECONDS", 0.1)
    api.seconds_a_report = 1.0
    transfer = api.add("f", CONTENT)
    running = start_agent()
    until(lambda: api.reports_under_way)

    running.stop()
    api.wait_for(transfer)
    until(lambda: not running.agent._reporter.thread.is_alive())

    assert [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING] == []
    running.agent._journal.close()
    assert Journal(tmp_path / "state").pending() == [], "the result that the API accepted is acknowledged"


def test_file_that_arrives_within_seconds_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its result needs no other report before it; progress of one that takes longer is reported."""
    inbox, now = reporter.Inbox(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    listed: list[Any] = [{"transfer_id": name, "container_id": "", "url": ""} for name in ("tr-1", "tr-2")]
    inbox.accept_poll(listed, has_result=lambda _: False)
    inbox.advance(("tr-2", ""), 99)

    assert inbox.unreported(4.0) == []
    now[0] += 4.0
    said = inbox.unreported(4.0)
    assert [(one["transfer_id"], one["progress"]) for one in said] == [("tr-1", 0), ("tr-2", 99)]
    inbox.mark_reported(said)
    assert inbox.unreported(4.0) == []


def test_result_accepted_during_a_poll_is_not_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list was made before the result was stored; a later list that still has it shows that it was lost."""
    inbox, now = reporter.Inbox(), [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    listed: list[Any] = [{"transfer_id": "tr-1", "container_id": "", "url": ""}]
    result: Any = {"transfer_id": "tr-1", "container_id": "", "error_code": 0}
    inbox.accept_poll(listed, has_result=lambda _: False, asked_at=100.0)
    inbox.finish(result)
    now[0] += 3
    inbox.mark_accepted([result])

    assert inbox.accept_poll(listed, has_result=lambda _: False, asked_at=102.0) == ([], [])
    assert inbox.accept_poll(listed, has_result=lambda _: False, asked_at=110.0) == ([], [result])
