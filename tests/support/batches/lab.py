"""The real slice runner on a moto table, in real time, against a real HTTP receiver."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, cast

from tidegate.aws.table import ConditionFailed, Table
from tidegate.batches.items import DataItems, Items, SharedItems
from tidegate.batches.milestones import Milestones
from tidegate.batches.model import ACTIVE, RUNNING, STOPPED, STOPPING, Batch
from tidegate.batches.outcomes import Outcomes
from tidegate.batches.progress import Progress
from tidegate.batches.results import ItemResults
from tidegate.batches.run.item_call import ItemCaller
from tidegate.batches.run.rate_shares import RateShares
from tidegate.batches.run.slice import CONTINUE, ENDED, SLEEP, Pace, SliceEnd, SliceRunner
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.values import Extent, Outcome, Verdict
from tidegate.batches.store import BatchStore
from tidegate.errors import LeaseLost
from tidegate.http.client import SafeHttp
from tidegate.http.kept_connection import KeptConnection
from tidegate.http.model import Reply
from tidegate.http.signing import signed_headers
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.model import Project

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def _sign(project: Project, message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]:
    return signed_headers(project.callback_secrets, message_id, now, body)


PROJECT = "prj-lab"


def real_clock() -> datetime:
    return datetime.now(UTC)


class Killed(BaseException):
    """The process was killed: nothing after this runs, and nothing that it held in memory is written."""


class MortalStore(BatchRunStore):
    """Dies with its process: `dead` set, it writes no more."""

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


class MortalLine:
    def __init__(self, line: KeptConnection, dead: threading.Event) -> None:
        self._line = line
        self._dead = dead

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply:
        if self._dead.is_set():
            raise Killed
        reply = self._line.post(body, headers)
        if self._dead.is_set():
            raise Killed
        return reply

    def close(self) -> None:
        self._line.close()


class MortalHttp(SafeHttp):
    def __init__(self, dead: threading.Event) -> None:
        super().__init__()
        self._dead = dead

    def line(self, *args: Any, **kwargs: Any) -> Any:
        return MortalLine(super().line(*args, **kwargs), self._dead)


class KeptOutcomes(Outcomes):
    """In memory."""

    def __init__(self) -> None:
        self.kept: list[tuple[tuple[int, int], Outcome]] = []

    def write_part(
        self, batch: Batch, runner: int, part: int, fence: int, outcomes: Sequence[Outcome], items: Items
    ) -> None:
        named = [replace(one, index=items.name(one.index)) for one in outcomes]
        place = (runner, part)
        self.kept = [entry for entry in self.kept if entry[0] != place] + [(place, one) for one in named]

    def merge(self, batch: Batch, parts: Sequence[int]) -> str:
        return ""

    def by_index(self) -> dict[int, tuple[str, int]]:
        return {one.index: (one.state, one.attempts) for _, one in self.kept}


@dataclass
class Lab:
    table: Table
    url: str
    pace: Pace = field(default_factory=Pace)
    shared_rate: float | None = None

    def __post_init__(self) -> None:
        self.batches = BatchStore(self.table)
        self.runs = BatchRunStore(self.table)
        self.http = SafeHttp()
        self.outcomes: Any = KeptOutcomes()
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
        self.batches.add(batch, job_data, line)
        return batch

    # --- what SliceRunner prepares a run with

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

    # --- what SliceRunner calls during a run

    def confirm(self, batch: Batch, progress: Progress, *, tell: bool) -> None:
        if self.now(batch)[0].status not in ACTIVE:
            raise LeaseLost("the request is over")

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        try:
            self.table.transact(self.runs.end_writes(batch, fences, verdict, "2026-01-01T00:00:00.000Z"))
        except ConditionFailed as error:
            raise LeaseLost("taken over") from error

    def slice(self, batch: Batch, runner: int = 0, **changed: Any) -> str:
        """One invocation of the function, in this process."""
        present = self.now(batch)[0]
        if present.run != batch.run or present.status not in ACTIVE:
            return ENDED
        self.ended = self.runner(**changed).run(present, self, runner)
        return self.ended.outcome

    def runner(self, **changed: Any) -> SliceRunner:
        parts: dict[str, Any] = {"batches": self.batches, "runs": self.runs, "clock": real_clock, "pace": self.pace}
        parts |= {"outcomes": self.outcomes, "results": ItemResults(self.table), "shares": RateShares(self.table)}
        parts["milestones"] = Milestones(self.table, cast(Any, None), real_clock)
        return SliceRunner(prepare=self, **(parts | changed))

    def run(self, batch: Batch, runner: int = 0) -> str:
        """Runs slices until the batch ends, as the state machine does."""
        outcome = CONTINUE
        while outcome in (CONTINUE, SLEEP):
            outcome = self.slice(batch, runner)
            if outcome == SLEEP:
                time.sleep(self.ended.seconds)
        return outcome

    def in_background(self, act: Callable[[], Any]) -> threading.Thread:
        thread = threading.Thread(target=act, daemon=True)
        thread.start()
        return thread

    def now(self, batch: Batch) -> tuple[Batch, Progress]:
        found = self.batches.get(batch.project_id, batch.batch_id)
        assert found
        return found, self.batches.progress(found)

    def ask_to_stop(self, batch: Batch) -> None:
        self.batches.move(self.now(batch)[0], STOPPING, {"stop_reason": "enough"})

    def start_again(self, batch: Batch) -> Batch:
        found, _ = self.now(batch)
        assert found.status == STOPPED
        return self.batches.move(found, RUNNING, {"run": found.run + 1})

    def mortal(self) -> tuple[Lab, threading.Event]:
        """The same lab in a process that can be killed."""
        dead = threading.Event()
        other = replace(self)
        other.http = MortalHttp(dead)
        other.runs = MortalStore(self.table, dead)
        return other, dead

    def faster(self, slice_seconds: float = 240, lease_seconds: float = 15) -> Lab:
        return replace(self, pace=Pace(slice_seconds, lease_seconds))
