"""A worker's handle on its attempt: how often it reads, beats and tells."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tidegate.errors import LeaseLost
from tidegate.queue.attempt import RunningAttempt, Timing
from tidegate.queue.model import RUNNING, Request

REQUEST = Request("req-1", "prj-1", "download", "no_cookie", 5, RUNNING, "2026-01-01T00:00:00Z", attempt=3)


class Worker:
    """A queue that notes what is asked of it, and a clock."""

    def __init__(self, timing: Timing, *, just_beaten: bool = False) -> None:
        self.time = 100.0
        self.asked: list[tuple[float, str]] = []
        self.told: list[float] = []
        self.lost = False
        queue: Any = self
        self.attempt = RunningAttempt(
            queue, REQUEST, timing, self._tell, now=lambda: self.time, just_beaten=just_beaten
        )

    def _tell(self, request: Request, progress: Mapping[str, Any]) -> None:
        self.told.append(self.time - 100)

    def running(self, project_id: str, request_id: str, attempt: int) -> Request:
        return self._seen("look", (project_id, request_id, attempt))

    def heartbeat(self, project_id: str, request_id: str, attempt: int, progress: Mapping[str, Any] | None) -> Request:
        return self._seen("beat", (project_id, request_id, attempt))

    def _seen(self, how: str, here: tuple[str, str, int]) -> Request:
        assert here == ("prj-1", "req-1", 3)
        if self.lost:
            raise LeaseLost("attempt 3 is over")
        self.asked.append((self.time - 100, how))
        return REQUEST

    def work(self, seconds: int, step: float = 1.0) -> None:
        for _ in range(int(seconds / step)):
            self.attempt({"rows": 1})
            self.time += step


def test_ingest_looks_every_2_s_and_beats_every_30_s_after_its_first_beat() -> None:
    worker = Worker(Timing(look=2, beat=30), just_beaten=True)
    worker.work(62)

    assert [at for at, how in worker.asked if how == "beat"] == [30, 60]
    assert [at for at, _ in worker.asked] == list(range(2, 62, 2))


def test_export_beats_at_once_and_then_every_2_s() -> None:
    worker = Worker(Timing(look=2, beat=2))
    worker.work(6, step=0.5)

    assert worker.asked == [(0, "beat"), (2, "beat"), (4, "beat")]
    assert worker.told == [0, 2, 4]


def test_batch_looks_at_every_call_and_beats_every_30_s() -> None:
    worker = Worker(Timing(look=0, beat=30))
    worker.work(32)

    assert len(worker.asked) == 32
    assert [at for at, how in worker.asked if how == "beat"] == [0, 30]


def test_lost_lease_reaches_the_worker_and_nothing_is_told() -> None:
    worker = Worker(Timing(look=0, beat=30))
    worker.lost = True

    with pytest.raises(LeaseLost):
        worker.attempt({"rows": 1})
    assert worker.told == []


def test_nothing_is_told_without_progress() -> None:
    worker = Worker(Timing(look=0, beat=30))
    worker.attempt()

    assert worker.told == []
