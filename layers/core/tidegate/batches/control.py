"""Starts, stops and ends batches, for people and for the business."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidegate.batches.batches import Batches, Registry, for_business, shown
from tidegate.batches.model import (
    ACTIVE,
    ASK_AGAIN_SECONDS,
    BIZ_WAIT_SECONDS,
    STOPPED,
    WAITING_BIZ,
    Batch,
    choose_channel,
    next_state,
)
from tidegate.batches.run_state import BatchRunStore
from tidegate.batches.store import BatchStore
from tidegate.batches.workers import BusinessCalls
from tidegate.common.ids import Clock, iso, new_id
from tidegate.errors import BatchStopped, Conflict, DomainError, FetchTimeout, NotSent, WrongState
from tidegate.notifications.notices import Notice, Notifier, notice_id_for
from tidegate.projects.audit import SYSTEM, AuditLine, act
from tidegate.queue.model import COMPLETED, PAUSED, WAITING, Request

if TYPE_CHECKING:
    from tidegate.queue.control import Control
    from tidegate.queue.queue import RequestQueue

# --- control
# Starts and stops batches, for people and for the business.

# Returns (running and waiting batches, capacity) of each channel for batches.
Loads = Callable[[], Mapping[str, tuple[int, int]]]


class BatchControl:
    def __init__(
        self,
        batches: Batches,
        store: BatchStore,
        registry: Registry,
        calls: BusinessCalls,
        queue: RequestQueue,
        canceller: Callable[[], Control],
        loads: Loads,
        notifier: Notifier,
        clock: Clock,
    ) -> None:
        self._batches = batches
        self._store = store
        self._registry = registry
        self._calls = calls
        self._queue = queue
        self._canceller = canceller
        self._loads = loads
        self._notifier = notifier
        self._clock = clock

    def start(self, project_id: str, batch_id: str, who: str) -> Batch:
        """Starts the batch; or, with `before_run_url`, asks the business, which then has 30 minutes to start it."""
        batch = self._batches.get(project_id, batch_id)
        self._refuse_above_limit(batch)
        if not self._registry.get(project_id, batch.biz_id).before_run_url:
            return self._run(batch, next_state("start", batch.status), who, "batch.start")
        now = self._clock()
        waiting = self._store.move(
            batch,
            next_state("ask_business", batch.status),
            {"run": batch.run + 1},
            removes=["stop_reason", "finish_time", "asked_at"],
            due=(now.timestamp(), "batch_ask"),
            line=self._line(batch, WAITING_BIZ, who, "batch.start"),
        )
        return self._ask(waiting)

    def _refuse_above_limit(self, batch: Batch) -> None:
        """A batch that its failures have stopped would stop again, after a few more."""
        if batch.status != STOPPED:
            return
        if exceeded := batch.rules.exceeded(self._store.progress(batch).errors, batch.total):
            raise WrongState(f"{exceeded}: raise or remove that limit (PATCH), then start the batch again")

    def _ask(self, batch: Batch) -> Batch:
        url = self._registry.get(batch.project_id, batch.biz_id).before_run_url
        try:
            if url:
                self._calls.ask(batch.project_id, url, f"{batch.batch_id}.run.{batch.run}", for_business(batch))
        except (FetchTimeout, NotSent):
            # Not a refusal: a slow business may still start the batch. Ask again later.
            now = self._clock().timestamp()
            return self._keep_waiting(batch, (now + ASK_AGAIN_SECONDS, "batch_ask"))
        except DomainError as error:
            self._stop_waiting(batch, f"the business did not accept the batch: {error.detail}")
            raise
        until = self._clock().timestamp() + BIZ_WAIT_SECONDS
        return self._keep_waiting(batch, (until, "batch_wait"))

    def _keep_waiting(self, batch: Batch, due: tuple[float, str]) -> Batch:
        try:
            return self._store.move(batch, WAITING_BIZ, {"asked_at": batch.asked_at or iso(self._clock())}, due=due)
        except WrongState:
            # The business may have started the batch before it answered.
            return self._batches.get(batch.project_id, batch.batch_id)

    def ask_again(self, project_id: str, batch_id: str) -> bool:
        """Called by compensation if the call to the business was never made, or timed out."""
        batch = self._batches.get(project_id, batch_id)
        if batch.status != WAITING_BIZ:
            return False
        if batch.asked_at and self._clock() > datetime.fromisoformat(batch.asked_at) + timedelta(
            seconds=BIZ_WAIT_SECONDS
        ):
            return self.give_up_waiting(project_id, batch_id)
        self._ask(batch)
        return True

    def give_up_waiting(self, project_id: str, batch_id: str) -> bool:
        """Called by compensation 30 minutes after the business was asked, if it has not started the batch."""
        batch = self._batches.get(project_id, batch_id)
        if batch.status != WAITING_BIZ:
            return False
        self._stop_waiting(batch, "the business did not start it within 30 minutes")
        return True

    def biz_start(self, project_id: str, batch_id: str, auth_code: str | None, who: str) -> Batch:
        batch = self._batches.get(project_id, batch_id)
        self._batches.authorize(batch, auth_code)
        return self._run(batch, next_state("biz_start", batch.status), who, "batch.biz_start")

    def biz_stop(self, project_id: str, batch_id: str, auth_code: str | None, reason: str | None, who: str) -> Batch:
        batch = self._batches.get(project_id, batch_id)
        self._batches.authorize(batch, auth_code)
        why = f"the business stopped it: {reason}" if reason else "the business stopped it"
        return self._stop(batch, why, who, "batch.biz_stop")

    def stop(self, project_id: str, batch_id: str, who: str) -> Batch:
        return self._stop(self._batches.get(project_id, batch_id), "stopped on request", who, "batch.stop")

    def _line(self, batch: Batch, status: str, who: str, action: str, why: str = "") -> AuditLine:
        states = (batch.status, status)
        return act(batch.project_id, batch.batch_id, self._clock(), who, action, why, states=states)

    def _run(self, batch: Batch, status: str, who: str, action: str) -> Batch:
        """Creates the request and changes the state in one transaction: a running batch has exactly one request."""
        now = self._clock()
        request_id = new_id("req", now)
        run = batch.run if batch.status == WAITING_BIZ else batch.run + 1
        sets = {"status": status, "run": run, "request_id": request_id, "start_time": iso(now)}
        loads = self._loads()
        line = self._line(batch, status, who, action, f"request {request_id}")
        try:
            self._queue.submit(
                batch.project_id,
                "batch",
                channel=choose_channel(loads) if loads else None,
                payload={"batch_id": batch.batch_id, "run": run, "name": batch.name},
                priority=batch.priority,
                # The queue runs requests with the same subscription_id one at a time.
                subscription_id=f"batch-key:{batch.concurrency_key}" if batch.concurrency_key else None,
                request_id=request_id,
                slots=batch.runners,
                callback=self._registry.get(batch.project_id, batch.biz_id).process_stop_url,
                extra_writes=self._store.start_writes(batch, sets, line),
                who=who,
            )
        except Conflict as error:
            present = self._batches.get(batch.project_id, batch.batch_id)
            if present.request_id != request_id:
                raise WrongState("the batch changed meanwhile: read it and try again") from error
            # The answer to the write was lost and the SDK repeated it: the first write started the batch.
            return present
        return self._batches.get(batch.project_id, batch.batch_id)

    def _stop(self, batch: Batch, reason: str, who: str, action: str) -> Batch:
        """Stops a waiting or sleeping batch at once; otherwise asks its runner to stop, which saves its progress."""
        status = next_state("stop", batch.status)
        if batch.status == WAITING_BIZ:
            return self._stop_waiting(batch, reason, who, action)
        stopping = batch
        if batch.status != status:
            line = self._line(batch, status, who, action, reason)
            stopping = self._store.move(batch, status, {"stop_reason": reason}, line=line)
        request = self._queue.get(batch.project_id, batch.request_id or "")
        if request.status in WAITING or request.status == PAUSED or self._is_sleeping(batch):
            self._canceller().cancel(batch.project_id, request.request_id, who, reason)
            return self._batches.get(batch.project_id, batch.batch_id)
        return stopping

    def _is_sleeping(self, batch: Batch) -> bool:
        """Whether all runners wait for their next call, so that no function would notice the stop until then."""
        now = self._clock().timestamp()
        unfinished = [record for record in self._store.runners(batch) if record.progress.verdict is None]
        return bool(unfinished) and all(record.is_sleeping(now) for record in unfinished)

    def _stop_waiting(self, batch: Batch, reason: str, who: str = SYSTEM, action: str = "batch.stop") -> Batch:
        now = self._clock()
        ended = {"stop_reason": reason, "finish_time": iso(now)}
        progress = self._store.progress(batch)
        notice = Notice(
            notice_id=notice_id_for("batch.finished", batch.batch_id, str(batch.run)),
            project_id=batch.project_id,
            kind="batch.finished",
            record_id=batch.batch_id,
            status=STOPPED,
            data=shown(replace(batch, status=STOPPED, stop_reason=reason, finish_time=iso(now)), progress),
            callback=self._registry.get(batch.project_id, batch.biz_id).process_stop_url,
            created_at=now,
        )
        line = self._line(batch, STOPPED, who, action, reason)
        stopped = self._store.move(batch, STOPPED, ended, notice=notice, line=line)
        self._notifier.publish([notice])
        return stopped


# --- ends
# How a batch ends together with the request of its run, and what the notice of that end shows.


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
