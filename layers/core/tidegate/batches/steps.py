"""The steps of the batch machine: runs slices until the batch ends, and ends the request if a slice fails."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from tidegate.batches.batches import Preparations, shown
from tidegate.batches.model import FINISHED, STOPPED, Batch, Progress, Verdict
from tidegate.batches.run_state import BatchRunStore
from tidegate.batches.slice import CONTINUE, ENDED, SliceEnd, SliceRunner
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock, iso
from tidegate.errors import BatchStopped, DomainError, LeaseLost, RequestTimedOut, WorkerLost
from tidegate.projects.limits import RunnerTime
from tidegate.queue.model import Request
from tidegate.queue.queue import RunningAttempt, Timing
from tidegate.queue.store import Refused

if TYPE_CHECKING:
    from tidegate.notifications.websocket import ProgressFeed
    from tidegate.queue.queue import RequestQueue

logger = Logger(service="tidegate", child=True)

# Outcome of the first step of a batch for several functions: the machine starts an execution for each of them.
SPLIT = "split"
RENEW = "renew"
_INDEX_SECONDS = 600.0
TIMING = Timing(look=0.0, beat=30.0)


class QueuedRun:
    """The queue's request of this run: its heartbeat, its progress, its end. Implements `RequestHandle`."""

    def __init__(
        self, request: Request, queue: RequestQueue, ends: BatchRunStore, live: ProgressFeed, clock: Clock
    ) -> None:
        self._request = request
        self._attempt = (request.project_id, request.request_id, request.attempt)
        self._queue = queue
        self._ends = ends
        self._live = live
        self._clock = clock
        self._running = RunningAttempt(queue, request, TIMING, parks=False)

    def confirm(self, batch: Batch, progress: Progress, *, publish: bool) -> None:
        try:
            self._running(progress.shown(batch))
        except RequestTimedOut as error:
            raise LeaseLost(error.detail) from error
        if publish:
            self._live.progress(batch.project_id, batch.batch_id, shown(batch, progress))

    def end(self, batch: Batch, fences: Sequence[int], verdict: Verdict) -> None:
        error = BatchStopped(verdict.reason or "") if verdict.failed else None
        writes = self._ends.end_writes(batch, fences, verdict, iso(self._clock()))
        result = {"batch_id": batch.batch_id, "status": verdict.status, "stop_reason": verdict.reason}
        try:
            self._queue.finish(*self._attempt, result=result, error=error, extra_writes=writes)
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
        runner_time: RunnerTime,
    ) -> None:
        self._batches = batches
        self._runner = runner
        self._prepare = prepare
        self._queue = queue
        self._ends = ends
        self._live = live
        self._clock = clock
        self._rounds = rounds
        self._time = runner_time

    def step(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Runs one slice of one runner, or a part of the row index.

        After `rounds` slices the machine continues in a new execution, because the history of one is limited.
        """
        attempt = {name: event[name] for name in ("project_id", "request_id", "attempt")}
        named = {"name": event["name"]} if "name" in event else {}
        if "indexer" in event:
            return {**attempt, "indexer": event["indexer"], "outcome": self._index(attempt, event)}
        runner = event.get("runner", 0)
        counters = {"runner": runner, "round": event.get("round", 0) + 1, "generation": event.get("generation", 1)}
        try:
            ended: SliceEnd | list[dict[str, Any]] = self._slice(self._queue.running(**attempt), event)
        except LeaseLost as error:
            logger.info("this attempt may no longer run the batch", **attempt, why=error.detail)
            ended = SliceEnd(ENDED)
        except DomainError as error:
            logger.warning("a slice failed", **attempt, code=error.code, why=error.detail)
            self._queue.finish(**attempt, error=error)
            ended = SliceEnd(ENDED)
        if isinstance(ended, list):
            others = [{"name": _execution_name(event, 1, **one), "input": {**attempt, **named, **one}} for one in ended]
            return {**attempt, **named, **counters, "outcome": SPLIT, "runners": others}
        if ended.outcome != ENDED and counters["round"] >= self._rounds:
            successor = {**attempt, **named, "runner": runner, "round": 0, "generation": counters["generation"] + 1}
            name = _execution_name(event, successor["generation"], runner)
            return {**attempt, **named, **counters, "outcome": RENEW, "successor": {"name": name, "input": successor}}
        return {**attempt, **named, **counters, "outcome": ended.outcome, "seconds": ended.seconds}

    def _index(self, attempt: Mapping[str, Any], event: Mapping[str, Any]) -> str:
        """Indexes one indexer's ranges of rows. The runners index ranges that are missing when they need them."""
        until = time.monotonic() + _INDEX_SECONDS

        def may_continue() -> bool:
            self._queue.running(**attempt)
            return time.monotonic() < until

        try:
            if "failure" in event:
                raise WorkerLost(str(event["failure"])[:300])
            request = self._queue.running(**attempt)
            batch = self._batches.get(request.project_id, request.payload["batch_id"])
            with self._time.counted(request.project_id):
                done = batch is None or self._prepare.index_rows(batch, event["indexer"], may_continue)
        except DomainError as error:
            logger.info("an indexer of rows ended", **attempt, indexer=event["indexer"], why=error.detail)
            return ENDED
        return ENDED if done else CONTINUE

    def _slice(self, request: Request, event: Mapping[str, Any]) -> SliceEnd | list[dict[str, Any]]:
        """Runs one slice. The first step of a batch for several functions returns the inputs of the others instead."""
        if "failure" in event:
            failure = event["failure"]
            # Only for the log: the cause may have a stack trace and names of AWS resources.
            cause = str(failure.get("Cause"))[:500]
            logger.error("the function that ran a slice died", request_id=request.request_id, cause=cause)
            raise WorkerLost(f"the function that ran a slice of the batch died ({failure.get('Error')})")
        batch = self._batches.get(request.project_id, request.payload["batch_id"])
        if batch is None or batch.run != request.payload["run"] or batch.status == FINISHED:
            self._queue.finish(request.project_id, request.request_id, request.attempt, result={"status": "outdated"})
            return SliceEnd(ENDED)
        first_step = "runner" not in event
        if batch.status == STOPPED:
            if not first_step:
                raise LeaseLost("another runner has ended the batch")
            # Somebody retried the failed request: the batch continues where it stopped.
            batch = self._batches.resume(batch, request)
        if first_step:
            # Once, not in each runner.
            self._prepare.check_rows(batch)
            runners = [{"runner": other} for other in range(1, batch.runners)]
            others = runners + [{"indexer": number} for number in range(self._prepare.indexers(batch))]
            if others:
                return others
        queued_run = QueuedRun(request, self._queue, self._ends, self._live, self._clock)
        runner = event.get("runner", 0)
        ended = self._runner.run(batch, queued_run, runner)
        fields = {"batch_id": batch.batch_id, "runner": runner}
        logger.info("a slice ended", **fields, outcome=ended.outcome, seconds=ended.seconds)
        if ended.outcome != ENDED and ended.reason != request.last_wait_reason:
            self._queue.note_wait(request, ended.reason)
        return ended


def _execution_name(event: Mapping[str, Any], generation: int, runner: int = 0, indexer: int | None = None) -> str:
    part = f"r{runner}-" if runner else "" if indexer is None else f"i{indexer}-"
    # None in executions that an older version started.
    first = event.get("name") or f"{event['request_id']}-{event['attempt']}"
    return f"{first}-{part}{generation}"
