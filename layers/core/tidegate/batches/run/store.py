"""The progress of a batch: one small item for each runner, written by whoever holds its latest fencing token."""

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
        # `errors` is what an older version counted: all of them were abandoned.
        counts=Counts(item.get("failed", 0), item.get("abandoned", item.get("errors", 0)), item.get("failed_calls", 0)),
        rate_now=item.get("rate_now", 0.0),
        verdict=Verdict(**verdict) if verdict else None,
        carried=_carried(item),
        outcome_parts=item.get("outcome_parts", 0),
        asleep_until=item.get("asleep_until"),
        eta=item.get("eta"),
        told=item.get("told", 0),
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
        "asleep_until": progress.asleep_until,
        "eta": progress.eta,
        "told": progress.told,
    }


def _carried(item: Mapping[str, Any]) -> Carried:
    return Carried(
        tokens=item.get("tokens", 1.0),
        tokens_at=item.get("tokens_at"),
        open_items=unpack_open(bytes(item.get("open_items") or b"")),
        reopened=frozenset(int(index) for index in item.get("reopened", ())),
    )


def pack_open(items: Iterable[OpenItem]) -> bytes:
    """Thousands of items may wait for a retry: three numbers each, compressed, within one small record."""
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
        """All runners of the batch, in their order."""
        return runners_of(self._table, batch)

    def acquire(self, batch: Batch, now: float, lease_seconds: float, runner: int = 0) -> tuple[int, Progress] | None:
        """The next fencing token and the progress to go on from; None while another's lease lasts."""
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
        """What a runner knows, once a second. A lease that was taken over refuses it; 0 gives the lease back."""
        try:
            self._table.write(self._save(batch, fence, progress, lease_until, runner))
        except ConditionFailed as error:
            raise LeaseLost("another runner has taken over the batch") from error

    def set_total(self, batch: Batch, total: int) -> None:
        """Known once the rows of a file were counted."""
        key = keys.batch(batch.project_id, batch.batch_id)
        self._table.write(update(key, {"total": total}))

    def end_writes(self, batch: Batch, fences: Sequence[int], verdict: Verdict, finish_time: str) -> list[Write]:
        """The end of a run, for the transaction that ends its request. The fencing tokens of all runners guard it."""
        return [
            *(self._rest(batch, runner, fence) for runner, fence in enumerate(fences)),
            self._ended(batch, verdict.status, verdict.reason, finish_time),
        ]

    @staticmethod
    def _rest(batch: Batch, runner: int, fence: int) -> Write:
        return update(
            keys.batch_progress(batch.project_id, batch.batch_id, runner),
            {"lease_until": 0, "rate_now": 0},
            # A verdict that was carried out must not end the next run.
            removes=("verdict", "asleep_until", "eta"),
            condition="#fence = :fence",
            fence=fence,
        )

    def stopped_write(self, batch: Batch, reason: str, finish_time: str) -> Write:
        """For a request that ended without its runner: cancelled, or lost for good."""
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
