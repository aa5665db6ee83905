"""Several projects in one process: an agent for each, one bandwidth limit, one page of health and metrics."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tidegate_client.agent.daemon import Agent
from tidegate_client.agent.options import AgentOptions
from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.agent.service.health import local_pages, notify_systemd
from tidegate_client.client import Client
from tidegate_client.config import Config
from tidegate_client.errors import ApiError
from tidegate_client.proxies import make_pool

log = logging.getLogger("tidegate.agent")
# The name of the project that the process was started for.
FIRST = "default"
# Each agent reports every second that it is healthy.
HEALTHY_SECONDS = 10.0


@dataclass(slots=True)
class GroupNotifier:
    """Notifies systemd for all agents of the process: ready when all are ready, alive while all are healthy."""

    ready: set[str] = field(default_factory=set)
    healthy_at: dict[str, float] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    names: set[str] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def notify(self, name: str, state: str) -> None:
        with self._lock:
            if state == "READY=1":
                self.ready.add(name)
                if self.ready | self.ended == self.names:
                    notify_systemd(state)
            elif state == "WATCHDOG=1":
                self.healthy_at[name] = now = time.monotonic()
                running = self.names - self.ended
                if all(now - self.healthy_at.get(one, float("-inf")) < HEALTHY_SECONDS for one in running):
                    notify_systemd(state)
            elif state == "STOPPING=1":
                self.ended.add(name)
                if self.ended == self.names:
                    notify_systemd(state)


class AgentGroup:
    """Runs the agents. If a key is refused, only its agent ends; `failure` is set if all keys were refused."""

    def __init__(self, agents: dict[str, Agent], notifier: GroupNotifier, metrics: tuple[str, int] | None) -> None:
        self._agents = agents
        self._metrics = metrics
        notifier.names |= agents.keys()

    def stop(self) -> None:
        for agent in self._agents.values():
            agent.stop()

    @property
    def restarting(self) -> bool:
        return any(agent.restarting for agent in self._agents.values())

    @property
    def failure(self) -> ApiError | None:
        failures = [agent.failure for agent in self._agents.values()]
        return failures[0] if all(failures) else None

    def run(self) -> None:
        """Returns when all agents have ended. When one must restart as a new version, all stop."""
        threads = [
            threading.Thread(target=self._run_one, args=(name, agent), name=f"agent-{name}")
            for name, agent in self._agents.items()
        ]
        with contextlib.ExitStack() as stack:
            if self._metrics:
                stack.enter_context(local_pages(*self._metrics, self.health, self.metrics))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _run_one(self, name: str, agent: Agent) -> None:
        agent.run()
        if agent.restarting:
            self.stop()
        elif agent.failure:
            log.error(
                "the API refuses the key of the login %r; its project gets no files on this host "
                "until the agent is restarted with a valid key: %s",
                name,
                agent.failure,
            )

    def health(self) -> Any:
        found = {name: agent.health() for name, agent in self._agents.items() if agent.failure is None}
        refused = [f"{name}: the API refuses its key" for name, agent in self._agents.items() if agent.failure]
        problems = refused + [f"{name}: {problem}" for name, one in found.items() for problem in one["problems"]]
        return {"healthy": not problems, "problems": problems, "agents": found}

    def metrics(self) -> str:
        return merged_metrics({name: agent.metrics() for name, agent in self._agents.items()})


def merged_metrics(pages: dict[str, str]) -> str:
    """One page of metrics. Each sample gets the label `profile`; HELP and TYPE come once, before the samples."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for name, page in pages.items():
        for line in page.splitlines():
            if line.startswith("#"):
                metric = line.split()[2]
                lines = heads.setdefault(metric, [])
                if line not in lines:
                    lines.append(line)
            elif line:
                metric, labelled = _labelled(line, name)
                samples.setdefault(metric, []).append(labelled)
    every = [line for metric, lines in samples.items() for line in (*heads.get(metric, ()), *lines)]
    return "\n".join(every) + "\n"


def _labelled(line: str, profile: str) -> tuple[str, str]:
    sample, _, value = line.rpartition(" ")
    metric, brace, labels = sample.partition("{")
    rest = f",{labels}" if brace else "}"
    return metric, f'{metric}{{profile="{profile}"{rest} {value}'


def make_group(client: Client, others: Mapping[str, Config], options: AgentOptions) -> AgentGroup:
    """Agents for all logins. Only the first one listens for peers and may update the process."""
    limit, notifier = RateLimit(options.limit_rate) if options.limit_rate else None, GroupNotifier()
    agents = {FIRST: Agent(client, replace(options, metrics=None), limit=limit, notify=partial(notifier.notify, FIRST))}
    for name, config in others.items():
        pool = make_pool(options.proxy, maxsize=4)
        mine = Client(config.required_url(), config.key, attempts=0, pool=pool)
        swarm = replace(options.swarm, listen=()) if options.swarm else None
        state = options.state_dir / f"also-{name}"
        changed = replace(options, state_dir=state, metrics=None, self_update=False, swarm=swarm)
        agents[name] = Agent(mine, changed, limit=limit, notify=partial(notifier.notify, name))
    return AgentGroup(agents, notifier, options.metrics)
