"""The steps of the batch machine: a slice, another, until the batch is over; and what is done where a slice died."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from tidegate.batches.model import FINISHED, RUNNING, STOPPED, Batch
from tidegate.batches.preparations import Preparations
from tidegate.batches.progress import Progress
from tidegate.batches.run.slice import CONTINUE, ENDED, SliceEnd, SliceRunner
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.values import Verdict
from tidegate.batches.store import BatchStore
from tidegate.batches.view import shown
from tidegate.common.ids import Clock, iso
from tidegate.errors import BatchStopped, DomainError, LeaseLost, RequestTimedOut, WorkerLost
from tidegate.queue.attempt import RunningAttempt, Timing
from tidegate.queue.model import Request
from tidegate.queue.transaction import Refused

if TYPE_CHECKING:
    from tidegate.notifications.progress import ProgressFeed
    from tidegate.queue.queue import RequestQueue

logger = Logger(service="tidegate", child=True)

# The first step of a batch for several functions: the machine starts an execution for each of the others.
SPLIT = "split"
RENEW = "renew"
_INDEX_SECONDS = 600.0
TIMING = Timing(look=0.0, beat=30.0)


class RequestCharge:
    """The right to run, by the request of the run: its heartbeat, its progress, its end."""

    def __init__(
        self, request: Request, queue: RequestQueue, ends: BatchRunStore, live: ProgressFeed, clock: Clock
    ) -> None:
        self._request = request
        self._here = (request.project_id, request.request_id, request.attempt)
        self._queue = queue
        self._ends = ends
        self._live = live
        self._clock = clock
        self._running = RunningAttempt(queue, request, TIMING)

    def confirm(self, batch: Batch, progress: Progress, *, tell: bool) -> None:
        try:
            self._running(progress.shown(batch))
        except RequestTimedOut as error:
            raise LeaseLost(error.detail) from error
        if tell:
            self._live.progress(batch.project_id, batch.batch_id, shown(batch, progress))

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        error = BatchStopped(verdict.reason or "") if verdict.failed else None
        writes = self._ends.end_writes(batch, fences, verdict, iso(self._clock()))
        result = {"batch_id": batch.batch_id, "status": verdict.status, "stop_reason": verdict.reason}
        try:
            self._queue.finish(*self._here, result=result, error=error, extra_writes=writes)
        except Refused as refused:
            raise LeaseLost("another runner has taken over the batch") from refused


class BatchSteps:
    def __init__(
        self,
        batches: BatchStore,
        runner: SliceRunner,
        prepare: Preparations,
        queue: RequestQueue,
        ends: BatchRunStore,
        live: ProgressFeed,
        clock: Clock,
        rounds: int,
    ) -> None:
        self._batches = batches
        self._runner = runner
        self._prepare = prepare
        self._queue = queue
        self._ends = ends
        self._live = live
        self._clock = clock
        self._rounds = rounds

    def step(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """One slice of one runner. Past so many rounds the machine goes on in a new execution: its history has an
        end."""
        here = {name: event[name] for name in ("project_id", "request_id", "attempt")}
        if "indexer" in event:
            return {**here, "indexer": event["indexer"], "outcome": self._index(here, event)}
        runner = event.get("runner", 0)
        turn = {"runner": runner, "round": event.get("round", 0) + 1, "generation": event.get("generation", 1)}
        try:
            ended: SliceEnd | list[dict[str, Any]] = self._slice(self._queue.running(**here), event)
        except LeaseLost as error:
            logger.info("another attempt, or nobody, has this batch", **here, why=error.detail)
            ended = SliceEnd(ENDED)
        except DomainError as error:
            logger.warning("a slice failed", **here, code=error.code, why=error.detail)
            self._queue.finish(**here, error=error)
            ended = SliceEnd(ENDED)
        if isinstance(ended, list):
            others = [{"name": _execution_name(here, 1, **one), "input": {**here, **one}} for one in ended]
            return {**here, **turn, "outcome": SPLIT, "runners": others}
        if ended.outcome != ENDED and turn["round"] >= self._rounds:
            following = {**here, "runner": runner, "round": 0, "generation": turn["generation"] + 1}
            name = _execution_name(here, following["generation"], runner)
            return {**here, **turn, "outcome": RENEW, "successor": {"name": name, "input": following}}
        return {**here, **turn, "outcome": ended.outcome, "seconds": ended.seconds}

    def _index(self, here: Mapping[str, Any], event: Mapping[str, Any]) -> str:
        """Makes its part of the row index. What it does not make, the runners make when they come to it."""
        until = time.monotonic() + _INDEX_SECONDS

        def goes_on() -> bool:
            self._queue.running(**here)
            return time.monotonic() < until

        try:
            if "failure" in event:
                raise WorkerLost(str(event["failure"])[:300])
            request = self._queue.running(**here)
            batch = self._batches.get(request.project_id, request.payload["batch_id"])
            done = batch is None or self._prepare.index_rows(batch, event["indexer"], goes_on)
        except DomainError as error:
            logger.info("an indexer of rows ends", **here, indexer=event["indexer"], why=error.detail)
            return ENDED
        return ENDED if done else CONTINUE

    def _slice(self, request: Request, event: Mapping[str, Any]) -> SliceEnd | list[dict[str, Any]]:
        """One slice; or, of the first step of a batch for several functions, what the others are to do."""
        if "failure" in event:
            failure = event["failure"]
            raise WorkerLost(f"{failure.get('Error')}: {str(failure.get('Cause'))[:300]}")
        batch = self._batches.get(request.project_id, request.payload["batch_id"])
        if batch is None or batch.run != request.payload["run"] or batch.status == FINISHED:
            self._queue.finish(request.project_id, request.request_id, request.attempt, result={"status": "outdated"})
            return SliceEnd(ENDED)
        begins = "runner" not in event
        if batch.status == STOPPED:
            if not begins:
                raise LeaseLost("another runner has ended the batch")
            # Someone retries the failed request: its batch goes on where it stopped.
            batch = self._batches.move(batch, RUNNING)
        if begins:
            # Once, not by each runner.
            self._prepare.extent(batch, batch.start_index, wait=True)
            runners = [{"runner": other} for other in range(1, batch.runners)]
            others = runners + [{"indexer": number} for number in range(self._prepare.indexers(batch))]
            if others:
                return others
        charge = RequestCharge(request, self._queue, self._ends, self._live, self._clock)
        runner = event.get("runner", 0)
        ended = self._runner.run(batch, charge, runner)
        told = {"batch_id": batch.batch_id, "runner": runner}
        logger.info("a slice is over", **told, outcome=ended.outcome, seconds=ended.seconds)
        return ended


def _execution_name(here: Mapping[str, Any], generation: int, runner: int = 0, indexer: int | None = None) -> str:
    part = f"r{runner}-" if runner else "" if indexer is None else f"i{indexer}-"
    return f"{here['request_id']}-{here['attempt']}-{part}{generation}"
