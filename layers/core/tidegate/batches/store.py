"""Businesses, batches and their logs in the table. The progress of runners is in `run/store.py`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, Write, check, delete, put, put_new, update
from tidegate.batches.model import (
    ACTIVE,
    CREATED,
    FINISHED,
    RUNNING,
    UNSTARTED_KEPT_SECONDS,
    Batch,
    Business,
    LogLine,
    Progress,
    RunnerRecord,
    combined,
    first_progress,
)
from tidegate.batches.run_state import progress_attributes, progress_from, runners_of
from tidegate.common.sequences import Listed
from tidegate.errors import LeaseLost, QuotaExceeded, RecordNotFound, WrongState
from tidegate.notifications.notices import Notice, notice_write
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.projects.limits import count_write, unstarted_batches_write
from tidegate.queue.model import Request
from tidegate.queue.store import request_from
from tidegate.records import item_of, record_from

# A business cannot be deleted, so only an admin can make room; unstarted batches are started or deleted by age.
_QUOTA_RETRY_SECONDS = 3600
LOG_SECONDS = 30 * 24 * 3600
_CHANGED = "the batch changed meanwhile: read it and try again"


class BusinessStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, business: Business, line: AuditLine, limit: int) -> None:
        """QuotaExceeded if the project has `limit` of them already."""
        counted = count_write(business.project_id, "businesses", 1, limit)
        try:
            self._table.transact([put_new(self._item(business)), counted, audit_write(line)])
        except ConditionFailed as error:
            if 1 not in error.failed:
                raise
            raise QuotaExceeded.of("businesses", limit, _QUOTA_RETRY_SECONDS) from error

    def replace(self, business: Business, line: AuditLine) -> None:
        try:
            self._table.transact([put(self._item(business), "attribute_exists(#pk)"), audit_write(line)])
        except ConditionFailed as error:
            raise RecordNotFound(f"this project has no business with the id {business.biz_id}") from error

    def get(self, project_id: str, biz_id: str) -> Business | None:
        item = self._table.get(keys.business(project_id, biz_id), consistent=True)
        return record_from(Business, item) if item else None

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Business]:
        page = self._table.find(keys.businesses_list(project_id), limit=limit, cursor=cursor, wanted={})
        return Listed([record_from(Business, item) for item in page.items], page.cursor)

    @staticmethod
    def _item(business: Business) -> dict[str, Any]:
        listing = {"gsi1pk": keys.businesses_list(business.project_id), "gsi1sk": business.biz_id}
        return keys.business(business.project_id, business.biz_id) | item_of(business) | listing


class BatchStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, batch: Batch, job_data: Any, line: AuditLine, limit: int) -> None:
        """QuotaExceeded if `limit` batches of the project wait for their first start already."""
        key, listing = keys.batch(batch.project_id, batch.batch_id), keys.batches_list(batch.project_id)
        unstarted_until = datetime.fromisoformat(batch.created_at).timestamp() + UNSTARTED_KEPT_SECONDS
        due = keys.due(batch.batch_id, unstarted_until, "batch_unstarted")
        item = key | item_of(batch) | {"gsi1pk": listing, "gsi1sk": batch.batch_id, "counted": True} | due
        writes = [
            put_new(item),
            unstarted_batches_write(batch.project_id, 1, limit),
            *(put_new(_first_record(batch, runner)) for runner in range(batch.runners)),
            put_new(keys.batch_data(batch.project_id, batch.batch_id) | {"text": json.dumps(job_data)}),
            audit_write(line),
        ]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            if 0 in error.failed or 1 not in error.failed:
                raise
            raise QuotaExceeded.of("unstarted_batches", limit, _QUOTA_RETRY_SECONDS) from error

    def delete_unstarted(self, batch: Batch, line: AuditLine) -> bool:
        """Deletes a batch with its records. False if it was started or deleted meanwhile."""
        ids = (batch.project_id, batch.batch_id)
        return self._table.try_write(
            delete(keys.batch(*ids), "#status = :created", created=CREATED),
            *_first_start(batch),
            *(delete(_progress_key(batch, runner)) for runner in range(batch.runners)),
            delete(keys.batch_data(*ids)),
            audit_write(line),
        )

    def get(self, project_id: str, batch_id: str) -> Batch | None:
        item = self._table.get(keys.batch(project_id, batch_id), consistent=True)
        return record_from(Batch, item) if item else None

    def get_many(self, project_id: str, batch_ids: Sequence[str]) -> list[Batch]:
        """Returns the batches that exist, in any order."""
        wanted = [keys.batch(project_id, batch_id) for batch_id in dict.fromkeys(batch_ids)]
        return [record_from(Batch, item) for item in self._table.batch_get(wanted, consistent=True)]

    def runners(self, batch: Batch) -> list[RunnerRecord]:
        """Returns the last saved record of each runner."""
        found = runners_of(self._table, batch)
        if not found:
            raise RecordNotFound(f"this project has no batch with the id {batch.batch_id}")
        return found

    def progress(self, batch: Batch) -> Progress:
        return combined(batch, [record.progress for record in self.runners(batch)])

    def details_of(self, batches: Iterable[Batch]) -> dict[str, tuple[Progress, Request | None]]:
        """Returns, by batch id, the progress and, of an active batch, the request. One read for fifty batches."""
        wanted = list(batches)
        requested = {
            keys.request(b.project_id, b.request_id)["pk"]: b for b in wanted if b.status in ACTIVE and b.request_id
        }
        found = self._table.batch_get(
            [
                *(_progress_key(batch, runner) for batch in wanted for runner in range(batch.runners)),
                *(keys.request(batch.project_id, batch.request_id or "") for batch in requested.values()),
            ],
            consistent=True,
        )
        by_key = {(item["pk"], item["sk"]): item for item in found}
        running = {requested[item["pk"]].batch_id: request_from(item) for item in found if item["pk"] in requested}
        return {
            batch.batch_id: (combined(batch, parts), running.get(batch.batch_id))
            for batch in wanted
            if (parts := [progress_from(by_key[key]) for key in _progress_keys(batch) if key in by_key])
        }

    def list(self, project_id: str, limit: int, cursor: str | None, **wanted: object) -> Listed[Batch]:
        page = self._table.find(keys.batches_list(project_id), limit=limit, cursor=cursor, wanted=wanted)
        return Listed([record_from(Batch, item) for item in page.items], page.cursor)

    def move(
        self,
        batch: Batch,
        status: str,
        sets: Mapping[str, Any] | None = None,
        *,
        removes: Sequence[str] = (),
        due: tuple[float, str] | None = None,
        notice: Notice | None = None,
        line: AuditLine | None = None,
    ) -> Batch:
        """Changes the state, if state and run are still as read. `due`: when compensation must look at it, and why."""
        due_attributes = keys.due(batch.batch_id, *due) if due else {}
        removed = [*removes, *(() if due else keys.DUE_ATTRIBUTES)]
        write = update(
            keys.batch(batch.project_id, batch.batch_id),
            {"status": status, **due_attributes, **(sets or {})},
            removes=removed,
            condition="#status = :was AND #run = :run",
            was=batch.status,
            run=batch.run,
        )
        try:
            notices = [notice_write(notice)] if notice else []
            self._table.transact([write, *_first_start(batch), *notices, *([audit_write(line)] if line else [])])
        except ConditionFailed as error:
            present = self._table.get(keys.batch(batch.project_id, batch.batch_id), consistent=True) or {}
            wanted = {"run": batch.run} | dict(sets or {}) | {"status": status}
            if status == batch.status or any(present.get(name) != value for name, value in wanted.items()):
                raise WrongState(_CHANGED) from error
            # The answer to the write was lost and the SDK repeated it: the first write was carried out.
        return self.get(batch.project_id, batch.batch_id) or batch

    def start_writes(self, batch: Batch, sets: Mapping[str, Any], line: AuditLine) -> Sequence[Write]:
        """Returns the writes of a start, for the transaction that creates its request."""
        return [*self._start(batch, sets), *_first_start(batch), audit_write(line)]

    def resume(self, batch: Batch, request: Request) -> Batch:
        """Sets a stopped batch to running when its failed request is retried.

        LeaseLost if that attempt of the request has ended: a function that stalled must not restart the batch.
        """
        attempt = check(
            keys.request(request.project_id, request.request_id),
            "#status = :status AND #attempt = :attempt",
            status=request.status,
            attempt=request.attempt,
        )
        written = self._table.try_write(*self._start(batch, {"status": RUNNING}), attempt)
        present = self.get(batch.project_id, batch.batch_id)
        # If it runs although the write was refused, an earlier attempt at this step has done it.
        if present is None or not (written or (present.status, present.run) == (RUNNING, batch.run)):
            raise LeaseLost("the attempt of the request that would resume the batch has ended")
        return present

    def _start(self, batch: Batch, sets: Mapping[str, Any]) -> Sequence[Write]:
        """Also removes verdicts of the last run, which would end the new one, except of runners that have finished."""
        started = update(
            keys.batch(batch.project_id, batch.batch_id),
            sets,
            removes=[*keys.DUE_ATTRIBUTES, "stop_reason", "finish_time"],
            condition="#status = :was AND #run = :seen",
            was=batch.status,
            seen=batch.run,
        )
        verdicts = [record.progress.verdict for record in self.runners(batch)]
        stale = [runner for runner, verdict in enumerate(verdicts) if verdict and verdict.status != FINISHED]
        return [started, *(update(_progress_key(batch, runner), removes=["verdict"]) for runner in stale)]

    def patch(self, batch: Batch, sets: Mapping[str, Any], removes: Sequence[str], line: AuditLine) -> Batch:
        """Changes attributes, if the batch is still in the state that was read."""
        key = keys.batch(batch.project_id, batch.batch_id)
        write = update(key, sets, removes=removes, condition="#status = :was", was=batch.status)
        try:
            self._table.transact([write, audit_write(line)])
        except ConditionFailed as error:
            raise WrongState(_CHANGED) from error
        return self.get(batch.project_id, batch.batch_id) or batch

    def job_data(self, project_id: str, batch_id: str) -> Any:
        item = self._table.get(keys.batch_data(project_id, batch_id), consistent=True)
        return json.loads(item["text"]) if item else None

    def set_job_data(self, batch: Batch, job_data: Any, line: AuditLine) -> None:
        """Stores the data and increments their version in one transaction, so that a runner notices the change."""
        key = keys.batch(batch.project_id, batch.batch_id)
        data = keys.batch_data(batch.project_id, batch.batch_id) | {"text": json.dumps(job_data)}
        version = update(key, adds={"data_version": 1}, condition="#status = :was", was=batch.status)
        try:
            self._table.transact([version, put(data), audit_write(line)])
        except ConditionFailed as error:
            raise WrongState(_CHANGED) from error

    def add_logs(self, project_id: str, batch_id: str, lines: Iterable[LogLine], now: float) -> None:
        self._table.batch_put(self._log_item(project_id, batch_id, line, now) for line in lines)

    def logs(
        self, project_id: str, batch_id: str, *, index: int | None, limit: int, cursor: str | None
    ) -> Listed[LogLine]:
        if index is None:
            page = self._table.page(
                keys.batch_logs(project_id, batch_id), newest_first=True, limit=limit, cursor=cursor
            )
        else:
            partition = keys.batch_item_logs(project_id, batch_id, index)
            page = self._table.page(partition, index="gsi1", newest_first=True, limit=limit, cursor=cursor)
        return Listed([record_from(LogLine, item) for item in page.items], page.cursor)

    def newest_logs(self, project_id: str, batch_id: str) -> Iterable[LogLine]:
        return (
            record_from(LogLine, item)
            for item in self._table.query_all(keys.batch_logs(project_id, batch_id), newest_first=True)
        )

    @staticmethod
    def _log_item(project_id: str, batch_id: str, line: LogLine, now: float) -> dict[str, Any]:
        key = keys.batch_log(project_id, batch_id, line.time, line.log_id)
        item_index: dict[str, str] = {}
        if line.index is not None:
            item_index = {"gsi1pk": keys.batch_item_logs(project_id, batch_id, line.index), "gsi1sk": key["sk"]}
        return key | item_of(line) | item_index | {"expires_at": int(now) + LOG_SECONDS}


def _first_start(batch: Batch) -> list[Write]:
    """The write that no longer counts a batch as unstarted, for a transaction in which it leaves its first state."""
    return [unstarted_batches_write(batch.project_id, -1)] if batch.status == CREATED and batch.counted else []


def _progress_key(batch: Batch, runner: int) -> dict[str, str]:
    return keys.batch_progress(batch.project_id, batch.batch_id, runner)


def _progress_keys(batch: Batch) -> list[tuple[str, str]]:
    return [(key["pk"], key["sk"]) for key in (_progress_key(batch, runner) for runner in range(batch.runners))]


def _first_record(batch: Batch, runner: int) -> dict[str, Any]:
    progress = progress_attributes(first_progress(batch, runner))
    return _progress_key(batch, runner) | {"fence": 0, "lease_until": 0} | progress
