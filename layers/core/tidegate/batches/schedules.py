"""Recurring batches: each run of a schedule creates one batch and starts it once, even if a function dies.

The id of the batch is derived from the schedule and the planned time. So a retry finds the batch of the first attempt,
starts it only if it was not started, and records the run. Each of these steps may be repeated.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

from tidegate.aws import keys
from tidegate.batches.batches import Batches
from tidegate.batches.control import BatchControl
from tidegate.batches.model import CREATED, FINISHED, STOPPED, Batch, NewBatch
from tidegate.common.ids import named_id
from tidegate.errors import DomainError, RecordNotFound, WrongState
from tidegate.queue.schedules import Schedule, ScheduleParts, Schedules
from tidegate.records import F, record_from


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSchedule(Schedule):
    schedule_id: Annotated[str, F("id of the schedule")]
    biz_id: Annotated[str, F("the business of its batches")]
    created_by: Annotated[str, F("key_id of its creator, also recorded as the creator of its batches")]
    revision: Annotated[int, F("increases with every change; send it with a change to refuse it if it is old")] = 1
    last_batch_id: Annotated[str | None, F("the batch that the last run created")] = None
    # The quota is as old as the first schedule of batches.
    counted: bool = True


class BatchSchedules(Schedules[BatchSchedule, NewBatch]):
    record, keys, work_name = BatchSchedule, keys.BATCH_SCHEDULES, "batch_id"
    action, noun, prefix, quota, order_name = "batch-schedule", "schedule of batches", "bsc", "batch_schedules", "batch"

    def __init__(self, batches: Batches, control: BatchControl, parts: ScheduleParts) -> None:
        super().__init__(parts)
        self._batches = batches
        self._control = control

    def _about(self, order: NewBatch) -> dict[str, Any]:
        return {"name": order.name, "biz_id": order.biz_id}

    def _checked(self, schedule: BatchSchedule, order: NewBatch) -> str:
        self._batches.check(schedule.project_id, order)
        return json.dumps(asdict(order))

    def _order_from(self, text: str) -> NewBatch:
        return record_from(NewBatch, json.loads(text))

    def _work_id(self, schedule: BatchSchedule) -> str:
        """Ids of later runs sort after it."""
        planned = datetime.fromtimestamp(schedule.planned, UTC)
        return named_id("bat", planned, schedule.schedule_id, str(schedule.planned))

    def _found(self, project_id: str, batch_id: str) -> Batch | None:
        try:
            return self._batches.get(project_id, batch_id)
        except RecordNotFound:
            return None

    def _is_active(self, project_id: str, work_id: str) -> bool:
        last = self._found(project_id, work_id)
        return last is not None and last.status not in (CREATED, FINISHED, STOPPED)

    def _is_started(self, schedule: BatchSchedule) -> bool:
        return self._found(schedule.project_id, self._work_id(schedule)) is not None

    def _start(self, schedule: BatchSchedule, work_id: str) -> None:
        project_id, who = schedule.project_id, schedule.created_by
        batch = self._found(project_id, work_id) or self._batches.create(
            project_id, self.order(schedule), who=who, batch_id=work_id
        )
        refused = self._refusal(batch, who)
        why = {"reason": refused.detail, "code": refused.code} if refused else {}
        self.record_run(schedule, work_id, **why)

    def _refusal(self, batch: Batch, who: str) -> DomainError | None:
        """Starts the batch unless it was started. Returns why it cannot be."""
        if batch.run > 0 or batch.status != CREATED:
            return None
        try:
            self._control.start(batch.project_id, batch.batch_id, who)
        except WrongState:
            # Another function or a person has started it since it was read.
            return None
        except DomainError as error:
            if error.retryable and self._batches.get(batch.project_id, batch.batch_id).status == CREATED:
                raise
            return error
        return None
