"""A recurring batch: when it runs, what it makes, and what became of its runs."""

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
    """Makes and starts a batch at each moment of its schedule."""

    schedule_id: str
    project_id: str
    name: str
    biz_id: str
    schedule: str
    status: str
    created_at: str
    # Whoever made it: its batches are made in this name.
    created_by: str
    # Rises with every change that a caller makes, not with its runs.
    revision: int = 1
    # Epoch seconds of the next moment; None while it is paused, and after its last moment.
    due_at: int | None = None
    last_batch_id: str | None = None
    # Why the last moment made no batch, or its batch did not start.
    last_error: str | None = None

    def shown(self) -> dict[str, Any]:
        told = {name: value for name, value in asdict(self).items() if name not in ("project_id", "due_at")}
        return told | {"next_run": _moment(self.due_at) if self.due_at else None}

    @property
    def batch_id(self) -> str:
        """The batch of the moment that is due. The id is made of the schedule and the moment, so a second try finds
        the batch of the first; ids of later moments sort behind it."""
        moment = datetime.fromtimestamp(self.due_at or 0, UTC)
        return named_id("bat", moment, self.schedule_id, str(self.due_at))


@dataclass(frozen=True, slots=True)
class Run:
    """One moment of a schedule. `started`, with its batch; or `skipped`, with the reason. A skipped run has a batch
    if that was made and its business did not take it."""

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
    """What was stored by `asdict`. JSON has no tuples, and a field of another release is left out."""
    known = {field.name for field in fields(NewBatch)}
    batch = NewBatch(**{name: value for name, value in data.items() if name in known})
    return replace(batch, pause_windows=tuple((int(start), int(end)) for start, end in batch.pause_windows))


def _moment(seconds: int) -> str:
    return iso(datetime.fromtimestamp(seconds, UTC))
