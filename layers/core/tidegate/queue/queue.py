"""The request queue: submits requests, takes the heartbeats of running ones, and ends them or queues them again."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from tidegate.common.ids import Clock, iso, new_id
from tidegate.errors import Conflict, DomainError, Invalid, LeaseLost, RecordNotFound, RequestTimedOut, WorkerLost
from tidegate.notifications.notice import Notice, notice_id_for
from tidegate.notifications.notify import Notifier
from tidegate.projects.audit import SYSTEM, AuditLine
from tidegate.projects.store import ProjectStore
from tidegate.queue import policies as request_policies
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.model import BACKOFF, DEFAULT_PRIORITY, PENDING, RUNNING, Request, moved, notice_kind
from tidegate.queue.policies import Policy
from tidegate.queue.store import RequestStore
from tidegate.queue.transaction import CHANNEL, MUTEX, REQUEST, SLOT, Refused

# Compensation checks a worker that has sent no heartbeat for this long.
SILENCE_SECONDS = 60
_TRIES = 5

# Returns a request of one type as callers and notices see it.
View = Callable[[Request], dict[str, Any]]
# Returns further writes for the transaction in which a request of one type ends.
Ending = Callable[[Request], Sequence[Any]]


class RequestQueue:
    def __init__(
        self,
        store: RequestStore,
        quotas: ProjectStore,
        admission_queue: AdmissionQueue,
        notifier: Notifier,
        clock: Clock,
        policies: Mapping[str, Policy],
        views: Mapping[str, View],
        endings: Mapping[str, Ending],
    ) -> None:
        self._store = store
        self._quotas = quotas
        self._admission_queue = admission_queue
        self._notifier = notifier
        self._clock = clock
        self._policies = policies
        self._views = views
        self._endings = endings

    def submit(
        self,
        project_id: str,
        type: str,
        channel: str | None = None,
        payload: Mapping[str, Any] | None = None,
        priority: int = DEFAULT_PRIORITY,
        subscription_id: str | None = None,
        request_id: str | None = None,
        callback: str | None = None,
        extra_writes: Sequence[Any] = (),
        *,
        timeout: int | None = None,
        not_before: datetime | None = None,
        lane: int = 0,
        who: str = SYSTEM,
    ) -> Request:
        """Stores a request in one transaction, then triggers admission. A known `request_id` returns that request.

        QuotaExceeded if the project already has as many waiting requests as its quota allows.
        """
        policy = self.policy(type)
        now = self._clock()
        request = Request(
            request_id=request_id or new_id("req", now),
            project_id=project_id,
            type=type,
            channel=channel or policy.channel,
            priority=priority,
            status=PENDING,
            created_at=iso(now),
            payload=dict(payload or {}),
            timeout=timeout or policy.timeout,
            subscription_id=subscription_id,
            lane=lane,
            callback=callback,
            not_before=not_before.timestamp() if not_before and not_before > now else None,
            last_wait_reason=BACKOFF if not_before and not_before > now else None,
        )
        line = AuditLine(project_id, request.request_id, iso(now), who, "submit", None, PENDING, "submitted")
        added = self._store.add(request, line, extra_writes, self.queued_limit(project_id))
        if added.not_before and not_before:
            self._admission_queue.wake(added.channel, not_before, now)
        else:
            self._admission_queue.trigger(added.channel)
        return added

    def queued_limit(self, project_id: str) -> int | None:
        """How many requests of the project may wait at once; None if there is no limit."""
        return self._quotas.quotas(project_id).queued

    def policy(self, type: str) -> Policy:
        if type not in self._policies:
            raise Invalid(
                f"there is no request type {type}: use one of {', '.join(self._policies)}",
                errors=[{"loc": ["body", "type"], "msg": "unknown type"}],
            )
        return self._policies[type]

    def get(self, project_id: str, request_id: str) -> Request:
        request = self._store.get(project_id, request_id)
        if request is None:
            raise RecordNotFound(f"this project has no request {request_id[:200]}")
        return request

    def shown(self, request: Request) -> dict[str, Any]:
        return self._views.get(request.type, Request.shown)(request)

    def running(self, project_id: str, request_id: str, attempt: int) -> Request:
        """The request, if this attempt may still run. Workers check it before and during their work.

        LeaseLost if another attempt runs or the request has ended, RequestTimedOut after its deadline.
        """
        request = self.get(project_id, request_id)
        if request.status != RUNNING or request.attempt != attempt:
            raise LeaseLost(f"attempt {attempt} is over: the request is {request.status}, attempt {request.attempt}")
        if request.deadline is not None and self._clock().timestamp() >= request.deadline:
            raise RequestTimedOut(f"the request did not end within the {request.timeout} s that it may run")
        return request

    def heartbeat(
        self, project_id: str, request_id: str, attempt: int, progress: Mapping[str, Any] | None = None
    ) -> Request:
        """Call it every 30 s while working. Raises the same errors as `running`."""
        request = self.running(project_id, request_id, attempt)
        now = self._clock()
        self._store.heartbeat(request, now, now.timestamp() + SILENCE_SECONDS, dict(progress) if progress else None)
        return request

    def finish(
        self,
        project_id: str,
        request_id: str,
        attempt: int,
        *,
        result: Mapping[str, Any] | None = None,
        error: DomainError | None = None,
        extra_writes: Sequence[Any] = (),
        who: str = SYSTEM,
    ) -> Request:
        """Ends the request, or queues it again if the error is retryable. An outdated attempt changes nothing.

        `extra_writes` are part of the transaction that ends it, and are not written if it is queued again.
        """
        without: frozenset[str] = frozenset()
        for _ in range(_TRIES):
            request = self.get(project_id, request_id)
            if request.status != RUNNING or request.attempt != attempt:
                return request
            try:
                return self._end(request, result, error, extra_writes, without, who)
            except Refused as refused:
                if MUTEX in refused.parts:
                    # The mutex expired and another request may have run: this result may be outdated, so retry.
                    result, error, extra_writes = None, WorkerLost("the lease of the subscription's mutex expired"), ()
                    without |= {MUTEX}
                elif SLOT in refused.parts:
                    without |= {SLOT, CHANNEL}
                elif REQUEST not in refused.parts:
                    raise
        raise Conflict("other calls change this request at the same time: try again")

    def _end(
        self,
        request: Request,
        result: Mapping[str, Any] | None,
        error: DomainError | None,
        extra_writes: Sequence[Any],
        without: frozenset[str],
        who: str,
    ) -> Request:
        now = self._clock()
        policy = self.policy(request.type)
        fault = {"code": error.code, "detail": error.detail} if error else None
        used = 0 if error and error.progressed else request.retries
        delay = request_policies.retry_delay(policy, used, error) if error else None
        retries = used + 1
        if error and error.put_off:
            delay, retries = policy.backoff(0, error.retry_after), request.retries
        if delay is not None and error is not None:
            at = now + timedelta(seconds=delay)
            again = moved(
                request,
                "retry_later",
                retries=retries,
                not_before=at.timestamp(),
                last_wait_reason=BACKOFF,
                error=fault,
                progress=None,
                deadline=None,
            )
            line = self.line(request, again, "retry_later", who, f"{error.code}; again in {delay:g} s", now)
            self._store.move(request, again, line, now=now, without=without)
            self._admission_queue.wake(again.channel, at, now)
            self._admission_queue.trigger(again.channel)
            return again
        action = "fail" if error else "complete"
        ended = moved(
            request,
            action,
            result=dict(result) if result and not error else None,
            error=fault,
            finish_time=iso(now),
            deadline=None,
        )
        line = self.line(request, ended, action, who, error.code if error else "done", now)
        self.close(request, ended, line, now, extra_writes=extra_writes, without=without)
        return ended

    def close(
        self,
        old: Request,
        ended: Request,
        line: AuditLine,
        now: datetime,
        *,
        extra_writes: Sequence[Any] = (),
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Writes the end of a request with its notice, publishes the notice and triggers admission."""
        policy = self.policy(ended.type)
        keep = policy.keep_completed if ended.status == "completed" else policy.keep_failed
        notice = self._notice(ended, now)
        ending = self._endings.get(ended.type)
        writes = [*extra_writes, *(ending(ended) if ending else ())]
        self._store.move(
            old, ended, line, now=now, keep_seconds=keep, notice=notice, extra_writes=writes, without=without
        )
        self._notifier.publish([notice])
        self._admission_queue.trigger(ended.channel)

    def _notice(self, ended: Request, now: datetime) -> Notice:
        kind, data = notice_kind(ended.type, ended.status), self.shown(ended)
        return Notice(
            notice_id=notice_id_for(kind, ended.request_id, f"{ended.status}-{ended.version}"),
            project_id=ended.project_id,
            kind=kind,
            # A batch has one request for each run, but clients watch the batch.
            record_id=str(data.get("batch_id", ended.request_id)),
            # The request of a stopped batch is completed.
            status="stopped" if data.get("status") == "stopped" else ended.status,
            data=data,
            callback=ended.callback,
            created_at=now,
        )

    @staticmethod
    def line(old: Request, new: Request, action: str, who: str, why: str, now: datetime) -> AuditLine:
        states = (old.status, new.status)
        return AuditLine(old.project_id, old.request_id, iso(now), who, action, *states, why, new.attempt, new.version)
