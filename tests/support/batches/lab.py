"""The real slice runner with a moto table, in real time, against a real HTTP receiver."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, put
from tidegate.batches import Batches, SliceTiming
from tidegate.batches.items import ItemResults, Items, Outcomes
from tidegate.batches.model import (
    ACTIVE,
    RUNNING,
    STOPPED,
    STOPPING,
    Batch,
    BatchProgress,
    Business,
    ItemOutcome,
    Verdict,
)
from tidegate.batches.slice import CONTINUE, ENDED, SLEEP, QueuedRun, SliceEnd, run_slice
from tidegate.batches.store import BatchStore
from tidegate.errors import LeaseLost
from tidegate.http.client import SafeHttp
from tidegate.http.connections import KeptConnection
from tidegate.http.model import Reply
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.limits import CALLS
from tidegate.projects.model import Project, Quotas
from tidegate.projects.secrets import signed_headers

# What a slice of items that are no rows of a file does not use.
_UNUSED = (
    "settings",
    "s3",
    "bucket",
    "library",
    "object_of",
    "quotas",
    "check_urls",
    "notifier",
    "topic",
    "require_source",
    "queue",
)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def _sign(project: Project, message_id: str, now: datetime, body: bytes = b"", *, url: str = "") -> dict[str, str]:
    return signed_headers(project.callback_secrets, message_id, now, body)


PROJECT = "prj-lab"


def real_clock() -> datetime:
    return datetime.now(UTC)


class Killed(BaseException):
    """The process was killed: nothing more runs, and nothing in its memory is written."""


class MortalStore(BatchStore):
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

    def store_reach(self, *args: Any, **kwargs: Any) -> None:
        if self._dead.is_set():
            raise Killed
        super().store_reach(*args, **kwargs)

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
        self.parts: list[tuple[tuple[int, int], ItemOutcome]] = []
        self.written: list[tuple[int, int]] = []
        self.merged: list[list[int]] = []
        self.report_lines: list[tuple[tuple[int, int], ItemOutcome]] = []

    def write_part(
        self, batch: Batch, runner: int, part: int, fence: int, outcomes: Sequence[ItemOutcome], items: Items
    ) -> None:
        indexed = [replace(outcome, index=items.index(outcome.index)) for outcome in outcomes]
        key = (runner, part)
        self.written.append((part, fence))
        self.parts = [entry for entry in self.parts if entry[0] != key] + [(key, outcome) for outcome in indexed]

    def write_report(
        self, batch: Batch, runner: int, part: int, fence: int, done: Sequence[ItemOutcome], items: Items
    ) -> None:
        key = (runner, part)
        indexed = [replace(outcome, index=items.index(outcome.index)) for outcome in done]
        others = [entry for entry in self.report_lines if entry[0] != key]
        self.report_lines = others + [(key, outcome) for outcome in indexed]

    def merge(self, batch: Batch, parts: Sequence[int], seconds: float = 0.0) -> str:
        self.merged.append(list(parts))
        return ""

    def by_index(self) -> dict[int, tuple[str, int]]:
        return {outcome.index: (outcome.state, outcome.attempts) for _, outcome in self.parts}


class NoLimits:
    """The quotas of a project that has none."""

    reserved = {CALLS: 10**12}

    def budget(self, _: str) -> NoLimits:
        return self

    def reserve(self, **_: int) -> bool:
        return True

    def settle(self, **_: int) -> None:
        pass


@dataclass
class Lab(QueuedRun):
    table: Table
    url: str
    timing: SliceTiming = field(default_factory=SliceTiming)
    shared_rate: float | None = None

    def __post_init__(self) -> None:
        self.http = SafeHttp()
        self.outcomes: Any = MemoryOutcomes()
        self.batches = BatchStore(self.table)
        self.results = ItemResults(self.table)
        self.ended = SliceEnd(ENDED)

    def business(self) -> Business:
        return Business(
            biz_id="biz-1",
            project_id=PROJECT,
            name="lab",
            process_url=self.url,
            rate=self.shared_rate,
            created_at="2026-01-01T00:00:00.000Z",
        )

    def batch(self, total: int, rate: float, *, start_index: int = 0, job_data: Any = None, **more: Any) -> Batch:
        batch = Batch(
            batch_id=f"bat-{uuid.uuid4().hex}",
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
        self.table.write(put(keys.business(PROJECT, "biz-1")))
        self.batches.add(batch, job_data, line, Quotas())
        return batch

    # --- the queued request of the run, without a queue

    def confirm(self, batch: Batch, progress: BatchProgress, *, publish: bool) -> None:
        if self.now(batch)[0].status not in ACTIVE:
            raise LeaseLost("the request is over")

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        try:
            self.table.transact(self.batches.end_writes(batch, fences, verdict, "2026-01-01T00:00:00.000Z"))
        except ConditionFailed as error:
            raise LeaseLost("taken over") from error

    def slice(self, batch: Batch, runner: int = 0, **changed: Any) -> str:
        """Runs one invocation of the function in this process. Returns its outcome."""
        present = self.now(batch)[0]
        if present.run != batch.run or present.status not in ACTIVE:
            return ENDED
        self.ended = run_slice(self.made(**changed), present, self, runner)
        return self.ended.outcome

    def made(self, **changed: Any) -> Batches:
        """The parts that a slice uses; `changed` replaces some of them."""
        project = Project(PROJECT, "lab", None, allow_private_urls=True, created_at="", callback_secrets=(SECRET,))
        b = Batches(
            table=self.table,
            clock=real_clock,
            http=self.http,
            sign=_sign,
            project=lambda _: project,
            runner_time=cast(Any, NoLimits()),
            **cast(Any, dict.fromkeys(_UNUSED)),
        )
        parts = {"timing": self.timing, "store": self.batches, "outcomes": self.outcomes, "results": self.results}
        parts["businesses"] = SimpleNamespace(get=lambda *_: self.business())
        for name, part in (parts | changed).items():
            setattr(b, name, part)
        return b

    def run(self, batch: Batch, runner: int = 0) -> str:
        """Runs slices until the batch ends, as the state machine does. Returns the last outcome."""
        outcome = CONTINUE
        while outcome in (CONTINUE, SLEEP):
            outcome = self.slice(batch, runner)
            if outcome == SLEEP:
                time.sleep(self.ended.seconds)
        return outcome

    def now(self, batch: Batch) -> tuple[Batch, BatchProgress]:
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
        other.batches = MortalStore(self.table, dead)
        other.results = MortalResults(self.table, dead)
        other.outcomes = self.outcomes
        return other, dead

    def faster(self, slice_seconds: float = 240, lease_seconds: float = 15) -> Lab:
        return replace(self, timing=SliceTiming(slice_seconds, lease_seconds))
