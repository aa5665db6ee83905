"""Businesses, batches, the progress of their runners and their logs in the table."""

from __future__ import annotations

import json
import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from datetime import datetime
from itertools import islice
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Store, Table, Write, check, delete, noted, put, put_new, update
from tidegate.batches.model import (
    ACTIVE,
    BATCH_ENDED,
    CREATED,
    ENDED,
    FINISHED,
    RUNNING,
    STOPPED,
    STOPPING,
    UNSTARTED_KEPT_SECONDS,
    Batch,
    BatchLogLine,
    BatchProgress,
    Business,
    Carried,
    Counts,
    OpenItem,
    Outage,
    RunnerRecord,
    Verdict,
    WindowState,
    combined,
    first_progress,
)
from tidegate.common.sequences import Listed
from tidegate.errors import InUse, LeaseLost, QuotaExceeded, RecordNotFound, WrongState
from tidegate.notifications.notices import Notice, notice_write
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.projects.limits import batches_write, count_write
from tidegate.projects.model import Quotas
from tidegate.queue.model import Request
from tidegate.queue.store import request_from
from tidegate.records import item_of, record_from

# Retry-After of a full quota: only a person makes room, by deleting something or raising the quota.
_QUOTA_RETRY_SECONDS = 3600
# A runner that has not announced its rate for this long loses its share.
_VALID_SECONDS = 5.0
_RATE_KEPT_SECONDS = 3600
LOG_SECONDS = 30 * 24 * 3600
_CHANGED = "the batch changed meanwhile: read it and try again"
_COUNTS_BATCHES = {"counts_batches": True}


class BusinessStore(Store):
    def add(self, business: Business, line: AuditLine, limit: int) -> None:
        """Stores a new business. Raises QuotaExceeded if the project already has `limit` businesses."""
        counted = count_write(business.project_id, "businesses", 1, limit)
        try:
            new = put_new(self._item(business) | _COUNTS_BATCHES)
            self._table.transact([new, counted, audit_write(line), *noted(biz_id=business.biz_id)])
        except ConditionFailed as error:
            if 1 not in error.failed:
                raise
            raise QuotaExceeded.for_limit("businesses", limit, _QUOTA_RETRY_SECONDS) from error

    def replace(self, business: Business, line: AuditLine) -> None:
        key, item = keys.business(business.project_id, business.biz_id), item_of(business)
        unset = [one.name for one in fields(Business) if one.name not in item]
        try:
            self._table.transact([update(key, item, removes=unset), audit_write(line)])
        except ConditionFailed as error:
            raise RecordNotFound(f"this project has no business with the id {business.biz_id}") from error

    def delete(self, project_id: str, biz_id: str, line: AuditLine) -> None:
        """Deletes the business. Raises InUse if it has batches, and RecordNotFound if another call has deleted it."""
        key = keys.business(project_id, biz_id)
        unused = "attribute_exists(#pk) AND (attribute_not_exists(#batches) OR #batches = :none)"
        freed = count_write(project_id, "businesses", -1)
        try:
            self._table.transact([delete(key, unused, none=0), freed, audit_write(line)])
        except ConditionFailed as error:
            present = self._table.get(key, consistent=True)
            if present is None:
                raise RecordNotFound(f"this project has no business with the id {biz_id}") from error
            raise InUse(f"{present['batches']} batches use the business: delete them first") from error

    def counts_batches(self, project_id: str, biz_id: str) -> bool:
        """Whether the stored number of the business's batches is right.

        False if the business is older than this counting.
        """
        item = self._table.get(keys.business(project_id, biz_id), consistent=True) or {}
        return _COUNTS_BATCHES.items() <= item.items()

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
    def __init__(self, table: Table, kept_seconds: float = 0) -> None:
        """Ended batches are deleted after `kept_seconds`; 0: never."""
        self._table = table
        self._kept_seconds = kept_seconds

    def add(self, batch: Batch, job_data: Any, line: AuditLine, quotas: Quotas) -> None:
        """Stores a new batch. Raises RecordNotFound if its business was deleted.

        Raises QuotaExceeded if the project has as many batches as it may have, or as many batches that were never
        started.
        """
        key, listing = keys.batch(batch.project_id, batch.batch_id), keys.batches_list(batch.project_id)
        unstarted_until = datetime.fromisoformat(batch.created_at).timestamp() + UNSTARTED_KEPT_SECONDS
        due = keys.due(batch.batch_id, unstarted_until, "batch_unstarted")
        item = key | item_of(batch) | {"gsi1pk": listing, "gsi1sk": batch.batch_id} | due
        writes = [
            put_new(item | {"counted": True, "counted_in_all": True}),
            batches_write(batch.project_id, {"batches": 1, "unstarted_batches": 1}, quotas),
            update(keys.business(batch.project_id, batch.biz_id), adds={"batches": 1}),
            *(put_new(_first_record(batch, runner)) for runner in range(batch.runners)),
            put_new(keys.batch_data(batch.project_id, batch.batch_id) | {"text": json.dumps(job_data)}),
            audit_write(line),
            *noted(batch_id=batch.batch_id),
        ]
        try:
            self._table.transact(writes)
        except ConditionFailed as error:
            if 0 in error.failed or not {1, 2} & set(error.failed):
                raise
            if 2 in error.failed:
                raise RecordNotFound(f"this project has no business with the id {batch.biz_id}") from error
            used = self._table.get(keys.batch_usage(batch.project_id), consistent=True) or {}
            name = "batches" if int(used.get("batches", 0)) >= quotas.batches else "unstarted_batches"
            raise QuotaExceeded.for_limit(name, getattr(quotas, name), _QUOTA_RETRY_SECONDS) from error

    def delete(self, batch: Batch, line: AuditLine, now: float) -> bool:
        """Deletes a batch with its records. Returns False if the batch was changed or deleted meanwhile.

        The batch may have many objects, log lines and results, so they are deleted afterwards. Until then, a record
        shows that this work is due.
        """
        ids = (batch.project_id, batch.batch_id)
        deleted = {"project_id": batch.project_id, "batch_id": batch.batch_id}
        counted = {"batches": -1} if batch.counted_in_all else {}
        counted |= {"unstarted_batches": -1} if batch.status == CREATED and batch.counted else {}
        business = keys.business(batch.project_id, batch.biz_id)
        return self._table.try_write(
            delete(keys.batch(*ids), "#status = :was AND #run = :run", was=batch.status, run=batch.run),
            *([batches_write(batch.project_id, counted)] if counted else []),
            *([update(business, adds={"batches": -1})] if batch.counted_in_all else []),
            *(delete(_progress_key(batch, runner)) for runner in range(batch.runners)),
            *(delete(keys.batch_called(*ids, runner)) for runner in range(batch.runners)),
            delete(keys.batch_data(*ids)),
            put(keys.batch_deleted(*ids) | deleted | keys.due(batch.batch_id, now, "batch_deleted")),
            audit_write(line),
        )

    def delete_rows(self, project_id: str, batch_id: str, most: int) -> bool:
        """Deletes log lines and results of a batch that was deleted. Returns False if there may be more of them."""
        left = most
        for partition in (keys.batch_logs(project_id, batch_id), keys.batch_results(project_id, batch_id)):
            rows = list(islice(self._table.query_all(partition, consistent=True), left))
            self._table.batch_delete({"pk": row["pk"], "sk": row["sk"]} for row in rows)
            left -= len(rows)
        return left > 0

    def forget(self, project_id: str, batch_id: str) -> None:
        """Deletes the last record of a deleted batch, after everything else of it."""
        self._table.batch_delete([keys.batch_deleted(project_id, batch_id)])

    def keep_longer(self, batch: Batch, until: float) -> bool:
        """Postpones the deletion of an ended batch. Returns False if the batch was started again or deleted."""
        key = keys.batch(batch.project_id, batch.batch_id)
        due = keys.due(batch.batch_id, until, BATCH_ENDED)
        return self._table.try_write(update(key, due, condition="#status = :was", was=batch.status))

    def get(self, project_id: str, batch_id: str) -> Batch | None:
        item = self._table.get(keys.batch(project_id, batch_id), consistent=True)
        return record_from(Batch, item) if item else None

    def get_many(self, project_id: str, batch_ids: Sequence[str]) -> list[Batch]:
        """Returns the batches that exist, in any order."""
        wanted = [keys.batch(project_id, batch_id) for batch_id in dict.fromkeys(batch_ids)]
        return [record_from(Batch, item) for item in self._table.batch_get(wanted, consistent=True)]

    def runners(self, batch: Batch) -> list[RunnerRecord]:
        """Returns the last saved record of each runner."""
        pk = keys.batch(batch.project_id, batch.batch_id)["pk"]
        found = self._table.query_all(pk, sk_prefix=keys.BATCH_PROGRESS, consistent=True)
        records = [_record(item) for item in found]
        if not records:
            raise RecordNotFound(f"this project has no batch with the id {batch.batch_id}")
        return records

    def progress(self, batch: Batch) -> BatchProgress:
        return combined(batch, [record.progress for record in self.runners(batch)])

    def details_of(self, batches: Iterable[Batch]) -> dict[str, tuple[BatchProgress, Request | None]]:
        """Returns (progress, request) by batch id; the request is None unless the batch is active.

        One read for fifty batches.
        """
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
        """Changes the state of a batch, unless its state or run has changed. `due`: when compensation acts, and why."""
        due_attributes = keys.due(batch.batch_id, *due) if due else self._due(batch, status, sets or {})
        removed = [*removes, *(() if due_attributes else keys.DUE_ATTRIBUTES)]
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
            lines = [audit_write(line)] if line else []
            self._table.transact([write, *_first_start(batch), *notices, *lines, *noted(batch_id=batch.batch_id)])
        except ConditionFailed as error:
            present = self._table.get(keys.batch(batch.project_id, batch.batch_id), consistent=True) or {}
            wanted = {"run": batch.run} | dict(sets or {}) | {"status": status}
            if status == batch.status or any(present.get(name) != value for name, value in wanted.items()):
                raise WrongState(_CHANGED) from error
            # The answer to the write was lost and the SDK repeated it: the first write was carried out.
        return self.get(batch.project_id, batch.batch_id) or batch

    def start_writes(self, batch: Batch, sets: Mapping[str, Any], line: AuditLine) -> Sequence[Write]:
        """Returns the writes that start a batch, for the transaction that creates the request of the run."""
        return [*self._start(batch, sets), *_first_start(batch), audit_write(line)]

    def resume(self, batch: Batch, request: Request) -> Batch:
        """Sets a stopped batch to running when its failed request is retried.

        Raises LeaseLost if that attempt of the request has ended, because a function that stalled must not restart the
        batch.
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
        """Returns the writes that start the batch and remove verdicts and outages of the last run.

        The old verdicts would end the new run. Only verdicts of runners that have finished stay. Whoever starts the
        batch expects that an outage is over.
        """
        started = update(
            keys.batch(batch.project_id, batch.batch_id),
            sets,
            removes=[*keys.DUE_ATTRIBUTES, "stop_reason", "finish_time"],
            condition="#status = :was AND #run = :seen",
            was=batch.status,
            seen=batch.run,
        )
        records = enumerate(record.progress for record in self.runners(batch))
        stale = [n for n, one in records if one.business_is_down or (one.verdict and one.verdict.status != FINISHED)]
        return [started, *(update(_progress_key(batch, runner), removes=["verdict", "outage"]) for runner in stale)]

    def patch(self, batch: Batch, sets: Mapping[str, Any], removes: Sequence[str], line: AuditLine) -> Batch:
        """Changes attributes, if the batch is still in the state that was read."""
        key = keys.batch(batch.project_id, batch.batch_id)
        write = update(key, sets, removes=removes, condition="#status = :was", was=batch.status)
        try:
            self._table.transact([write, audit_write(line)])
        except ConditionFailed as error:
            raise WrongState(_CHANGED) from error
        return self.get(batch.project_id, batch.batch_id) or batch

    # --- the progress of a run: one small item for each runner, written by the holder of the latest fencing token

    def acquire(
        self, batch: Batch, now: float, lease_seconds: float, runner: int = 0
    ) -> tuple[int, BatchProgress] | None:
        """Returns (next fencing token, progress to continue from). None while another function holds the lease."""
        write = update(
            _progress_key(batch, runner),
            {"lease_until": now + lease_seconds},
            adds={"fence": 1},
            condition="attribute_exists(#pk) AND #lease_until < :now",
            now=now,
        )
        try:
            item = self._table.write(write)
        except ConditionFailed:
            return None
        return int(item["fence"]), progress_from(item)

    def save(
        self, batch: Batch, fence: int, progress: BatchProgress, lease_until: float | None = None, runner: int = 0
    ) -> None:
        """Saves a runner's progress. `lease_until` = 0 releases the lease.

        Raises LeaseLost if another function has taken over the runner.
        """
        try:
            self._table.write(self._save(batch, fence, progress, lease_until, runner))
        except ConditionFailed as error:
            raise LeaseLost("another runner has taken over the batch") from error

    def set_total(self, batch: Batch, total: int) -> None:
        """Stores the number of items, once the rows of the file are counted. Every runner finds the same number."""
        key = keys.batch(batch.project_id, batch.batch_id)
        self._table.write(update(key, {"total": total}))

    def end_writes(self, batch: Batch, fences: Sequence[int], verdict: Verdict, finish_time: str) -> Sequence[Write]:
        """Returns the writes that end a run, for the transaction that ends its request.

        The transaction fails if one of the fencing tokens is no longer valid.
        """
        return [
            *(self._release_lease(batch, runner, fence) for runner, fence in enumerate(fences)),
            self._ended(batch, verdict.status, verdict.reason, finish_time),
        ]

    @staticmethod
    def _release_lease(batch: Batch, runner: int, fence: int) -> Write:
        return update(
            _progress_key(batch, runner),
            {"lease_until": 0, "rate_now": 0},
            # This run's verdict must not end the next run.
            removes=("verdict", "asleep_until", "eta"),
            condition="#fence = :fence",
            fence=fence,
        )

    def stopped_write(self, batch: Batch, reason: str, finish_time: str) -> Write:
        """Returns the write that stops a batch whose request ended without its runner.

        The request was cancelled, or the runner was lost.
        """
        return self._ended(batch, STOPPED, reason, finish_time)

    def _ended(self, batch: Batch, status: str, reason: str | None, finish_time: str) -> Write:
        ended = {"status": status, "stop_reason": reason, "finish_time": finish_time}
        return update(
            keys.batch(batch.project_id, batch.batch_id),
            ended | self._due(batch, status, ended),
            removes=() if reason else ("stop_reason",),
            condition="#run = :run AND #status IN (:running, :stopping)",
            run=batch.run,
            running=RUNNING,
            stopping=STOPPING,
        )

    def _due(self, batch: Batch, status: str, sets: Mapping[str, Any]) -> dict[str, str | int]:
        """Returns the attributes by which an ended batch is deleted later.

        Empty if it has not ended or is kept for ever.
        """
        if not self._kept_seconds or status not in ENDED or not sets.get("finish_time"):
            return {}
        until = datetime.fromisoformat(sets["finish_time"]).timestamp() + self._kept_seconds
        return keys.due(batch.batch_id, until, BATCH_ENDED)

    @staticmethod
    def _save(batch: Batch, fence: int, progress: BatchProgress, lease_until: float | None, runner: int) -> Write:
        lease = {} if lease_until is None else {"lease_until": lease_until}
        attributes = progress_attributes(progress)
        return update(
            _progress_key(batch, runner),
            attributes | lease,
            removes=[name for name in _UNSET if attributes[name] is None],
            condition="#fence = :fence",
            fence=fence,
        )

    # --- one rate for all batches of a business: each runner announces its wanted rate every second

    def share_rate(self, batch: Batch, runner: int, wanted_rate: float, limit: float, now: float) -> float:
        """Returns this runner's rate, for a business that accepts `limit` items per second. One write and one query."""
        key = keys.business_rate(batch.project_id, batch.biz_id, batch.batch_id, runner)
        expires = {"until": now + _VALID_SECONDS, "expires_at": int(now) + _RATE_KEPT_SECONDS}
        self._table.write(put(key | {"rate": wanted_rate} | expires))
        partition = keys.business_rates(batch.project_id, batch.biz_id)
        running = self._table.query_all(partition, consistent=True)
        wanted = {str(item["sk"]): float(item["rate"]) for item in running if item["until"] > now}
        return fair_rates(limit, wanted | {key["sk"]: wanted_rate})[key["sk"]]

    def release_rate(self, batch: Batch, runner: int) -> None:
        """Makes this runner's share available to the others immediately."""
        self._table.batch_delete([keys.business_rate(batch.project_id, batch.biz_id, batch.batch_id, runner)])

    # --- data and log lines

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

    def add_logs(self, project_id: str, batch_id: str, lines: Iterable[BatchLogLine], now: float) -> None:
        self._table.batch_put(self._log_item(project_id, batch_id, line, now) for line in lines)

    def logs(
        self, project_id: str, batch_id: str, *, index: int | None, limit: int, cursor: str | None
    ) -> Listed[BatchLogLine]:
        if index is None:
            page = self._table.page(
                keys.batch_logs(project_id, batch_id), newest_first=True, limit=limit, cursor=cursor
            )
        else:
            partition = keys.batch_item_logs(project_id, batch_id, index)
            page = self._table.page(partition, index="gsi1", newest_first=True, limit=limit, cursor=cursor)
        return Listed([record_from(BatchLogLine, item) for item in page.items], page.cursor)

    def newest_logs(self, project_id: str, batch_id: str) -> Iterable[BatchLogLine]:
        return (
            record_from(BatchLogLine, item)
            for item in self._table.query_all(keys.batch_logs(project_id, batch_id), newest_first=True)
        )

    @staticmethod
    def _log_item(project_id: str, batch_id: str, line: BatchLogLine, now: float) -> dict[str, Any]:
        key = keys.batch_log(project_id, batch_id, line.time, line.log_id)
        item_index: dict[str, str] = {}
        if line.index is not None:
            item_index = {"gsi1pk": keys.batch_item_logs(project_id, batch_id, line.index), "gsi1sk": key["sk"]}
        return key | item_of(line) | item_index | {"expires_at": int(now) + LOG_SECONDS}


# --- runner records


def progress_from(item: Mapping[str, Any]) -> BatchProgress:
    verdict, carried, offset = item.get("verdict"), _carried(item), item["offset"]
    aside = sorted(one.index for one in carried.open_items if one.index < offset)
    return BatchProgress(
        window=WindowState(offset, bytes(item.get("bitmap") or b""), tuple(aside)),
        # Older versions stored `errors`, which were all abandoned items.
        counts=Counts(item.get("failed", 0), item.get("abandoned", item.get("errors", 0)), item.get("failed_calls", 0)),
        rate_now=item.get("rate_now", 0.0),
        verdict=Verdict(**verdict) if verdict else None,
        carried=carried,
        outcome_parts=item.get("outcome_parts", 0),
        report_parts=item.get("report_parts", 0),
        wake_at=item.get("asleep_until"),
        eta=item.get("eta"),
        last_milestone=item.get("told", 0),
    )


def _record(item: Mapping[str, Any]) -> RunnerRecord:
    return RunnerRecord(progress_from(item), int(item["fence"]), float(item["lease_until"]))


def progress_attributes(progress: BatchProgress) -> dict[str, Any]:
    carried = progress.carried
    return {
        "offset": progress.window.offset,
        "bitmap": progress.window.bitmap,
        "failed": progress.counts.failed,
        "abandoned": progress.counts.abandoned,
        "failed_calls": progress.counts.failed_calls,
        "rate_now": progress.rate_now,
        "verdict": asdict(progress.verdict) if progress.verdict else None,
        "tokens": carried.tokens,
        "tokens_at": carried.tokens_at,
        "open_items": pack_open(carried.open_items),
        "reopened": {str(index): calls for index, calls in sorted(carried.reopened.items())},
        "outcome_parts": progress.outcome_parts,
        "report_parts": progress.report_parts or None,
        "asleep_until": progress.wake_at,
        "eta": progress.eta,
        "told": progress.last_milestone,
        "outage": list(carried.outage) if carried.outage.calls else None,
        "delays": carried.delays,
    }


def _carried(item: Mapping[str, Any]) -> Carried:
    return Carried(
        tokens=item.get("tokens", 1.0),
        tokens_at=item.get("tokens_at"),
        open_items=unpack_open(bytes(item.get("open_items") or b"")),
        reopened=_reopened(item.get("reopened", ())),
        outage=Outage(*item.get("outage") or ()),
        delays=item.get("delays"),
    )


def _reopened(stored: Any) -> dict[int, int]:
    # Older versions stored only the indexes.
    calls = stored if isinstance(stored, Mapping) else dict.fromkeys(stored, 0)
    return {int(index): int(count) for index, count in calls.items()}


def pack_open(items: Iterable[OpenItem]) -> bytes:
    """Packs and compresses open items: thousands of them must fit into one small record."""
    numbers = array("q")
    for item in items:
        numbers.extend((item.index, item.attempt * 2 + item.awaiting, round(item.at * 1000)))
    return zlib.compress(numbers.tobytes(), 1) if numbers else b""


def unpack_open(data: bytes) -> tuple[OpenItem, ...]:
    numbers = array("q", zlib.decompress(data) if data else b"")
    triples = zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
    return tuple(OpenItem(index, flags // 2, at / 1000, bool(flags & 1)) for index, flags, at in triples)


_UNSET = ("verdict", "tokens_at", "asleep_until", "eta", "outage", "report_parts", "delays")


def fair_rates(limit: float, wanted: Mapping[str, float]) -> dict[str, float]:
    """Returns the rate of each runner. `wanted`: the rates that the runners want.

    A runner that wants less than an even share gets what it wants. The others divide the rest evenly.
    """
    rates: dict[str, float] = {}
    for place, (name, rate) in enumerate(sorted(wanted.items(), key=lambda entry: (entry[1], entry[0]))):
        rates[name] = min(rate, (limit - sum(rates.values())) / (len(wanted) - place))
    return rates


def _first_start(batch: Batch) -> list[Write]:
    """Returns the write that counts one unstarted batch less, for the transaction of a batch's first start.

    Empty for later starts.
    """
    is_first = batch.status == CREATED and batch.counted
    return [batches_write(batch.project_id, {"unstarted_batches": -1})] if is_first else []


def _progress_key(batch: Batch, runner: int) -> dict[str, str]:
    return keys.batch_progress(batch.project_id, batch.batch_id, runner)


def _progress_keys(batch: Batch) -> list[tuple[str, str]]:
    return [(key["pk"], key["sk"]) for key in (_progress_key(batch, runner) for runner in range(batch.runners))]


def _first_record(batch: Batch, runner: int) -> dict[str, Any]:
    progress = progress_attributes(first_progress(batch, runner))
    return _progress_key(batch, runner) | {"fence": 0, "lease_until": 0} | progress
