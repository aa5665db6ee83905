"""Admission: decides which waiting requests of a channel run next, and says why the others wait."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from aws_lambda_powertools import Logger

from tidegate.common.ids import iso
from tidegate.errors import DomainError
from tidegate.projects.audit import SYSTEM
from tidegate.projects.limits import RUNNER_SECONDS, is_used_up
from tidegate.queue import store as transaction
from tidegate.queue.model import (
    BACKOFF,
    CAPACITY,
    CHANNEL_PAUSED,
    MUTEX,
    PENDING,
    RUNNER_HOURS,
    SHARE,
    WAITING,
    Channel,
    Request,
    Turn,
    Turns,
    WaitingPlace,
    ceiling,
    moved,
)
from tidegate.queue.queue import Queue
from tidegate.queue.store import MAX_GROUP, AdmissionMove, Refused, audit_line, fits_one_transaction

logger = Logger(service="tidegate", child=True)

# --- wait reasons
# Stores on waiting requests why they wait.

# One run of admission writes the reason to this many requests. The others get their reasons as they move up.
_REASONS_PER_RUN = 25
_FEW, _THREADS = 4, 8


def _write_reasons(queue: Queue, turns: Turns) -> int:
    """Stores why the first waiting requests wait. Returns how many requests wait for another reason than back-off.

    Also schedules the run of admission that may admit one request beyond the capacity.
    """
    backing_off = 0
    reasons: list[tuple[WaitingPlace, str]] = []
    extra = turns.next_extra_slot()
    for place, reason in turns.still_waiting():
        backing_off += reason == BACKOFF
        if len(reasons) < _REASONS_PER_RUN and _is_new(place, reason):
            reasons.append((place, reason))
            if extra is not None and place == extra[0]:
                at = datetime.fromtimestamp(extra[1], UTC)
                queue.admission_queue.wake(place.channel, at, queue.clock())
    _write_all(queue, reasons)
    return max(0, turns.waiting - backing_off)


def _write_all(queue: Queue, reasons: Sequence[tuple[WaitingPlace, str]]) -> None:
    if len(reasons) < _FEW:
        for place, reason in reasons:
            _write_reason(queue, place, reason)
        return
    # In parallel, because the next run of the channel waits for this one.
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="reason") as pool:
        list(pool.map(lambda each: _write_reason(queue, *each), reasons))


def _write_reason(queue: Queue, place: WaitingPlace, reason: str) -> None:
    if place.status != PENDING or reason == BACKOFF:
        queue.store.note_wait(place, reason)
        return
    request = queue.store.get(place.project_id, place.request_id)
    if request is not None and request.status == PENDING:
        queue_up(queue, request, reason)


def queue_up(queue: Queue, request: Request, reason: str) -> None:
    """Moves a request from `pending` to `queued`, and stores the reason why the request waits.

    `queued` shows callers that admission has seen the request.
    """
    now = queue.clock()
    queued = moved(request, "wait", last_wait_reason=reason)
    line = audit_line(request, queued, "wait", SYSTEM, reason, now)
    try:
        queue.store.move(request, queued, line, now=now)
    except Refused:
        return


def _is_new(place: WaitingPlace, reason: str) -> bool:
    """Whether `reason` must be stored: it is not the stored reason, or the request is not in the state `queued` yet.

    Back-off alone does not change the state.
    """
    return place.reason != reason or (place.status == PENDING and reason != BACKOFF)


# --- admit
# Admission: decides which waiting requests of a channel run next.
#
# The FIFO group of a channel guarantees one run per channel at a time.

_CHANNEL_DUE_SECONDS = 60
# State machines are started while the next requests are admitted: starting one takes longer than admitting it.
_START_THREADS = 16
# The next requests are read in one call of BatchGetItem, which returns at most 100 items.
_READ_AHEAD = 100
# After this time, another run continues. A function that reaches its time-out is killed, and its message then blocks
# the channel's FIFO group until it is visible again.
_RUN_SECONDS = 4.0


def admit_each(queue: Queue, channel_names: Collection[str]) -> list[str]:
    """Runs the admission of these channels in parallel. Returns the names of the channels whose admission failed."""
    if len(channel_names) == 1:
        return [name for name in channel_names if not _try_run(queue, name)]
    with ThreadPoolExecutor(len(channel_names), thread_name_prefix="channel") as pool:
        succeeded = list(pool.map(lambda name: _try_run(queue, name), channel_names))
    return [name for name, done in zip(channel_names, succeeded, strict=True) if not done]


def _try_run(queue: Queue, channel_name: str) -> bool:
    try:
        admit(queue, channel_name)
    except Exception:
        logger.exception("admission failed and will be retried", channel=channel_name)
        return False
    return True


def admit(queue: Queue, channel_name: str) -> int:
    """Admits as many requests as the channel has room for. Projects take turns. Returns how many were admitted.

    If there is not enough time for all, triggers another run for the rest.
    """
    if queue.freeze.now().frozen:
        # Thawing triggers every channel.
        logger.info("frozen: nothing is admitted", channel=channel_name)
        return 0
    ends_at = queue.monotonic() + _RUN_SECONDS
    queue.channel_store.begin_run(channel_name)
    turns = _turns(queue, channel_name, ends_at)
    in_time = _admit_all(queue, turns, ends_at)
    left = _write_reasons(queue, turns) if in_time else turns.waiting
    _set_channel_due(queue, turns, left)
    if not in_time:
        queue.admission_queue.trigger(channel_name)
    logger.info("admitted", channel=channel_name, admitted=turns.admitted, left=left)
    return turns.admitted


def _admit_all(queue: Queue, turns: Turns, ends_at: float) -> bool:
    """Admits all requests for which there is room. False if the time ran out first."""
    started: list[Future[None]] = []
    ahead: dict[tuple[str, str], Request] = {}
    in_time = True
    with ThreadPoolExecutor(_START_THREADS, thread_name_prefix="start") as pool:
        while in_time:
            if group := _next_group(queue, turns, ahead):
                started += [pool.submit(start, queue, admitted) for admitted in group]
            elif (place := turns.next()) is not None:
                _admit_one(queue, place, turns)
            else:
                break
            in_time = not turns.admitted or queue.monotonic() < ends_at
    for future in started:
        future.result()
    return in_time


def _next_group(queue: Queue, turns: Turns, ahead: dict[tuple[str, str], Request]) -> list[Request]:
    """Admits the next requests in one transaction and returns them.

    If the transaction is refused, tries the requests one by one and returns an empty list. `ahead` has requests that
    were read some transactions ago. If one of them has changed since, its version differs, so the transaction is
    refused.
    """
    group = turns.next_group(MAX_GROUP, fits_one_transaction)
    places = [place for place, _ in group]
    if len(places) > 1:
        if any(_name(place) not in ahead for place in places):
            turns.put_back(places)
            ahead.clear()
            ahead.update(queue.store.get_many(map(_name, turns.peek(_READ_AHEAD))))
            group = turns.next_group(MAX_GROUP, fits_one_transaction)
            places = [place for place, _ in group]
        moves = [
            _move(queue, request, turn)
            for place, turn in group
            if (request := ahead.pop(_name(place), None)) and _still_waits(request, place)
        ]
        if len(moves) == len(group) and _admit_group(queue, moves, turns.channel_before):
            return [move.new for move in moves]
    turns.put_back(places)
    for _ in places:
        place = turns.next()
        if place is not None:
            _admit_one(queue, place, turns)
    return []


def _admit_group(queue: Queue, moves: Sequence[AdmissionMove], channel: Channel) -> bool:
    try:
        queue.store.admit_group(moves, channel, queue.clock())
    except Refused as refused:
        logger.info("a group is admitted one by one", channel=channel.name, refused=sorted(refused.parts))
        return False
    return True


def _admit_one(queue: Queue, place: WaitingPlace, turns: Turns) -> None:
    reason = _try_to_admit(queue, place, turns)
    if reason:
        turns.skipped.append((place, reason))


def no_room(queue: Queue, channel_name: str, project_id: str) -> str | None:
    """The reason why a new request of the project would have to wait, even if no other request waits.

    None if there would be room for the new request.
    """
    channel = queue.channel_store.get(channel_name)
    if channel is None:
        return None
    if channel.free <= 0:
        return CHANNEL_PAUSED if channel.paused else CAPACITY
    quotas = queue.project_store.quotas(project_id)
    most = ceiling(channel.capacity, (quotas.share or {}).get(channel_name))
    most = most if quotas.running is None else min(most, quotas.running)
    if queue.channel_store.standing(channel_name, project_id).running >= most:
        return SHARE
    used = queue.usage.today(project_id, queue.clock())
    return RUNNER_HOURS if is_used_up(quotas, used, RUNNER_SECONDS) else None


def _turns(queue: Queue, name: str, ends_at: float = math.inf) -> Turns:
    channel = queue.channel_store.ensure(name, queue.capacities.get(name, 1))
    standings = queue.channel_store.standings(name)
    if sum(standing.running for standing in standings) != channel.running:
        # Slots were taken by a version that did not count them by project, or changed between the two reads.
        queue.channel_store.recount_running(name)
        standings = queue.channel_store.standings(name)
    active = [standing.project_id for standing in standings if standing.is_active]
    found = queue.usage.quotas_today(active, queue.clock())
    turns = Turns(
        channel,
        {standing.project_id: standing for standing in standings},
        {project_id: each.share[name] for project_id, (each, _) in found.items() if each.share and name in each.share},
        lambda project_id: _lane(queue, project_id, turns, ends_at),
        queue.clock().timestamp(),
        queue.settings.extra_slot_wait_seconds,
        {project_id: each.running for project_id, (each, _) in found.items() if each.running is not None},
        {project_id for project_id, (each, used) in found.items() if is_used_up(each, used, RUNNER_SECONDS)},
    )
    return turns


def _lane(queue: Queue, project_id: str, turns: Turns, ends_at: float) -> Iterator[WaitingPlace]:
    """A project's places, in the order of admission. With each page, reads which mutexes are held.

    Reads no page after `ends_at`, because a project with very many blocked requests must not use up the others' time.
    """
    checked: set[str] = set()
    for page in queue.channel_store.waiting(turns.channel.name, project_id):
        locking = [place for place in page if place.mutex is not None]
        unknown = {str(place.mutex) for place in locking} - checked
        if unknown and len(locking) > 1:
            held = queue.channel_store.held_mutexes(project_id, unknown, turns.now)
            checked |= unknown
            for place in locking:
                if place.mutex in held:
                    turns.mark_mutex_held(place)
        yield from page
        if queue.monotonic() >= ends_at:
            return


def _try_to_admit(queue: Queue, place: WaitingPlace, turns: Turns) -> str | None:
    """Admits the request if possible. Returns the reason why the request must wait.

    Returns None if the request was admitted, or does not wait any more.
    """
    request = queue.store.get(place.project_id, place.request_id)
    if request is None:
        queue.channel_store.drop_place(place)
        return None
    if not _still_waits(request, place):
        return None
    move = _move(queue, request, turns.turn(place))
    try:
        queue.store.move(request, move.new, move.line, now=queue.clock(), turn=move.turn)
    except Refused as refused:
        return _wait_reason(queue, refused, place, turns)
    turns.mark_admitted(place)
    start(queue, move.new)
    return None


def _move(queue: Queue, request: Request, turn: Turn) -> AdmissionMove:
    now = queue.clock()
    timeout = request.timeout or queue.policies[request.type].timeout
    admitted = moved(
        request,
        "admit",
        attempt=request.attempt + 1,
        slots_held=turn.slots,
        deadline=now.timestamp() + timeout,
        start_time=iso(now),
        beats={},
        not_before=None,
        last_wait_reason=None,
    )
    line = audit_line(request, admitted, "admit", SYSTEM, f"a slot of {request.channel} was free", now)
    return AdmissionMove(request, admitted, line, turn)


def _wait_reason(queue: Queue, refused: Refused, place: WaitingPlace, turns: Turns) -> str | None:
    """The reason why the request must wait, as the refused transaction shows. Also corrects `turns` accordingly.

    None if the request itself has changed meanwhile.
    """
    if transaction.CHANNEL in refused.parts:
        turns.channel = queue.channel_store.ensure(turns.channel.name, 1)
        return turns.reason or CAPACITY
    if transaction.STANDING in refused.parts:
        standing = queue.channel_store.standing(place.channel, place.project_id)
        # At least the ceiling that refused it: with a stale, lower count, the same slot would be tried without end.
        held = max(standing.running, turns.turn(place).ceiling)
        turns.standings[place.project_id] = replace(standing, running=held)
        return SHARE
    if transaction.MUTEX in refused.parts:
        turns.mark_mutex_held(place)
        return MUTEX
    if transaction.SLOT in refused.parts:
        # An earlier attempt did not release its slot: the recount of the channel will.
        return CAPACITY
    return None


def start(queue: Queue, admitted: Request) -> None:
    """Starts the request's state machine. A second start has no effect, because it has the same execution name."""
    try:
        queue.runner.start(admitted)
    except DomainError:
        logger.exception("the machine was not started; compensation will", request_id=admitted.request_id)


def _set_channel_due(queue: Queue, turns: Turns, left: int) -> None:
    """Keeps the channel due while requests wait for room, so that compensation replaces a lost message."""
    waits = left > 0 and not turns.channel.paused
    now = queue.clock().timestamp()
    due_at = turns.channel.due_at
    if waits and (due_at is None or due_at < now + _CHANNEL_DUE_SECONDS / 2):
        queue.channel_store.set_due(turns.channel.name, now + _CHANNEL_DUE_SECONDS)
    elif not waits and due_at is not None:
        queue.channel_store.set_due(turns.channel.name, None)


def _name(place: WaitingPlace) -> tuple[str, str]:
    return place.project_id, place.request_id


def _still_waits(request: Request, place: WaitingPlace) -> bool:
    return request.status in WAITING and request.priority == place.priority
