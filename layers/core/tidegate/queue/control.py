"""Control of requests and channels by callers and operators, and recovery of what was lost."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.compensation.poll import LANE_CLOSED
from tidegate.errors import (
    Conflict,
    DomainError,
    Invalid,
    QuotaExceeded,
    RecordNotFound,
    RequestTimedOut,
    WorkerLost,
    WrongState,
)
from tidegate.projects.audit import NO_PROJECT, SYSTEM, act
from tidegate.queue.admission import Admission
from tidegate.queue.channels import ChannelStore
from tidegate.queue.model import (
    ALL,
    PENDING,
    RUNNER_HOURS,
    RUNNING,
    SHARE,
    TRANSITIONS,
    WAITING,
    Channel,
    Request,
    moved,
)
from tidegate.queue.queue import SILENCE_SECONDS, AdmissionQueue, Ending, RequestQueue, RequestRunner
from tidegate.queue.store import CHANNEL, MUTEX, REQUEST, SLOT, Refused, RequestStore

# --- control
# Actions of callers on a request: cancel, pause, resume, retry, prioritize.

logger = Logger(service="tidegate", child=True)
_TRIES = 5
# These put a request into the queue that did not wait there, as a new one does.
_QUEUES = ("resume", "retry")


_THREADS = 8


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """How many requests were changed, how many were skipped (state, conflict, quota), and the next page's cursor."""

    changed: int
    skipped: int
    next_cursor: str | None


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

    def retry_now(self, project_id: str, request_id: str, who: str) -> Request:
        """Ends the back-off of a request. WrongState if it does not wait for the end of one."""
        if self._queue.get(project_id, request_id).not_before is None:
            raise WrongState("the request is not in back-off: it has nothing to wait for but its turn")
        return self._act(project_id, request_id, "retry_now", who, "asked to", not_before=None, last_wait_reason=None)

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
        if request.status == RUNNING or action == "retry":
            ended = datetime.fromisoformat(request.finish_time) if request.finish_time else now
            changes = changes | {"worked_ms": request.worked_until(ended)}
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

    def act_on_many(
        self,
        project_id: str,
        action: str,
        wanted: dict[str, str],
        limit: int,
        cursor: str | None,
        *,
        priority: int | None = None,
        who: str,
    ) -> BulkOutcome:
        """Acts on one page of those that match. To act on all, call it with `next_cursor` until that is None."""
        page = self._store.list(project_id, limit, cursor, **wanted)
        allowed = TRANSITIONS[action][0]
        candidates = [request for request in page.items if request.status in allowed]
        with ThreadPoolExecutor(_THREADS) as pool:
            changed = sum(pool.map(lambda request: self._try(request, action, priority, who), candidates))
        return BulkOutcome(changed, len(page.items) - changed, page.next_cursor)

    def _try(self, request: Request, action: str, priority: int | None, who: str) -> bool:
        ids = (request.project_id, request.request_id)
        try:
            if action == "prioritize":
                self.prioritize(*ids, priority or request.priority, who)
            else:
                {"cancel": self.cancel, "retry": self.retry}[action](*ids, who)
        except (Conflict, QuotaExceeded, RecordNotFound, WrongState):
            return False
        return True

    def _stop(self, request: Request, why: str) -> None:
        """Only logs a failure: the worker stops at its next heartbeat, because its attempt is not the current one."""
        try:
            self._runner.stop(request, why)
        except DomainError:
            logger.exception("the state machine was not stopped", request_id=request.request_id)


# --- control
# Channels for operators: capacity, pause and resume, and how many requests wait for how long.


@dataclass(frozen=True, slots=True)
class ChannelStats:
    channel: str
    capacity: int
    running: int
    queued: int
    paused: bool
    oldest_wait_s: float


class Channels:
    def __init__(
        self, store: ChannelStore, admission_queue: AdmissionQueue, clock: Clock, capacities: Mapping[str, int]
    ) -> None:
        self._store = store
        self._admission_queue = admission_queue
        self._clock = clock
        self._capacities = capacities
        self._known: set[str] = set(capacities)

    def all(self) -> list[Channel]:
        """Channels that were used or set, and those of the configuration, by name."""
        stored = {channel.name: channel for channel in self._store.all()}
        configured = {name: Channel(name, capacity) for name, capacity in self._capacities.items()}
        return [found for _, found in sorted({**configured, **stored}.items())]

    def stats(self) -> list[ChannelStats]:
        return [self._stats_of(channel) for channel in self.all()]

    def _stats_of(self, channel: Channel) -> ChannelStats:
        queued, since = self._store.queue_of(channel.name)
        waited = (self._clock() - datetime.fromisoformat(since)).total_seconds() if since else 0.0
        return ChannelStats(
            channel.name, channel.capacity, channel.running, queued, channel.paused, round(max(0.0, waited), 3)
        )

    def require(self, name: str) -> None:
        """Raises Invalid if there is no such channel. Known names are cached, because channels are never removed."""
        if name not in self._known:
            self._known |= {channel.name for channel in self.all()}
        if name not in self._known:
            raise _unknown(name, "channel")

    def set_capacities(self, capacities: Mapping[str, int], who: str = SYSTEM) -> list[Channel]:
        """Acts at once: with more capacity, requests are admitted now; with less, running ones finish first.

        A new name creates a channel.
        """
        for name, capacity in capacities.items():
            self._store.ensure(name, capacity)
            now = self._clock()
            line = act(NO_PROJECT, name, now, who, "queue.capacity", str(capacity))
            self._store.set_capacity(name, capacity, now.timestamp(), line)
        self._admission_queue.trigger(*capacities)
        return self.all()

    def set_paused(self, scope: str, paused: bool, who: str = SYSTEM) -> list[Channel]:
        names = [channel.name for channel in self.all() if scope in (ALL, channel.name)]
        if not names:
            raise _unknown(scope, "scope")
        for name in names:
            self._store.ensure(name, self._capacities.get(name, 1))
            now = self._clock()
            line = act(NO_PROJECT, name, now, who, "queue.pause" if paused else "queue.resume")
            self._store.set_paused(name, paused, now.timestamp(), line)
        self._admission_queue.trigger(*names)
        return self.all()


def _unknown(name: str, field: str) -> Invalid:
    return Invalid(
        f"there is no channel {name}: GET /v1/queue/stats lists the channels",
        errors=[{"loc": ["body", field], "msg": "unknown channel"}],
    )


# --- recovery
# Recovers overdue requests and channels: lost messages, lost state machines, time-outs, leaked slots.


class RequestRecovery:
    """Handlers of compensation. Each may run any number of times for the same record."""

    def __init__(
        self,
        queue: RequestQueue,
        admission: Admission,
        store: RequestStore,
        channels: ChannelStore,
        admission_queue: AdmissionQueue,
        runner: RequestRunner,
        clock: Clock,
    ) -> None:
        self._queue = queue
        self._admission = admission
        self._store = store
        self._channels = channels
        self._admission_queue = admission_queue
        self._runner = runner
        self._clock = clock

    def request(self, project_id: str, request_id: str) -> bool | str:
        """Returns True if the request was recovered, False if nothing was wrong, LANE_CLOSED if its channel is full."""
        request = self._store.get(project_id, request_id)
        if request is None or request.status not in (PENDING, RUNNING):
            return False
        return self._waiting(request) if request.status == PENDING else self._running(request)

    def _waiting(self, request: Request) -> bool | str:
        if request.not_before is not None and request.not_before > self._clock().timestamp():
            self._store.set_due(request, request.not_before)
            return False
        reason = self._admission.no_room(request.channel, request.project_id)
        if reason is not None:
            # Many may wait here, so from now on the channel is due instead of each of them.
            self._channels.set_due(request.channel, self._clock().timestamp() + SILENCE_SECONDS)
            self._admission.wait_reasons.queue_up(request, reason)
            # The limits of this project do not keep other projects waiting.
            return False if reason in (SHARE, RUNNER_HOURS) else LANE_CLOSED
        self._store.move_to_project_lane(request)
        self._admission_queue.trigger_anew(request.channel)
        return True

    def _running(self, request: Request) -> bool:
        now = self._clock().timestamp()
        if request.deadline is not None and now >= request.deadline:
            self._stop(request)
            self._finish(request, RequestTimedOut(f"the request ran longer than {request.timeout} s"))
            return True
        status = self._runner.status(request)
        if status == "RUNNING":
            self._store.set_due(request, now + SILENCE_SECONDS)
            return False
        if status is None:
            self._runner.start(request)
        else:
            self._finish(request, WorkerLost(f"the state machine ended as {status} without a result"))
        return True

    def _finish(self, request: Request, error: DomainError) -> None:
        self._queue.finish(request.project_id, request.request_id, request.attempt, error=error)

    def _stop(self, request: Request) -> None:
        try:
            self._runner.stop(request, "timed out")
        except DomainError:
            logger.exception("the state machine was not stopped", request_id=request.request_id)

    def channel(self, name: str) -> bool:
        """For a channel with waiting requests: corrects its counts and triggers admission."""
        self._move_shared_places(name)
        self.repair_counts(name)
        self._channels.set_due(name, self._clock().timestamp() + SILENCE_SECONDS)
        self._admission_queue.trigger_anew(name)
        return False

    def _move_shared_places(self, name: str) -> None:
        """Moves places from the lane that all projects shared in an older version to the lanes of their projects."""
        for place in self._channels.shared_places(name):
            request = self._store.get(place.project_id, place.request_id)
            waits = request is not None and request.status in WAITING and request.priority == place.priority
            if request is None or not waits or not self._store.move_to_project_lane(request):
                self._channels.drop_shared_place(place)

    def repair_counts(self, name: str) -> int:
        """Releases slots whose request does not run, then recounts slots and places. Returns how many were released."""
        released = 0
        slots = self._channels.slots(name)
        holders = self._store.get_many((one.project_id, one.request_id) for one in slots)
        for one in slots:
            request = holders.get((one.project_id, one.request_id))
            if request is None or request.status != RUNNING or request.attempt != one.attempt:
                released += one.slots if self._channels.drop_slot(name, one) else 0
        channel = self._channels.get(name)
        held = sum(one.slots for one in self._channels.slots(name))
        if channel is not None and channel.running != held and self._channels.recount(channel, held):
            released += max(0, channel.running - held)
        self._channels.recount_running(name)
        self._channels.recount_waiting(name, int(self._clock().timestamp()) // SILENCE_SECONDS)
        if released:
            logger.warning("leaked slots were released", channel=name, slots=released)
        return released
