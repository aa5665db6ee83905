"""Actions of callers on a request: cancel, pause, resume, retry, prioritize."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.errors import Conflict, DomainError
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.model import RUNNING, Request, moved
from tidegate.queue.queue import Ending, RequestQueue
from tidegate.queue.runner import RequestRunner
from tidegate.queue.store import RequestStore
from tidegate.queue.transaction import CHANNEL, MUTEX, REQUEST, SLOT, Refused

logger = Logger(service="tidegate", child=True)
_TRIES = 5
# These put a request into the queue that did not wait there, as a new one does.
_QUEUES = ("resume", "retry")


class Control:
    def __init__(
        self,
        queue: RequestQueue,
        store: RequestStore,
        admission_queue: AdmissionQueue,
        runner: RequestRunner,
        clock: Clock,
        restarts: Mapping[str, Ending],
    ) -> None:
        self._queue = queue
        self._store = store
        self._admission_queue = admission_queue
        self._runner = runner
        self._clock = clock
        self._restarts = restarts

    def cancel(self, project_id: str, request_id: str, who: str, why: str = "asked to") -> Request:
        """A waiting request will never run. A running one loses its lease at once, and its state machine is stopped."""
        return self._act(project_id, request_id, "cancel", who, why)

    def pause(self, project_id: str, request_id: str, who: str) -> Request:
        """A running request is stopped and releases its slot. Resumed, it starts again from `pending`."""
        return self._act(project_id, request_id, "pause", who, "asked to", last_wait_reason=None, not_before=None)

    def resume(self, project_id: str, request_id: str, who: str) -> Request:
        """Puts a paused request back into the queue. QuotaExceeded if the queue is full: it stays paused."""
        return self._act(project_id, request_id, "resume", who, "asked to")

    def retry(self, project_id: str, request_id: str, who: str) -> Request:
        """Puts a failed request back into the queue. QuotaExceeded if the queue is full: it stays failed."""
        fresh: dict[str, Any] = {"retries": 0, "finish_time": None, "progress": None, "error": None}
        return self._act(project_id, request_id, "retry", who, "asked to", **fresh)

    def prioritize(self, project_id: str, request_id: str, priority: int, who: str) -> Request:
        return self._act(project_id, request_id, "prioritize", who, f"priority {priority}", priority=priority)

    def _act(self, project_id: str, request_id: str, action: str, who: str, why: str, **changes: Any) -> Request:
        without: frozenset[str] = frozenset()
        for _ in range(_TRIES):
            request = self._queue.get(project_id, request_id)
            now = self._clock()
            try:
                changed = self._write(request, action, who, why, now, changes, without)
            except Refused as refused:
                if REQUEST not in refused.parts:
                    # The slot or the mutex is not held any more, so there is none to release.
                    gone = {SLOT, CHANNEL} if SLOT in refused.parts else set()
                    without |= gone | refused.parts & {MUTEX}
                continue
            if request.status == RUNNING:
                self._stop(request, f"{action} by {who}")
            return changed
        raise Conflict("other calls change this request at the same time: try again")

    def _write(
        self,
        request: Request,
        action: str,
        who: str,
        why: str,
        now: datetime,
        changes: dict[str, Any],
        without: frozenset[str],
    ) -> Request:
        changed = moved(request, action, **changes)
        if changed.is_over:
            changed = moved(request, action, **changes, finish_time=iso(now), deadline=None)
        line = self._queue.line(request, changed, action, who, why, now)
        if changed.is_over:
            self._queue.close(request, changed, line, now, without=without)
        else:
            restart = self._restarts.get(request.type) if action == "retry" else None
            writes = restart(request) if restart else ()
            limit = self._queue.queued_limit(request.project_id) if action in _QUEUES else None
            self._store.move(request, changed, line, now=now, extra_writes=writes, without=without, queued_limit=limit)
            self._admission_queue.trigger(changed.channel)
        return changed

    def _stop(self, request: Request, why: str) -> None:
        """Only logs a failure: the worker stops at its next heartbeat, because its attempt is not the current one."""
        try:
            self._runner.stop(request, why)
        except DomainError:
            logger.exception("the state machine was not stopped", request_id=request.request_id)
