"""A worker's handle on its attempt: how often it reads the request, sends heartbeats and reports progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.errors import LeaseLost
from tidegate.queue.model import RUNNING, Request
from tidegate.queue.queue import RunningAttempt, Timing

REQUEST = Request("req-1", "prj-1", "download", "no_cookie", 5, RUNNING, "2026-01-01T00:00:00Z", attempt=3)


class Worker:
    """A fake of the queue that records its calls, and a clock."""

    def __init__(self, timing: Timing, *, heartbeat_sent: bool = False) -> None:
        self.time = 100.0
        self.calls: list[tuple[float, str]] = []
        self.reports: list[float] = []
        self.lost = False
        queue: Any = self
        self.attempt = RunningAttempt(
            queue, REQUEST, timing, self._report, now=lambda: self.time, heartbeat_sent=heartbeat_sent
        )

    def _report(self, request: Request, progress: Mapping[str, Any]) -> None:
        self.reports.append(self.time - 100)

    def running(self, project_id: str, request_id: str, attempt: int, *, parks: bool) -> Request:
        return self._called("read", (project_id, request_id, attempt))

    def heartbeat(
        self,
        project_id: str,
        request_id: str,
        attempt: int,
        progress: Mapping[str, Any] | None,
        *,
        parks: bool,
        worker: str,
    ) -> Request:
        return self._called("heartbeat", (project_id, request_id, attempt))

    def _called(self, name: str, attempt: tuple[str, str, int]) -> Request:
        assert attempt == ("prj-1", "req-1", 3)
        if self.lost:
            raise LeaseLost("attempt 3 is over")
        self.calls.append((self.time - 100, name))
        return REQUEST

    def work(self, seconds: int, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.attempt({"rows": 1})
            self.time += step


def test_ingest_reads_every_2_s_and_sends_a_heartbeat_every_30_s() -> None:
    worker = Worker(Timing(look=2, beat=30), heartbeat_sent=True)
    worker.work(62)

    assert [at for at, name in worker.calls if name == "heartbeat"] == [30, 60]
    assert [at for at, _ in worker.calls] == list(range(2, 62, 2))


def test_export_sends_a_heartbeat_at_once_and_every_2_s() -> None:
    worker = Worker(Timing(look=2, beat=2))
    worker.work(6, step=0.5)

    assert worker.calls == [(0, "heartbeat"), (2, "heartbeat"), (4, "heartbeat")]
    assert worker.reports == [0, 2, 4]


def test_batch_reads_at_every_call_and_sends_a_heartbeat_every_30_s() -> None:
    worker = Worker(Timing(look=0, beat=30))
    worker.work(32)

    assert len(worker.calls) == 32
    assert [at for at, name in worker.calls if name == "heartbeat"] == [0, 30]


def test_lost_lease_is_raised_and_no_progress_reported() -> None:
    worker = Worker(Timing(look=0, beat=30))
    worker.lost = True

    with pytest.raises(LeaseLost):
        worker.attempt({"rows": 1})
    assert worker.reports == []


def test_nothing_is_reported_without_progress() -> None:
    worker = Worker(Timing(look=0, beat=30))
    worker.attempt()

    assert worker.reports == []
