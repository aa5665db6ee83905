"""Recurring batches: each run of a schedule creates one batch and starts it once, even if a function dies.

The id of the batch is derived from the schedule and the planned time. So a retry finds the batch of the first attempt,
starts it only if it was not started, and records the run. Each of these steps may be repeated.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated

from tidegate.aws import keys
from tidegate.batches import batches, control
from tidegate.batches.model import CREATED, FINISHED, STOPPED, Batch, NewBatch
from tidegate.common.ids import named_id
from tidegate.errors import DomainError, WrongState
from tidegate.queue.schedules import RunOrders, Schedule, ScheduleKind, Schedules
from tidegate.records import F, record_from

if TYPE_CHECKING:
    from tidegate.batches import Batches


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSchedule(Schedule):
    schedule_id: Annotated[str, F("id of the schedule")]
    biz_id: Annotated[str, F("the business of its batches")]
    created_by: Annotated[str, F("key_id of its creator, also recorded as the creator of its batches")]
    revision: Annotated[int, F("increases with every change; send it with a change to refuse it if it is old")] = 1
    last_batch_id: Annotated[str | None, F("the batch that the last run created")] = None
    # All schedules of batches count towards the quota: none is older than it.
    counted: bool = True


def batch_schedules(b: Batches) -> Schedules[BatchSchedule, NewBatch]:
    """Returns the schedules of batches. Each run of a schedule creates one batch and starts it."""

    found = b.store.get

    def stored(schedule: BatchSchedule, order: NewBatch) -> str:
        batches.check(b, schedule.project_id, order)
        return json.dumps(asdict(order))

    def is_active(project_id: str, batch_id: str) -> bool:
        last = found(project_id, batch_id)
        return last is not None and last.status not in (CREATED, FINISHED, STOPPED)

    def start(schedules: Schedules[BatchSchedule, NewBatch], schedule: BatchSchedule, batch_id: str) -> None:
        project_id, who = schedule.project_id, schedule.created_by
        batch = found(project_id, batch_id)
        if batch is None:
            order = schedules.order(schedule)
            business = batches.get_business(b, project_id, order.biz_id)
            batch = batches.create(b, business, order, who=who, batch_id=batch_id)
        refused = refusal(batch, who)
        why = {"reason": refused.detail, "code": refused.code} if refused else {}
        schedules.record_run(schedule, batch_id, **why)

    def refusal(batch: Batch, who: str) -> DomainError | None:
        """Starts the batch unless it was started. Returns the error if the batch cannot be started; else None."""
        if batch.run > 0 or batch.status != CREATED:
            return None
        try:
            control.start(b, batch, batches.get_business(b, batch.project_id, batch.biz_id), who)
        except WrongState:
            # Another function or a person has started it since it was read.
            return None
        except DomainError as error:
            if error.retryable and batches.get(b, batch.project_id, batch.batch_id).status == CREATED:
                raise
            return error
        return None

    kind = ScheduleKind(
        record=BatchSchedule,
        keys=keys.BATCH_SCHEDULES,
        noun="schedule of batches",
        work_name="batch_id",
        work_id=_batch_id_of_run,
        works=partial(batches.get_many, b),
        is_active=is_active,
        start=start,
        is_started=lambda schedule: found(schedule.project_id, _batch_id_of_run(schedule)) is not None,
        orders=RunOrders(
            action="batch-schedule",
            prefix="bsc",
            quota="batch_schedules",
            attribute="batch",
            about=lambda order: {"name": order.name, "biz_id": order.biz_id},
            stored=stored,
            read=lambda text: record_from(NewBatch, json.loads(text)),
        ),
    )
    return Schedules(b.queue, kind)


def _batch_id_of_run(schedule: BatchSchedule) -> str:
    """Returns the id of the batch of the planned run. Ids of later runs sort after it."""
    planned = datetime.fromtimestamp(schedule.planned, UTC)
    return named_id("bat", planned, schedule.schedule_id, str(schedule.planned))
