"""The real slice runner with a moto table, in real time, against a real HTTP receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from tidegate.aws.table import ConditionFailed, Table
from tidegate.batches.batches import ItemResults
from tidegate.batches.items import DataItems, Items, Outcomes, SharedItems
from tidegate.batches.model import ACTIVE, RUNNING, STOPPED, STOPPING, Batch, Extent, Outcome, Progress, Verdict
from tidegate.batches.run_state import BatchRunStore, RateShares
from tidegate.batches.slice import CONTINUE, ENDED, SLEEP, Milestones, SliceEnd, SliceRunner, SliceTiming
from tidegate.batches.store import BatchStore
from tidegate.batches.workers import ItemCaller
from tidegate.errors import LeaseLost
from tidegate.http.client import SafeHttp
from tidegate.http.connections import KeptConnection
from tidegate.http.model import Reply
from tidegate.http.signing import signed_headers
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.model import Project

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def _sign(project: Project, message_id: str, now: datetime, body: bytes = b"", *, url: str = "") -> dict[str, str]:
    return signed_headers(project.callback_secrets, message_id, now, body)


PROJECT = "prj-lab"


def real_clock() -> datetime:
    return datetime.now(UTC)


class Killed(BaseException):
    """The process was killed: nothing more runs, and nothing in its memory is written."""


class MortalStore(BatchRunStore):
    """Writes nothing after its process was killed, which sets `dead`."""

    def __init__(self, table: Table, dead: threading.Event) -> None:
        super().__init__(table)
        self._dead = dead

    def save(self, *args: Any, **kwargs: Any) -> None:
        if self._dead.is_set():
            raise Killed
        super().save(*args, **kwargs)

    def end_writes(self, *args: Any, **kwargs: Any) -> Any:
        if self._dead.is_set():
            raise Killed
        return super().end_writes(*args, **kwargs)


class MortalResults(ItemResults):
    def __init__(self, table: Table, dead: threading.Event) -> None:
        super().__init__(table)
        self._dead = dead

    def reach(self, *args: Any, **kwargs: Any) -> None:
        if self._dead.is_set():
            raise Killed
        super().reach(*args, **kwargs)

    def _transact(self, *args: Any, **kwargs: Any) -> Any:
        if self._dead.is_set():
            raise Killed
        return super()._transact(*args, **kwargs)


class MortalConnection:
    def __init__(self, connection: KeptConnection, dead: threading.Event) -> None:
        self._connection = connection
        self._dead = dead

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        if self._dead.is_set():
            raise Killed
        reply = self._connection.post(body, headers)
        if self._dead.is_set():
            raise Killed
        return reply

    def close(self) -> None:
        self._connection.close()


class MortalHttp(SafeHttp):
    def __init__(self, dead: threading.Event) -> None:
        super().__init__()
        self._dead = dead

    def line(self, *args: Any, **kwargs: Any) -> Any:
        return MortalConnection(super().line(*args, **kwargs), self._dead)


class MemoryOutcomes(Outcomes):
    """Outcomes in memory, with the parts that were written and merged."""

    def __init__(self) -> None:
        self.parts: list[tuple[tuple[int, int], Outcome]] = []
        self.written: list[tuple[int, int]] = []
        self.merged: list[list[int]] = []

    def write_part(
        self, batch: Batch, runner: int, part: int, fence: int, outcomes: Sequence[Outcome], items: Items
    ) -> None:
        indexed = [replace(outcome, index=items.index(outcome.index)) for outcome in outcomes]
        key = (runner, part)
        self.written.append((part, fence))
        self.parts = [entry for entry in self.parts if entry[0] != key] + [(key, outcome) for outcome in indexed]

    def merge(self, batch: Batch, parts: Sequence[int]) -> str:
        self.merged.append(list(parts))
        return ""

    def by_index(self) -> dict[int, tuple[str, int]]:
        return {outcome.index: (outcome.state, outcome.attempts) for _, outcome in self.parts}


@dataclass
class Lab:
    table: Table
    url: str
    timing: SliceTiming = field(default_factory=SliceTiming)
    shared_rate: float | None = None

    def __post_init__(self) -> None:
        self.batches = BatchStore(self.table)
        self.runs = BatchRunStore(self.table)
        self.http = SafeHttp()
        self.outcomes: Any = MemoryOutcomes()
        self.shares = RateShares(self.table)
        self.results = ItemResults(self.table)
        self.ended = SliceEnd(ENDED)

    def batch(self, total: int, rate: float, *, start_index: int = 0, job_data: Any = None, **more: Any) -> Batch:
        batch = Batch(
            batch_id=f"bat-{id(object())}-{total}",
            project_id=PROJECT,
            biz_id="biz-1",
            name="lab",
            total=total,
            rate=rate,
            status=RUNNING,
            created_at="2026-01-01T00:00:00.000Z",
            start_index=start_index,
            run=1,
            **more,
        )
        line = act(batch.project_id, batch.batch_id, datetime.now(UTC), SYSTEM, "batch.create")
        self.batches.add(batch, job_data, line, limit=1000)
        return batch

    # --- implements Preparation

    def work(self, batch: Batch) -> ItemCaller:
        project = Project("p", "lab", None, allow_private_urls=True, created_at="", callback_secrets=(SECRET,))
        return ItemCaller(batch, self.url, project, self.http, _sign, real_clock, self.shared_rate)

    def items(self, batch: Batch, runner: int) -> Items:
        items = self._all_items(batch)
        return SharedItems(items, batch.share(runner)) if batch.runners > 1 else items

    def _all_items(self, batch: Batch) -> Items:
        data = self.batches.job_data(batch.project_id, batch.batch_id)
        if batch.serial:
            return DataItems(lambda: self.batches.job_data(batch.project_id, batch.batch_id))
        return DataItems(lambda: data)

    def extent(self, batch: Batch, at: int, *, wait: bool = False) -> Extent:
        assert batch.total is not None
        return Extent(batch.total)

    # --- implements RequestHandle

    def confirm(self, batch: Batch, progress: Progress, *, publish: bool) -> None:
        if self.now(batch)[0].status not in ACTIVE:
            raise LeaseLost("the request is over")

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        try:
            self.table.transact(self.runs.end_writes(batch, fences, verdict, "2026-01-01T00:00:00.000Z"))
        except ConditionFailed as error:
            raise LeaseLost("taken over") from error

    def slice(self, batch: Batch, runner: int = 0, **changed: Any) -> str:
        """Runs one invocation of the function in this process. Returns its outcome."""
        present = self.now(batch)[0]
        if present.run != batch.run or present.status not in ACTIVE:
            return ENDED
        self.ended = self.runner(**changed).run(present, self, runner)
        return self.ended.outcome

    def runner(self, **changed: Any) -> SliceRunner:
        parts: dict[str, Any] = {"batches": self.batches, "runs": self.runs, "clock": real_clock, "timing": self.timing}
        parts |= {"outcomes": self.outcomes, "results": self.results, "shares": self.shares}
        parts["milestones"] = Milestones(self.table, cast(Any, None), real_clock)
        return SliceRunner(prepare=self, **(parts | changed))

    def run(self, batch: Batch, runner: int = 0) -> str:
        """Runs slices until the batch ends, as the state machine does. Returns the last outcome."""
        outcome = CONTINUE
        while outcome in (CONTINUE, SLEEP):
            outcome = self.slice(batch, runner)
            if outcome == SLEEP:
                time.sleep(self.ended.seconds)
        return outcome

    def in_background(self, action: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=action, daemon=True)
        thread.start()
        return thread

    def now(self, batch: Batch) -> tuple[Batch, Progress]:
        current = self.batches.get(batch.project_id, batch.batch_id)
        assert current
        return current, self.batches.progress(current)

    def ask_to_stop(self, batch: Batch) -> None:
        self.batches.move(self.now(batch)[0], STOPPING, {"stop_reason": "enough"})

    def start_again(self, batch: Batch) -> Batch:
        current, _ = self.now(batch)
        assert current.status == STOPPED
        return self.batches.move(current, RUNNING, {"run": current.run + 1})

    def mortal(self) -> tuple[Lab, threading.Event]:
        """Returns the same lab as if in a process that can be killed, and the event that kills it."""
        dead = threading.Event()
        other = replace(self)
        other.http = MortalHttp(dead)
        other.runs = MortalStore(self.table, dead)
        other.results = MortalResults(self.table, dead)
        other.outcomes = self.outcomes
        return other, dead

    def faster(self, slice_seconds: float = 240, lease_seconds: float = 15) -> Lab:
        return replace(self, timing=SliceTiming(slice_seconds, lease_seconds))
