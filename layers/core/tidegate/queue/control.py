"""Control of requests and channels by callers and operators, and recovery from lost messages and machines."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from aws_lambda_powertools import Logger

from tidegate.common.ids import iso
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
from tidegate.queue.admission import no_room, queue_up
from tidegate.queue.model import (
    ALL,
    LOOK_SECONDS,
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
from tidegate.queue.queue import SILENCE_SECONDS, Queue
from tidegate.queue.store import CHANNEL, MUTEX, REQUEST, SLOT, Refused, audit_line
from tidegate.records import F

# --- control
# Actions of callers on a request: cancel, pause, resume, retry, prioritize.

logger = Logger(service="tidegate", child=True)
_TRIES = 5
# Actions after which the request waits in the queue and counts towards the quota, as a new one does.
_QUEUES = ("resume", "retry")


_THREADS = 8


@dataclass(frozen=True, slots=True)
class BulkOutcome:
    """How many requests were changed, how many were skipped, and the cursor of the next page.

    A request is skipped because of its state, a conflict or a quota."""

    changed: int
    skipped: int
    next_cursor: str | None


def cancel(queue: Queue, project_id: str, request_id: str, who: str, why: str = "asked to") -> Request:
    """Cancels a request. A running one loses its lease at once, and its state machine is stopped."""
    return _act(queue, project_id, request_id, "cancel", who, why)


def pause(queue: Queue, project_id: str, request_id: str, who: str) -> Request:
    """Pauses a request. A running request is stopped and releases its slot. After `resume`, it starts again."""
    return _act(queue, project_id, request_id, "pause", who, "asked to", last_wait_reason=None, not_before=None)


def resume(queue: Queue, project_id: str, request_id: str, who: str) -> Request:
    """Puts a paused request back into the queue. QuotaExceeded if the queue is full: the request stays paused."""
    return _act(queue, project_id, request_id, "resume", who, "asked to")


def retry(queue: Queue, project_id: str, request_id: str, who: str) -> Request:
    """Puts a failed request back into the queue. QuotaExceeded if the queue is full: the request stays failed."""
    fresh: dict[str, Any] = {"retries": 0, "finish_time": None, "progress": None, "error": None}
    return _act(queue, project_id, request_id, "retry", who, "asked to", **fresh)


def retry_now(queue: Queue, project_id: str, request_id: str, who: str) -> Request:
    """Ends the back-off of a request, so that it may run at once. WrongState if the request is not in back-off."""
    if queue.get(project_id, request_id).not_before is None:
        raise WrongState("the request is not in back-off: it waits only for its turn")
    return _act(queue, project_id, request_id, "retry_now", who, "asked to", not_before=None, last_wait_reason=None)


def prioritize(queue: Queue, project_id: str, request_id: str, priority: int, who: str) -> Request:
    return _act(queue, project_id, request_id, "prioritize", who, f"priority {priority}", priority=priority)


def _act(queue: Queue, project_id: str, request_id: str, action: str, who: str, why: str, **changes: Any) -> Request:
    without: frozenset[str] = frozenset()
    for _ in range(_TRIES):
        request = queue.get(project_id, request_id)
        now = queue.clock()
        try:
            changed = _write(queue, request, action, who, why, now, changes, without)
        except Refused as refused:
            if REQUEST not in refused.parts:
                # The slot or the mutex is not held any more, so there is none to release.
                gone = {SLOT, CHANNEL} if SLOT in refused.parts else set()
                without |= gone | refused.parts & {MUTEX}
            continue
        if request.status == RUNNING:
            _stop(queue, request, f"{action} by {who}")
        return changed
    raise Conflict("other calls change this request at the same time: try again")


def _write(
    queue: Queue,
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
    line = audit_line(request, changed, action, who, why, now)
    if changed.is_over:
        queue.close(request, changed, line, now, without=without)
    else:
        restart = queue.restarts.get(request.type) if action == "retry" else None
        writes = restart(request) if restart else ()
        limit = queue.queued_limit(request.project_id) if action in _QUEUES else None
        queue.store.move(request, changed, line, now=now, extra_writes=writes, without=without, queued_limit=limit)
        queue.admission_queue.trigger(changed.channel)
    return changed


def act_on_many(
    queue: Queue,
    project_id: str,
    action: str,
    wanted: dict[str, str],
    limit: int,
    cursor: str | None,
    *,
    priority: int | None = None,
    who: str,
) -> BulkOutcome:
    """Acts on one page of the requests that match `wanted`.

    To act on all of them, call this again with the returned `next_cursor`, until that is None."""
    page = queue.store.list(project_id, limit, cursor, **wanted)
    allowed = TRANSITIONS[action.replace("-", "_")][0]
    # Requests that were never tried wait for the time that the caller gave, not for a retry.
    tried = 1 if action == "retry-now" else 0
    candidates = [request for request in page.items if request.status in allowed and request.attempt >= tried]
    with ThreadPoolExecutor(_THREADS) as pool:
        changed = sum(pool.map(lambda request: _try(queue, request, action, priority, who), candidates))
    return BulkOutcome(changed, len(page.items) - changed, page.next_cursor)


def _try(queue: Queue, request: Request, action: str, priority: int | None, who: str) -> bool:
    ids = (request.project_id, request.request_id)
    try:
        if action == "prioritize":
            prioritize(queue, *ids, priority or request.priority, who)
        else:
            {"cancel": cancel, "retry": retry, "retry-now": retry_now}[action](queue, *ids, who)
    except (Conflict, QuotaExceeded, RecordNotFound, WrongState):
        return False
    return True


def _stop(queue: Queue, request: Request, why: str) -> None:
    """Stops the request's machine. Only logs a failure, because the worker stops at its next heartbeat in any case."""
    try:
        queue.runner.stop(request, why)
    except DomainError:
        logger.exception("the state machine was not stopped", request_id=request.request_id)


@dataclass(frozen=True, slots=True)
class ChannelStats:
    channel: str
    capacity: Annotated[int, F("how many requests of the channel may run in parallel")]
    running: Annotated[int, F("number of running requests")]
    queued: Annotated[int, F("number of waiting requests")]
    paused: Annotated[bool, F("true while no requests are started")]
    oldest_wait_s: Annotated[float, F("how long the oldest waiting request has waited, in seconds")]


class Channels:
    """Channels for operators.

    Sets their capacity, pauses and resumes them, and shows how many requests wait and for how long."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._store = queue.channel_store
        self._known: set[str] = set(queue.capacities)

    def all(self) -> list[Channel]:
        """All channels by name: those that were used or changed, and those of the configuration."""
        stored = {channel.name: channel for channel in self._store.all()}
        configured = {name: Channel(name, capacity) for name, capacity in self._queue.capacities.items()}
        return [found for _, found in sorted({**configured, **stored}.items())]

    def stats(self) -> list[ChannelStats]:
        return [self._stats_of(channel) for channel in self.all()]

    def _stats_of(self, channel: Channel) -> ChannelStats:
        queued, since = self._store.queue_of(channel.name)
        waited = (self._queue.clock() - datetime.fromisoformat(since)).total_seconds() if since else 0.0
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
        """Sets capacities by channel. A name that is not known creates a channel.

        With a higher capacity, requests are admitted at once. With a lower capacity, running requests finish first.
        """
        for name, capacity in capacities.items():
            self._store.ensure(name, capacity)
            now = self._queue.clock()
            line = act(NO_PROJECT, name, now, who, "queue.capacity", str(capacity))
            self._store.set_capacity(name, capacity, now.timestamp(), line)
        self._queue.admission_queue.trigger(*capacities)
        return self.all()

    def set_paused(self, scope: str, paused: bool, who: str = SYSTEM) -> list[Channel]:
        names = [channel.name for channel in self.all() if scope in (ALL, channel.name)]
        if not names:
            raise _unknown(scope, "scope")
        for name in names:
            self._store.ensure(name, self._queue.capacities.get(name, 1))
            now = self._queue.clock()
            line = act(NO_PROJECT, name, now, who, "queue.pause" if paused else "queue.resume")
            self._store.set_paused(name, paused, now.timestamp(), line)
        self._queue.admission_queue.trigger(*names)
        return self.all()


def _unknown(name: str, field: str) -> Invalid:
    return Invalid(
        f"there is no channel {name}: GET /v1/queue/stats lists the channels",
        errors=[{"loc": ["body", field], "msg": "unknown channel"}],
    )


# --- recovery
# Compensation calls these for overdue requests and channels: messages or state machines were lost, a request ran too
# long, slots leaked. Each may run any number of times for the same record.


def recover_request(queue: Queue, project_id: str, request_id: str) -> bool | str:
    """Restarts an overdue request, ends it, or triggers its admission. Returns whether it had to.

    Returns LANE_CLOSED, and leaves the request waiting, if its channel has no room for any project."""
    request = queue.store.get(project_id, request_id)
    if request is None or request.status not in (PENDING, RUNNING):
        return False
    return _recover_waiting(queue, request) if request.status == PENDING else _recover_running(queue, request)


def _recover_waiting(queue: Queue, request: Request) -> bool | str:
    if request.not_before is not None and request.not_before > queue.clock().timestamp():
        queue.store.set_due(request, request.not_before)
        return False
    reason = no_room(queue, request.channel, request.project_id)
    if reason is not None:
        # Many may wait here, so from now on the channel is due instead of each of them.
        queue.channel_store.set_due(request.channel, queue.clock().timestamp() + SILENCE_SECONDS)
        queue_up(queue, request, reason)
        # The limits of this project do not keep other projects waiting.
        return False if reason in (SHARE, RUNNER_HOURS) else LANE_CLOSED
    queue.store.move_to_project_lane(request)
    queue.admission_queue.trigger_anew(request.channel)
    return True


def _recover_running(queue: Queue, request: Request) -> bool:
    now = queue.clock().timestamp()
    if request.deadline is not None and now >= request.deadline:
        _stop(queue, request, "timed out")
        _finish(queue, request, RequestTimedOut(f"the request ran longer than {request.timeout} s"))
        return True
    status = queue.runner.status(request)
    if status == "RUNNING":
        if request.silent(now):
            _replace_silent(queue, request, now)
            return True
        oldest = min(request.beats.values(), default=None)
        queue.store.set_due(request, now + SILENCE_SECONDS if oldest is None else oldest + LOOK_SECONDS)
        return False
    if status is None:
        queue.runner.start(request)
    else:
        _finish(queue, request, WorkerLost(f"the state machine ended as {status} without a result"))
    return True


def _replace_silent(queue: Queue, request: Request, now: float) -> None:
    """Ends the attempt of a request whose function hangs, and queues the next attempt at once.

    From then on, the hanging function can no longer write. Then stops the state machine, which would otherwise wait for
    the function for a quarter of an hour."""
    silent = request.silent(now)
    seconds = round(now - min(request.beats[worker] for worker in silent))
    error = WorkerLost(f"the function that ran this attempt sent no heartbeat for {seconds} s, and was replaced")
    error.at_once, error.progressed = True, request.progress_made > request.reached
    logger.error("a function hangs and is replaced", request_id=request.request_id, workers=silent, silent_s=seconds)
    queue.log.write(request.project_id, request.request_id, request.attempt, "replaced", error.detail, error=error)
    _finish(queue, request, error)
    _stop(queue, request, "no heartbeat")


def _finish(queue: Queue, request: Request, error: DomainError) -> None:
    queue.finish(request.project_id, request.request_id, request.attempt, error=error)


def recover_channel(queue: Queue, name: str) -> bool:
    """Corrects the counts of a channel with waiting requests, and triggers admission."""
    _move_shared_places(queue, name)
    repair_counts(queue, name)
    queue.channel_store.set_due(name, queue.clock().timestamp() + SILENCE_SECONDS)
    queue.admission_queue.trigger_anew(name)
    return False


def _move_shared_places(queue: Queue, name: str) -> None:
    """Moves places from the lane that all projects shared in an older version to the lanes of their projects."""
    for place in queue.channel_store.shared_places(name):
        request = queue.store.get(place.project_id, place.request_id)
        waits = request is not None and request.status in WAITING and request.priority == place.priority
        if request is None or not waits or not queue.store.move_to_project_lane(request):
            queue.channel_store.drop_shared_place(place)


def repair_counts(queue: Queue, name: str) -> int:
    """Releases slots whose request does not run, then recounts slots and places. Returns how many were released."""
    released = 0
    slots = queue.channel_store.slots(name)
    holders = queue.store.get_many((one.project_id, one.request_id) for one in slots)
    for one in slots:
        request = holders.get((one.project_id, one.request_id))
        if request is None or request.status != RUNNING or request.attempt != one.attempt:
            released += one.slots if queue.channel_store.drop_slot(name, one) else 0
    channel = queue.channel_store.get(name)
    held = sum(one.slots for one in queue.channel_store.slots(name))
    if channel is not None and channel.running != held and queue.channel_store.recount(channel, held):
        released += max(0, channel.running - held)
    queue.channel_store.recount_running(name)
    queue.channel_store.recount_waiting(name, int(queue.clock().timestamp()) // SILENCE_SECONDS)
    if released:
        logger.warning("leaked slots were released", channel=name, slots=released)
    return released
