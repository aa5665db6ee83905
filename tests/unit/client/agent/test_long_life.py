"""Weeks of deliveries: an agent that has delivered many files holds no more than one that has delivered a few."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.patience import idle_clock, until
from tests.unit.client.conftest import StartAgent
from tests.unit.client.fakes import AgentApi, sha256
from tidegate_client.agent import daemon
from tidegate_client.agent.codes import Code
from tidegate_client.agent.daemon import Agent
from tidegate_client.agent.preheat import iso

# Kept on purpose, up to a limit: the last results, in case the API loses them, when it accepted them, and what was put
# at each path.
LIMITED = {"_done", "_accepted", "applied", "sqlite_sequence"}
SAME_EACH_ROUND = 6


def held(agent: Agent) -> dict[str, int]:
    """The entries of the agent's collections, wherever they are, the rows of its journal, descriptors and threads."""
    found: dict[str, int] = {}
    for place, size in _collections(agent, "agent", set()):
        found[place] = found.get(place, 0) + size
    read = agent._journal._read
    for (name,) in read("SELECT name FROM sqlite_master WHERE type = 'table'"):
        if name not in LIMITED:
            ((found[f"rows of {name}"],),) = read(f"SELECT count(*) FROM {name}")
    found["descriptors"] = sum(1 for _ in Path("/proc/self/fd").iterdir())
    found["threads"] = threading.active_count()
    return found


def _collections(value: Any, place: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    if id(value) in seen:
        return
    seen.add(id(value))
    inner: list[tuple[str, Any]] = []
    if isinstance(value, (dict, list, set)) or hasattr(value, "popleft"):
        yield place, len(value)
    if isinstance(value, dict):
        inner = [("[]", one) for one in list(value.values())]
    elif isinstance(value, (list, tuple)):
        inner = [("[]", one) for one in list(value)]
    elif type(value).__module__.startswith("tidegate_client"):
        names = {*getattr(value, "__dict__", {}), *getattr(type(value), "__slots__", ())} - LIMITED
        inner = [(f".{name}", getattr(value, name, None)) for name in sorted(names)]
    for name, one in inner:
        yield from _collections(one, place + name, seen)


def deliver(api: AgentApi, number: int) -> None:
    """A file of each fate: delivered, limited, cut off, preheated, with a wrong digest, refused, withdrawn."""
    content = f"round {number} ".encode() * 2_000
    ends = {api.add(f"plain-{number}-{each}", content, sequence=each): Code.DONE for each in range(SAME_EACH_ROUND)}
    ends[api.add(f"limited-{number}", content, job_id=f"job-{number}", limit_rate=10**6)] = Code.DONE
    api.store.cuts.append(5_000)
    times = {"activate_at": iso(time.time() + 0.8), "activate_until": iso(time.time() + 600)}
    ends[api.add(f"preheated-{number}", content, sequence=1, **times)] = Code.DONE
    ends[api.add(f"wrong-{number}", content, signature=sha256(b"another"))] = Code.WRONG_CONTENT
    ends[api.add(f"nobodys-{number}", content, target_user="no-such-user")] = Code.OWNER_REFUSED
    silent = f"silent-{number}"
    api.store.silent.add(silent)
    withdrawn = api.add(silent, content)
    assert {one: api.wait_for(one)["error_code"] for one in ends} == ends
    until(lambda: sum(name == silent for name, _ in api.store.requests) > 1, "it did not stall")
    # The API lists it no more.
    api.results.append({"transfer_id": withdrawn, "error_code": Code.DONE})


@pytest.mark.slow
def test_agent_holds_no_more_after_many_deliveries(
    api: AgentApi, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "FIRST_STALL_PAUSE", 0.05)
    monkeypatch.setattr(daemon, "SWEEP_EVERY", 0.5)
    agent = start_agent(patience=0.3, parallel=3, keep_partial_seconds=3).agent
    for number in range(2):
        deliver(api, number)
    until(lambda: agent._inbox.active() == 0 and agent._reporter.unreported() == 0)
    before = held(agent)
    for number in range(2, 6):
        deliver(api, number)

    def grown() -> dict[str, tuple[int, int]]:
        # Fewer than one a round: a connection or a worker's local list may be open at one moment and not at another.
        now = held(agent)
        return {name: (before.get(name, 0), size) for name, size in now.items() if size > before.get(name, 0) + 3}

    deadline = idle_clock() + 10
    while grown() and idle_clock() < deadline:
        time.sleep(0.1)
    assert grown() == {}, "before and after four more rounds"
