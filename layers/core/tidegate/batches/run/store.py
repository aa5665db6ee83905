"""The progress of a batch: one small item for each runner, written by the holder of the latest fencing token."""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, update
from tidegate.batches.model import RUNNING, STOPPED, STOPPING, Batch
from tidegate.batches.progress import Progress, RunnerRecord
from tidegate.batches.run.sliding_window import WindowState
from tidegate.batches.run.values import Carried, Counts, OpenItem, Verdict
from tidegate.errors import LeaseLost


def progress_from(item: Mapping[str, Any]) -> Progress:
    verdict = item.get("verdict")
    return Progress(
        window=WindowState(item["offset"], bytes(item.get("bitmap") or b"")),
        # Older versions stored `errors`, which were all abandoned items.
        counts=Counts(item.get("failed", 0), item.get("abandoned", item.get("errors", 0)), item.get("failed_calls", 0)),
        rate_now=item.get("rate_now", 0.0),
        verdict=Verdict(**verdict) if verdict else None,
        carried=_carried(item),
        outcome_parts=item.get("outcome_parts", 0),
        wake_at=item.get("asleep_until"),
        eta=item.get("eta"),
        last_milestone=item.get("told", 0),
    )


def runners_of(table: Table, batch: Batch) -> list[RunnerRecord]:
    pk = keys.batch(batch.project_id, batch.batch_id)["pk"]
    return [_record(item) for item in table.query_all(pk, sk_prefix=keys.BATCH_PROGRESS, consistent=True)]


def _record(item: Mapping[str, Any]) -> RunnerRecord:
    return RunnerRecord(progress_from(item), int(item["fence"]), float(item["lease_until"]))


def progress_attributes(progress: Progress) -> dict[str, Any]:
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
        "reopened": sorted(carried.reopened),
        "outcome_parts": progress.outcome_parts,
        "asleep_until": progress.wake_at,
        "eta": progress.eta,
        "told": progress.last_milestone,
    }


def _carried(item: Mapping[str, Any]) -> Carried:
    return Carried(
        tokens=item.get("tokens", 1.0),
        tokens_at=item.get("tokens_at"),
        open_items=unpack_open(bytes(item.get("open_items") or b"")),
        reopened=frozenset(int(index) for index in item.get("reopened", ())),
    )


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


class BatchRunStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def runners(self, batch: Batch) -> list[RunnerRecord]:
        """Returns the records of all runners of the batch, in order."""
        return runners_of(self._table, batch)

    def acquire(self, batch: Batch, now: float, lease_seconds: float, runner: int = 0) -> tuple[int, Progress] | None:
        """Returns the next fencing token and the progress to continue from; None while another holds the lease."""
        write = update(
            keys.batch_progress(batch.project_id, batch.batch_id, runner),
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
        self, batch: Batch, fence: int, progress: Progress, lease_until: float | None = None, runner: int = 0
    ) -> None:
        """Saves a runner's progress. LeaseLost if another function took over. `lease_until` = 0 releases the lease."""
        try:
            self._table.write(self._save(batch, fence, progress, lease_until, runner))
        except ConditionFailed as error:
            raise LeaseLost("another runner has taken over the batch") from error

    def set_total(self, batch: Batch, total: int) -> None:
        """Stores the number of items, once the rows of the file are counted. Every runner finds the same number."""
        key = keys.batch(batch.project_id, batch.batch_id)
        self._table.write(update(key, {"total": total}))

    def end_writes(self, batch: Batch, fences: Sequence[int], verdict: Verdict, finish_time: str) -> list[Write]:
        """Returns the writes that end a run, for the transaction that ends its request. Guarded by fencing tokens."""
        return [
            *(self._release(batch, runner, fence) for runner, fence in enumerate(fences)),
            self._ended(batch, verdict.status, verdict.reason, finish_time),
        ]

    @staticmethod
    def _release(batch: Batch, runner: int, fence: int) -> Write:
        return update(
            keys.batch_progress(batch.project_id, batch.batch_id, runner),
            {"lease_until": 0, "rate_now": 0},
            # This run's verdict must not end the next run.
            removes=("verdict", "asleep_until", "eta"),
            condition="#fence = :fence",
            fence=fence,
        )

    def stopped_write(self, batch: Batch, reason: str, finish_time: str) -> Write:
        """Returns the write for a request that ended without its runner: it was cancelled, or its runner was lost."""
        return self._ended(batch, STOPPED, reason, finish_time)

    @staticmethod
    def _ended(batch: Batch, status: str, reason: str | None, finish_time: str) -> Write:
        return update(
            keys.batch(batch.project_id, batch.batch_id),
            {"status": status, "stop_reason": reason, "finish_time": finish_time},
            removes=() if reason else ("stop_reason",),
            condition="#run = :run AND #status IN (:running, :stopping)",
            run=batch.run,
            running=RUNNING,
            stopping=STOPPING,
        )

    @staticmethod
    def _save(batch: Batch, fence: int, progress: Progress, lease_until: float | None, runner: int) -> Write:
        lease = {} if lease_until is None else {"lease_until": lease_until}
        attributes = progress_attributes(progress)
        return update(
            keys.batch_progress(batch.project_id, batch.batch_id, runner),
            attributes | lease,
            removes=[name for name in ("verdict", "tokens_at", "asleep_until", "eta") if attributes[name] is None],
            condition="#fence = :fence",
            fence=fence,
        )
