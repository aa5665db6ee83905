"""Collects the agent's health and metrics."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tidegate_client.agent.disk.partials import Partials
from tidegate_client.agent.inbox import Inbox
from tidegate_client.agent.journal import JournalError
from tidegate_client.agent.options import AgentOptions
from tidegate_client.agent.reporter import Reporter
from tidegate_client.agent.service.health import Health
from tidegate_client.agent.service.statistics import Labels, Statistics, prometheus_text
from tidegate_client.agent.service.supervisor import SupervisedThread

# Longer than the longest poll, its time-out margin and the longest back-off together.
SILENT_SECONDS = 120.0


class Monitor:
    def __init__(
        self,
        options: AgentOptions,
        statistics: Statistics,
        inbox: Inbox,
        reporter: Reporter,
        partials: Partials,
        poller: SupervisedThread,
        workers: Sequence[SupervisedThread],
        connected: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connected = connected
        self._options = options
        self._statistics = statistics
        self._inbox = inbox
        self._reporter = reporter
        self._partials = partials
        # These two must show progress regularly. A worker may wait for work, or for bytes, for a long time.
        self._beating = (poller, reporter.thread)
        self._threads = (*self._beating, *workers)
        self._last_poll: float | None = None

    def polled(self) -> None:
        self._last_poll = time.monotonic()
        self._statistics.add("polls_total", result="ok")

    def health(self) -> Health:
        problems = self._problems()
        return {
            "agent_id": self._options.agent_id,
            "pid": os.getpid(),
            "time": time.time(),
            "healthy": not problems,
            "problems": problems,
            "connected": self._connected(),
            "active": self._inbox.active(),
            "untold_results": _or_minus_one(self._reporter.unreported),
            "partial_bytes": _or_minus_one(self._partials.total_bytes),
            "free_bytes": -1 if (free := free_bytes(self._options.root)) is None else free,
            "last_poll_seconds": -1 if self._last_poll is None else round(time.monotonic() - self._last_poll, 1),
            "restarts": {thread.name: thread.restarts for thread in self._threads},
        }

    def _problems(self) -> list[str]:
        problems = [
            f"the thread {thread.name} has ended; restart the agent"
            for thread in self._threads
            if not thread.is_alive()
        ]
        problems += [
            f"the thread {thread.name} has made no progress for {thread.silent_seconds():.0f} s"
            for thread in self._beating
            if thread.silent_seconds() > SILENT_SECONDS
        ]
        if self._reporter.unsaved():
            problems.append(f"the journal in {self._options.state_dir} cannot be written; is the disk full?")
        if free_bytes(self._options.root) is None:
            problems.append(f"{self._options.root} cannot be read; does it exist, and is it mounted?")
        return problems

    def metrics(self) -> str:
        health = self.health()
        samples: dict[tuple[str, Labels], float] = dict(self._statistics.counts())
        for name, count in health["restarts"].items():
            samples["thread_restarts_total", (("thread", name),)] = count
        samples["active_transfers", ()] = health["active"]
        samples["untold_results", ()] = health["untold_results"]
        samples["partial_bytes", ()] = health["partial_bytes"]
        samples["free_bytes", ()] = health["free_bytes"]
        samples["seconds_since_last_poll", ()] = health["last_poll_seconds"]
        samples["connected", ()] = int(self._connected())
        samples["healthy", ()] = int(health["healthy"])
        return prometheus_text(samples)


def free_bytes(root: Path) -> int | None:
    """Free bytes of the root's file system; None if the root is gone, as after an unmount."""
    try:
        return shutil.disk_usage(root).free
    except OSError:
        return None


def _or_minus_one(read: Callable[[], int]) -> int:
    try:
        return read()
    except JournalError:
        return -1
