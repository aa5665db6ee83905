"""How a batch ends together with the request of its run, and what the notice of that end shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tidegate.batches.model import ACTIVE, STOPPED, Batch
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.store import BatchStore
from tidegate.batches.view import shown
from tidegate.common.ids import Clock, iso
from tidegate.errors import BatchStopped
from tidegate.queue.model import COMPLETED, Request


class BatchEnds:
    def __init__(self, batches: BatchStore, runs: BatchRunStore, clock: Clock) -> None:
        self._batches = batches
        self._runs = runs
        self._clock = clock

    def writes(self, ended: Request) -> Sequence[Any]:
        """Returns the write that stops the batch, if its runner was cancelled or lost and cannot end it itself."""
        if ended.status == COMPLETED or _code(ended) == BatchStopped.code:
            return ()
        batch = self._batches.get(ended.project_id, ended.payload["batch_id"])
        if batch is None or batch.request_id != ended.request_id or batch.status not in ACTIVE:
            return ()
        return [self._runs.stopped_write(batch, _reason(batch, ended), iso(self._clock()))]

    def shown(self, request: Request) -> dict[str, Any]:
        """Returns the batch as it will be when this end is written."""
        batch = self._batches.get(request.project_id, request.payload["batch_id"])
        if batch is None:
            return request.shown()
        progress = self._batches.progress(batch)
        if request.is_over and batch.request_id == request.request_id and batch.status in ACTIVE:
            result = request.result or {"status": STOPPED, "stop_reason": _reason(batch, request)}
            status, reason = result.get("status", batch.status), result.get("stop_reason")
            batch = replace(batch, status=status, stop_reason=reason, finish_time=request.finish_time)
        return shown(batch, progress)


def _code(request: Request) -> str | None:
    return (request.error or {}).get("code")


def _reason(batch: Batch, ended: Request) -> str:
    if ended.error:
        return ended.error["detail"]
    return batch.stop_reason or f"its request was {ended.status}"
