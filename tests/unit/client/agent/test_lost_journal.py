"""A host whose journal is damaged keeps working, and still refuses older content."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.unit.client.agent.test_order import add
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi
from tidegate_client.agent import service as health
from tidegate_client.agent.codes import Code
from tidegate_client.agent.journal import Applied, Journal
from tidegate_client.agent.service import pause_as_service

V1, V2 = (random.Random(seed).randbytes(10_000) for seed in (1, 2))


def damage(state: Path, *, whole: bool = True) -> None:
    """Overwrites the whole file, or all pages but the first."""
    state.mkdir(exist_ok=True)
    file = state / "journal.sqlite"
    if whole:
        file.write_bytes(b"no database " * 1000)
        return
    with file.open("r+b") as pages:
        pages.seek(4096)
        pages.write(b"\xff" * (file.stat().st_size - 4096))


@pytest.mark.parametrize("whole", [True, False])
def test_unreadable_journal_is_renamed_and_replaced(tmp_path: Path, whole: bool) -> None:
    before = Journal(tmp_path)
    before.apply(Path("/data/f"), Applied(1, "a" * 64))
    before.close()
    damage(tmp_path, whole=whole)

    after = Journal(tmp_path, now=lambda: 1_700_000_000.5)
    after.apply(Path("/data/g"), Applied(2, "b" * 64))
    after.close()

    assert [path.name for path in tmp_path.glob("*unreadable*")] == ["journal.sqlite.unreadable-1700000000"]
    again = Journal(tmp_path)
    assert again.lost_at == 1_700_000_000
    assert again.applied(Path("/data/g")) == Applied(2, "b" * 64)
    again.close()


def test_intact_journal_has_no_loss_time(tmp_path: Path) -> None:
    for _ in range(2):
        journal = Journal(tmp_path)
        assert journal.lost_at == 0
        journal.close()


def test_lost_journal_still_refuses_older_content(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    requested_at = int(time.time() * 1000) - 60_000
    (root / "data").mkdir()
    (root / "data/f").write_bytes(V2)
    damage(tmp_path / "state")
    old = add(api, V1, requested_at)

    start_agent()

    refused = api.wait_for(old)
    assert refused["error_code"] == Code.SUPERSEDED
    assert "journal was lost" in refused["error_msg"]
    assert (root / "data/f").read_bytes() == V2
    new = add(api, V1, int(time.time() * 1000) + 60_000)
    assert api.wait_for(new)["error_code"] == 0
    assert (root / "data/f").read_bytes() == V1


def test_lost_journal_replaces_a_file_older_than_the_request(
    api: AgentApi, root: Path, tmp_path: Path, start_agent: StartAgent
) -> None:
    (root / "data").mkdir()
    (root / "data/f").write_bytes(V1)
    os.utime(root / "data/f", (time.time() - 3600, time.time() - 3600))
    damage(tmp_path / "state")
    wanted = add(api, V2, int(time.time() * 1000) - 60_000)

    start_agent()

    assert api.wait_for(wanted)["error_code"] == 0
    assert (root / "data/f").read_bytes() == V2


def test_service_whose_key_is_refused_pauses_for_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise 10,000 hosts would call an API that refuses every key by mistake every few seconds."""
    notifications: list[str] = []
    slept: list[float] = []
    monkeypatch.setattr(health, "notify_systemd", notifications.append)
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    pause_as_service(slept.append)
    assert (notifications, slept) == ([], []), "an agent that is not a service ends at once"

    monkeypatch.setenv("NOTIFY_SOCKET", "/run/somewhere")
    pause_as_service(slept.append)

    assert 300 <= sum(slept) <= 600
    assert max(slept) <= 30
    assert notifications.count("WATCHDOG=1") == len(slept)
