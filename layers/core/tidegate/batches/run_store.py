"""The progress of a batch: one small item, written by whoever holds the latest fencing token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, update
from tidegate.batches.model import RUNNING, STOPPED, STOPPING, Batch, Progress
from tidegate.batches.run_state import Verdict
from tidegate.batches.sliding_window import WindowState
from tidegate.errors import LeaseLost


def progress_from(item: Mapping[str, Any]) -> Progress:
    verdict = item.get("verdict")
    return Progress(
        ledger=WindowState(item["offset"], bytes(item.get("bitmap") or b"")),
        errors=item["errors"],
        rate_now=item.get("rate_now", 0.0),
        verdict=Verdict(**verdict) if verdict else None,
    )


def progress_attributes(progress: Progress) -> dict[str, Any]:
    return {
        "offset": progress.ledger.offset,
        "bitmap": progress.ledger.bitmap,
        "errors": progress.errors,
        "rate_now": progress.rate_now,
        "verdict": asdict(progress.verdict) if progress.verdict else None,
    }


class BatchRunStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def acquire(self, batch: Batch, now: float, lease_seconds: float) -> tuple[int, Progress] | None:
        """The next fencing token and the progress to go on from; None while another's lease lasts."""
        write = update(
            keys.batch_progress(batch.project_id, batch.batch_id),
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

    def save(self, batch: Batch, fence: int, progress: Progress, lease_until: float | None = None) -> None:
        """What a runner knows, once a second. A lease that was taken over refuses it; 0 gives the lease back."""
        try:
            self._table.write(self._save(batch, fence, progress, lease_until))
        except ConditionFailed as error:
            raise LeaseLost("another runner has taken over the batch") from error

    def set_total(self, batch: Batch, total: int) -> None:
        """Known once the rows of a file were counted."""
        key = keys.batch(batch.project_id, batch.batch_id)
        self._table.write(update(key, {"total": total}))

    def end_writes(self, batch: Batch, fence: int, verdict: Verdict, finish_time: str) -> list[Write]:
        """The end of a run, for the transaction that ends its request. The fence guards it too."""
        return [
            update(
                keys.batch_progress(batch.project_id, batch.batch_id),
                {"lease_until": 0, "rate_now": 0},
                # A verdict that was carried out must not end the next run.
                removes=("verdict",),
                condition="#fence = :fence",
                fence=fence,
            ),
            self._ended(batch, verdict.status, verdict.reason, finish_time),
        ]

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
    def _save(batch: Batch, fence: int, progress: Progress, lease_until: float | None) -> Write:
        lease = {} if lease_until is None else {"lease_until": lease_until}
        return update(
            keys.batch_progress(batch.project_id, batch.batch_id),
            progress_attributes(progress) | lease,
            removes=() if progress.verdict else ("verdict",),
            condition="#fence = :fence",
            fence=fence,
        )
