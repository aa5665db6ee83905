"""A schedule of batches, and its runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from tidegate.batches.model import NewBatch
from tidegate.common.ids import iso, named_id

ACTIVE, PAUSED = "active", "paused"
STARTED, SKIPPED = "started", "skipped"
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class BatchSchedule:
    """Creates and starts a batch at each scheduled time."""

    schedule_id: str
    project_id: str
    name: str
    biz_id: str
    schedule: str
    status: str
    created_at: str
    # Its batches are created on behalf of this caller.
    created_by: str
    # Incremented by every change that a caller makes, not by runs.
    revision: int = 1
    # Epoch seconds of the next run; None while it is paused, and after its last run.
    due_at: int | None = None
    last_batch_id: str | None = None
    # Why the last run created no batch, or its batch did not start.
    last_error: str | None = None

    def shown(self) -> dict[str, Any]:
        fields = {name: value for name, value in asdict(self).items() if name not in ("project_id", "due_at")}
        return fields | {"next_run": _moment(self.due_at) if self.due_at else None}

    @property
    def batch_id(self) -> str:
        """The id of the batch of the run that is due. It is derived from the schedule and the time, so that a retry
        finds the batch of the first attempt. Ids of later runs sort after it."""
        moment = datetime.fromtimestamp(self.due_at or 0, UTC)
        return named_id("bat", moment, self.schedule_id, str(self.due_at))


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a schedule: `started`, with its batch, or `skipped`, with the reason. A skipped run has a batch too
    if it was created and the business refused to run it."""

    due: str
    state: str
    batch_id: str | None = None
    reason: str | None = None

    def shown(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def started(schedule: BatchSchedule) -> Run:
    return Run(_moment(schedule.due_at or 0), STARTED, schedule.batch_id)


def skipped(schedule: BatchSchedule, reason: str, batch_id: str | None = None) -> Run:
    return Run(_moment(schedule.due_at or 0), SKIPPED, batch_id, reason[:LONGEST_REASON])


def batch_from(data: Mapping[str, Any]) -> NewBatch:
    """Returns the batch that was stored with `asdict`. Ignores fields of another release; JSON has no tuples."""
    names = {field.name for field in fields(NewBatch)}
    batch = NewBatch(**{name: value for name, value in data.items() if name in names})
    return replace(batch, pause_windows=tuple((int(start), int(end)) for start, end in batch.pause_windows))


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))
