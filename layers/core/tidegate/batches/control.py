"""Starts, stops and ends batches, for people and for the business."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tidegate.aws.table import Write
from tidegate.batches.batches import ask, authorize, get, get_business
from tidegate.batches.model import (
    ACTIVE,
    ASK_AGAIN_SECONDS,
    BIZ_WAIT_SECONDS,
    STOPPED,
    WAITING_BIZ,
    Batch,
    Business,
    batch_view,
    choose_channel,
    next_state,
)
from tidegate.common.ids import iso, new_id
from tidegate.errors import BatchStopped, Conflict, DomainError, FetchTimeout, NotSent, WrongState
from tidegate.notifications.notices import Notice, notice_id_for
from tidegate.projects.audit import SYSTEM, AuditLine, act
from tidegate.queue.control import cancel
from tidegate.queue.model import COMPLETED, PAUSED, WAITING, Request

if TYPE_CHECKING:
    from tidegate.batches import Batches


def start(b: Batches, batch: Batch, business: Business, who: str) -> Batch:
    """Starts the batch.

    A business with a `before_run_url` is asked instead, and then has 30 minutes to start the batch.
    """
    _refuse_above_limit(b, batch)
    if not business.before_run_url:
        return _run(b, batch, business, next_state("start", batch.status), who, "batch.start")
    now = b.clock()
    waiting = b.store.move(
        batch,
        next_state("ask_business", batch.status),
        {"run": batch.run + 1},
        removes=["stop_reason", "finish_time", "asked_at"],
        due=(now.timestamp(), "batch_ask"),
        line=_line(b, batch, WAITING_BIZ, who, "batch.start"),
    )
    return _ask(b, waiting, business)


def _refuse_above_limit(b: Batches, batch: Batch) -> None:
    """Raises WrongState if a stopped batch has as many failures as its limits allow.

    If it were started, it would stop again at once.
    """
    if batch.status != STOPPED:
        return
    if exceeded := batch.rules.exceeded(b.store.progress(batch).errors, batch.total):
        raise WrongState(f"{exceeded}: raise or remove that limit (PATCH), then start the batch again")


def _ask(b: Batches, batch: Batch, business: Business) -> Batch:
    try:
        if business.before_run_url:
            ask(b, business.before_run_url, f"{batch.batch_id}.run.{batch.run}", batch)
    except (FetchTimeout, NotSent):
        # Not a refusal: a slow business may still start the batch. Ask again later.
        now = b.clock().timestamp()
        return _keep_waiting(b, batch, (now + ASK_AGAIN_SECONDS, "batch_ask"))
    except DomainError as error:
        _stop_waiting(b, batch, f"the business did not accept the batch: {error.detail}")
        raise
    until = b.clock().timestamp() + BIZ_WAIT_SECONDS
    return _keep_waiting(b, batch, (until, "batch_wait"))


def _keep_waiting(b: Batches, batch: Batch, due: tuple[float, str]) -> Batch:
    try:
        return b.store.move(batch, WAITING_BIZ, {"asked_at": batch.asked_at or iso(b.clock())}, due=due)
    except WrongState:
        # The business may have started the batch before it answered.
        return get(b, batch.project_id, batch.batch_id)


def ask_again(b: Batches, project_id: str, batch_id: str) -> bool:
    """Asks the business again whether the batch may run, if the first call was never made or timed out.

    Returns False if the batch does not wait any more. Called by compensation.
    """
    batch = get(b, project_id, batch_id)
    if batch.status != WAITING_BIZ:
        return False
    wait = timedelta(seconds=BIZ_WAIT_SECONDS)
    if batch.asked_at and b.clock() > datetime.fromisoformat(batch.asked_at) + wait:
        return give_up_waiting(b, project_id, batch_id)
    _ask(b, batch, get_business(b, project_id, batch.biz_id))
    return True


def give_up_waiting(b: Batches, project_id: str, batch_id: str) -> bool:
    """Stops a batch that the business has not started within 30 minutes.

    Returns False if the batch does not wait any more. Called by compensation.
    """
    batch = get(b, project_id, batch_id)
    if batch.status != WAITING_BIZ:
        return False
    _stop_waiting(b, batch, "the business did not start it within 30 minutes")
    return True


def biz_start(b: Batches, project_id: str, batch_id: str, auth_code: str | None, who: str) -> Batch:
    """Starts a waiting batch, on behalf of its business. Raises WrongAuthCode if the auth_code is wrong."""
    batch = get(b, project_id, batch_id)
    business = authorize(b, batch, auth_code)
    return _run(b, batch, business, next_state("biz_start", batch.status), who, "batch.biz_start")


def biz_stop(b: Batches, project_id: str, batch_id: str, auth_code: str | None, reason: str | None, who: str) -> Batch:
    """Stops a batch, on behalf of its business. Raises WrongAuthCode if the auth_code is wrong."""
    batch = get(b, project_id, batch_id)
    authorize(b, batch, auth_code)
    why = f"the business stopped it: {reason}" if reason else "the business stopped it"
    return _stop(b, batch, why, who, "batch.biz_stop")


def stop(b: Batches, project_id: str, batch_id: str, who: str) -> Batch:
    """Stops the batch. If runners work on it now, it is `stopping` until they have saved their progress."""
    return _stop(b, get(b, project_id, batch_id), "stopped on request", who, "batch.stop")


def _line(b: Batches, batch: Batch, status: str, who: str, action: str, why: str = "") -> AuditLine:
    states = (batch.status, status)
    return act(batch.project_id, batch.batch_id, b.clock(), who, action, why, states=states)


def _run(b: Batches, batch: Batch, business: Business, status: str, who: str, action: str) -> Batch:
    """Creates the request and changes the state in one transaction: a running batch has exactly one request."""
    now = b.clock()
    request_id = new_id("req", now)
    run = batch.run if batch.status == WAITING_BIZ else batch.run + 1
    sets = {"status": status, "run": run, "request_id": request_id, "start_time": iso(now)}
    loads = _loads(b)
    line = _line(b, batch, status, who, action, f"request {request_id}")
    try:
        b.queue.submit(
            batch.project_id,
            "batch",
            channel=choose_channel(loads) if loads else None,
            payload={"batch_id": batch.batch_id, "run": run, "name": batch.name},
            priority=batch.priority,
            # The queue runs requests with the same subscription_id one at a time.
            subscription_id=f"batch-key:{batch.concurrency_key}" if batch.concurrency_key else None,
            request_id=request_id,
            slots=batch.runners,
            callback=business.process_stop_url,
            extra_writes=b.store.start_writes(batch, sets, line),
            who=who,
        )
    except Conflict as error:
        present = get(b, batch.project_id, batch.batch_id)
        if present.request_id != request_id:
            raise WrongState("the batch changed meanwhile: read it and try again") from error
        # The answer to the write was lost and the SDK repeated it: the first write started the batch.
        return present
    return replace(
        batch, status=status, run=run, request_id=request_id, start_time=iso(now), stop_reason=None, finish_time=None
    )


def _loads(b: Batches) -> Mapping[str, tuple[int, int]]:
    """Returns (running and queued requests, capacity) by channel; empty if only one channel is for batches."""
    if len(b.channel_names) < 2:
        return {}
    stats = {found.channel: (found.running + found.queued, found.capacity) for found in b.queue.channels.stats()}
    return {name: stats.get(name, (0, 1)) for name in b.channel_names}


def _stop(b: Batches, batch: Batch, reason: str, who: str, action: str) -> Batch:
    """Stops a waiting or sleeping batch at once. Otherwise asks its runners to stop; they first save their progress."""
    status = next_state("stop", batch.status)
    if batch.status == WAITING_BIZ:
        return _stop_waiting(b, batch, reason, who, action)
    stopping = batch
    if batch.status != status:
        line = _line(b, batch, status, who, action, reason)
        stopping = b.store.move(batch, status, {"stop_reason": reason}, line=line)
    request = b.queue.get(batch.project_id, batch.request_id or "")
    if request.status in WAITING or request.status == PAUSED or _is_sleeping(b, batch):
        cancel(b.queue, batch.project_id, request.request_id, who, reason)
        return get(b, batch.project_id, batch.batch_id)
    return stopping


def _is_sleeping(b: Batches, batch: Batch) -> bool:
    """Whether all runners wait for their next call, so that no function would notice the stop until then."""
    now = b.clock().timestamp()
    unfinished = [record for record in b.store.runners(batch) if record.progress.verdict is None]
    return bool(unfinished) and all(record.is_sleeping(now) for record in unfinished)


def _stop_waiting(b: Batches, batch: Batch, reason: str, who: str = SYSTEM, action: str = "batch.stop") -> Batch:
    now = b.clock()
    ended = {"stop_reason": reason, "finish_time": iso(now)}
    progress = b.store.progress(batch)
    notice = Notice(
        notice_id=notice_id_for("batch.finished", batch.batch_id, str(batch.run)),
        project_id=batch.project_id,
        kind="batch.finished",
        record_id=batch.batch_id,
        status=STOPPED,
        data=batch_view(replace(batch, status=STOPPED, stop_reason=reason, finish_time=iso(now)), progress),
        callback=get_business(b, batch.project_id, batch.biz_id).process_stop_url,
        created_at=now,
    )
    line = _line(b, batch, STOPPED, who, action, reason)
    stopped = b.store.move(batch, STOPPED, ended, notice=notice, line=line)
    b.notifier.publish([notice])
    return stopped


# --- ends
# How a batch ends together with the request of its run, and what the notice of that end shows.


def end_writes(b: Batches, ended: Request) -> Sequence[Write]:
    """Returns the write that stops a batch, if its request was cancelled or its runner was lost; else nothing.

    In all other cases the runner ends the batch itself.
    """
    if ended.status == COMPLETED or _code(ended) == BatchStopped.code:
        return ()
    batch = b.store.get(ended.project_id, ended.payload["batch_id"])
    if batch is None or batch.request_id != ended.request_id or batch.status not in ACTIVE:
        return ()
    return [b.store.stopped_write(batch, _reason(batch, ended), iso(b.clock()))]


def view_at_end(b: Batches, request: Request) -> dict[str, Any]:
    """Returns the batch for the notice that this request has ended: as callers see it once that end is stored."""
    batch = b.store.get(request.project_id, request.payload["batch_id"])
    if batch is None:
        return request.view()
    progress = b.store.progress(batch)
    if request.is_over and batch.request_id == request.request_id and batch.status in ACTIVE:
        result = request.result or {"status": STOPPED, "stop_reason": _reason(batch, request)}
        status, reason = result.get("status", batch.status), result.get("stop_reason")
        batch = replace(batch, status=status, stop_reason=reason, finish_time=request.finish_time)
    return batch_view(batch, progress)


def _code(request: Request) -> str | None:
    return (request.error or {}).get("code")


def _reason(batch: Batch, ended: Request) -> str:
    if ended.error:
        return ended.error["detail"]
    return batch.stop_reason or f"its request was {ended.status}"
