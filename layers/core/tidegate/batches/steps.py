"""The steps of the batch machine: a slice, another, until the batch is over; and what is done where a slice died."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from aws_lambda_powertools import Logger

from tidegate.batches.items import DataItems, Fields, Items, RedrivenItems, RowsWithData, SharedItems
from tidegate.batches.model import FINISHED, RUNNING, STOPPED, Batch, Business
from tidegate.batches.outcomes import redriven_items
from tidegate.batches.progress import Progress
from tidegate.batches.rows.files import RowFiles
from tidegate.batches.run.item_call import ItemCaller
from tidegate.batches.run.slice import ENDED, SliceEnd, SliceRunner
from tidegate.batches.run.store import BatchRunStore
from tidegate.batches.run.values import Verdict
from tidegate.batches.store import BatchStore
from tidegate.batches.view import shown
from tidegate.common.ids import Clock, iso
from tidegate.errors import BatchStopped, DomainError, LeaseLost, RequestTimedOut, WorkerLost
from tidegate.http.client import SafeHttp
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.model import Project
from tidegate.queue.attempt import RunningAttempt, Timing
from tidegate.queue.model import Request
from tidegate.queue.transaction import Refused

if TYPE_CHECKING:
    from tidegate.notifications.progress import ProgressFeed
    from tidegate.queue.queue import RequestQueue

logger = Logger(service="tidegate", child=True)

# The first step of a batch with several runners: the machine starts an execution for each of the others.
SPLIT = "split"
RENEW = "renew"
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


class Preparations:
    def __init__(
        self,
        batches: BatchStore,
        ends: BatchRunStore,
        rows: RowFiles,
        http: SafeHttp,
        sign: Signer,
        clock: Clock,
        business_of: Callable[[str, str], Business],
        project_of: Callable[[str], Project],
    ) -> None:
        self._batches = batches
        self._ends = ends
        self._rows = rows
        self._http = http
        self._sign = sign
        self._clock = clock
        self._business_of = business_of
        self._project_of = project_of

    def work(self, batch: Batch) -> ItemCaller:
        project = self._project_of(batch.project_id)
        business = self._business_of(batch.project_id, batch.biz_id)
        return ItemCaller(
            batch, business.process_url, project, self._http, self._sign, self._clock, shared_rate=business.rate
        )

    def items(self, batch: Batch, runner: int) -> Items:
        items = self._all_items(batch)
        return SharedItems(items, batch.share(runner)) if batch.runners > 1 else items

    def first_items(self, batch: Batch, count: int) -> list[tuple[int, Fields]]:
        """(index, fields) of so many items from the start on; a file is read only as far as they go."""
        start = batch.start_index
        if batch.source and not batch.redrive_of:
            rows = self._rows.first_rows(batch.project_id, batch.source, start + count)
            items: Items = RowsWithData(rows.__getitem__, self._data(batch))
            count = min(count, len(rows) - start)
        else:
            items = self._all_items(batch)
            count = min(count, (batch.total or 0) - start)
        return [(items.name(at), items.fields(at)) for at in range(start, start + count)]

    def _all_items(self, batch: Batch) -> Items:
        if batch.redrive_of:
            rows = self._rows.of_object(redriven_items(batch))
            return RedrivenItems(rows.row, rows.count, batch.redrive_of)
        data = self._data(batch)
        return (
            RowsWithData(self._rows.rows(batch.project_id, batch.source, batch.runners).row, data)
            if batch.source
            else DataItems(data)
        )

    def _data(self, batch: Batch) -> Callable[[], Any]:
        """Read for each item of a serial batch: its business may change them before it answers the item before."""
        if batch.serial:
            return lambda: self._batches.job_data(batch.project_id, batch.batch_id)
        known = self._batches.job_data(batch.project_id, batch.batch_id)
        return lambda: known

    def total(self, batch: Batch) -> int:
        """A file is counted when its batch first runs; a smaller total, if one was given, holds."""
        if batch.source is None:
            return batch.total or 0
        rows = self._rows.index(batch.project_id, batch.source).rows
        total = rows if batch.total is None else min(rows, batch.total)
        if total != batch.total:
            self._ends.set_total(batch, total)
        return total


class BatchSteps:
    def __init__(
        self,
        batches: BatchStore,
        runner: SliceRunner,
        queue: RequestQueue,
        ends: BatchRunStore,
        live: ProgressFeed,
        clock: Clock,
        rounds: int,
    ) -> None:
        self._batches = batches
        self._runner = runner
        self._queue = queue
        self._ends = ends
        self._live = live
        self._clock = clock
        self._rounds = rounds

    def step(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """One slice of one runner. Past so many rounds the machine goes on in a new execution: its history has an
        end."""
        here = {name: event[name] for name in ("project_id", "request_id", "attempt")}
        runner = event.get("runner", 0)
        turn = {"runner": runner, "round": event.get("round", 0) + 1, "generation": event.get("generation", 1)}
        try:
            ended = self._slice(self._queue.running(**here), event)
        except LeaseLost as error:
            logger.info("another attempt, or nobody, has this batch", **here, why=error.detail)
            ended = SliceEnd(ENDED)
        except DomainError as error:
            logger.warning("a slice failed", **here, code=error.code, why=error.detail)
            self._queue.finish(**here, error=error)
            ended = SliceEnd(ENDED)
        if ended.outcome == SPLIT:
            others = [
                {"name": _execution_name(here, other, 1), "input": {**here, "runner": other}}
                for other in range(1, ended.seconds)
            ]
            return {**here, **turn, "outcome": SPLIT, "runners": others}
        if ended.outcome != ENDED and turn["round"] >= self._rounds:
            following = {**here, "runner": runner, "round": 0, "generation": turn["generation"] + 1}
            name = _execution_name(here, runner, following["generation"])
            return {**here, **turn, "outcome": RENEW, "successor": {"name": name, "input": following}}
        return {**here, **turn, "outcome": ended.outcome, "seconds": ended.seconds}

    def _slice(self, request: Request, event: Mapping[str, Any]) -> SliceEnd:
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
        if begins and batch.runners > 1:
            # The rows of a file are counted once, not by each runner.
            self._runner.count(batch)
            return SliceEnd(SPLIT, batch.runners)
        charge = RequestCharge(request, self._queue, self._ends, self._live, self._clock)
        runner = event.get("runner", 0)
        ended = self._runner.run(batch, charge, runner)
        told = {"batch_id": batch.batch_id, "runner": runner}
        logger.info("a slice is over", **told, outcome=ended.outcome, seconds=ended.seconds)
        return ended


def _execution_name(here: Mapping[str, Any], runner: int, generation: int) -> str:
    return f"{here['request_id']}-{here['attempt']}-" + (f"r{runner}-" if runner else "") + str(generation)
