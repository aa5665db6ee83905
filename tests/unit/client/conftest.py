from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.patience import until
from tests.unit.client.fakes import AGENT, AgentApi, Store, running_api, running_store
from tidegate_client import rates as pace
from tidegate_client.agent.daemon import Agent
from tidegate_client.agent.options import AgentOptions
from tidegate_client.client import Client


@dataclass(frozen=True)
class Running:
    agent: Agent
    thread: threading.Thread

    def stop(self) -> None:
        self.agent.stop()
        self.wait()

    def wait(self) -> None:
        until(lambda: not self.thread.is_alive(), "the agent has not ended")


StartAgent = Callable[..., Running]


@pytest.fixture
def store() -> Iterator[Store]:
    with running_store() as made:
        yield made


@pytest.fixture
def api(store: Store) -> Iterator[AgentApi]:
    with running_api(store) as made:
        yield made


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def start_agent(api: AgentApi, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StartAgent]:
    """Starts agents in threads; they are stopped at the end of the test."""
    monkeypatch.setattr(pace, "SHORTEST_ROUND", 0.1)
    monkeypatch.setattr(pace, "LONGEST_ROUND", 0.2)
    started: list[Running] = []

    def start(**changes: object) -> Running:
        options: dict[str, object] = {"state_dir": tmp_path / "state", "wait": 1, "report_every": 0.1, "push": False}
        options |= {"drain_seconds": 3.0, "patience": 1.0} | changes
        agent = Agent(Client(api.url, "key", attempts=0), AgentOptions(AGENT, root, **options))  # type: ignore[arg-type]
        thread = threading.Thread(target=agent.run)
        thread.start()
        started.append(Running(agent, thread))
        return started[-1]

    yield start
    api.ending = True
    for running in started:
        running.stop()
    # A poll that was under way when the agent stopped: its thread would meet what the next test replaces.
    until(lambda: not any(running.agent._poller.is_alive() for running in started), "a poll goes on")
