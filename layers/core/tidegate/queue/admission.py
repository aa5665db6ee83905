"""Admission: decides which waiting requests of a channel run next, and says why the others wait."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.compensation.freeze import Freeze
from tidegate.errors import DomainError
from tidegate.projects.audit import SYSTEM
from tidegate.projects.limits import RUNNER_SECONDS, UsageStore, is_used_up
from tidegate.projects.projects import ProjectStore
from tidegate.queue import store as transaction
from tidegate.queue.channels import ChannelStore
from tidegate.queue.fairness import Turn, Turns, ceiling
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
    Place,
    Policy,
    Request,
    moved,
)
from tidegate.queue.queue import AdmissionQueue, RequestQueue, RequestRunner
from tidegate.queue.store import MAX_GROUP, AdmissionMove, Refused, RequestStore, fits_one_transaction

# --- wait reasons
# Stores on waiting requests why they wait.

# One run of admission writes the reason to this many requests. Those further back get theirs as they move up.
_REASONS_PER_RUN = 25
_FEW, _THREADS = 4, 8


class WaitReasons:
    def __init__(self, store: RequestStore, admission_queue: AdmissionQueue, clock: Clock) -> None:
        self._store = store
        self._admission_queue = admission_queue
        self._clock = clock

    def write(self, turns: Turns) -> int:
        """Writes the reasons of the first waiting requests. Returns how many wait for something other than back-off.

        Also schedules the run of admission that may give the next extra slot.
        """
        backing_off = 0
        reasons: list[tuple[Place, str]] = []
        extra = turns.next_extra_slot()
        for place, reason in turns.still_waiting():
            backing_off += reason == BACKOFF
            if len(reasons) < _REASONS_PER_RUN and _is_new(place, reason):
                reasons.append((place, reason))
                if extra is not None and place == extra[0]:
                    at = datetime.fromtimestamp(extra[1], UTC)
                    self._admission_queue.wake(place.channel, at, self._clock())
        self._write_all(reasons)
        return max(0, turns.waiting - backing_off)

    def _write_all(self, reasons: Sequence[tuple[Place, str]]) -> None:
        if len(reasons) < _FEW:
            for place, reason in reasons:
                self._write(place, reason)
            return
        # In parallel, because the next run of the channel waits for this one.
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="reason") as pool:
            list(pool.map(self._write, *zip(*reasons, strict=True)))

    def _write(self, place: Place, reason: str) -> None:
        if place.status != PENDING or reason == BACKOFF:
            self._store.note_wait(place, reason)
            return
        request = self._store.get(place.project_id, place.request_id)
        if request is not None and request.status == PENDING:
            self.queue_up(request, reason)

    def queue_up(self, request: Request, reason: str) -> None:
        """Moves a request from pending to queued: admission has seen it, and it waits for `reason`."""
        now = self._clock()
        queued = moved(request, "wait", last_wait_reason=reason)
        line = RequestQueue.line(request, queued, "wait", SYSTEM, reason, now)
        try:
            self._store.move(request, queued, line, now=now)
        except Refused:
            return


def _is_new(place: Place, reason: str) -> bool:
    """Whether the reason, or the state `queued`, is not stored yet."""
    return place.reason != reason or (place.status == PENDING and reason != BACKOFF)


# --- admit
# Admission: decides which waiting requests of a channel run next.
#
# The FIFO group of a channel guarantees one run per channel at a time.

logger = Logger(service="tidegate", child=True)

_CHANNEL_DUE_SECONDS = 60
# State machines are started while the next requests are admitted: starting one takes longer than admitting it.
_START_THREADS = 16
# The next requests are read in one call of BatchGetItem, which returns at most 100 items.
_READ_AHEAD = 100
# After this time the rest is left to another run. A function that reaches its time-out is killed, and its message then
# blocks the channel's FIFO group until it is visible again.
_RUN_SECONDS = 4.0


class Admission:
    def __init__(
        self,
        store: RequestStore,
        channels: ChannelStore,
        quotas: ProjectStore,
        usage: UsageStore,
        runner: RequestRunner,
        admission_queue: AdmissionQueue,
        freeze: Freeze,
        clock: Clock,
        policies: Mapping[str, Policy],
        capacities: Mapping[str, int],
        extra_slot_wait: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._channels = channels
        self._quotas = quotas
        self._usage = usage
        self._runner = runner
        self._admission_queue = admission_queue
        self._freeze = freeze
        self._clock = clock
        self._policies = policies
        self._capacities = capacities
        self._extra_slot_wait = extra_slot_wait
        self.wait_reasons = WaitReasons(store, admission_queue, clock)
        self._monotonic = monotonic

    def admit_each(self, channel_names: Collection[str]) -> list[str]:
        """Runs the admission of these channels, side by side. Returns those that failed."""
        if len(channel_names) == 1:
            return [name for name in channel_names if not self._try_run(name)]
        with ThreadPoolExecutor(len(channel_names), thread_name_prefix="channel") as pool:
            succeeded = list(pool.map(self._try_run, channel_names))
        return [name for name, done in zip(channel_names, succeeded, strict=True) if not done]

    def _try_run(self, channel_name: str) -> bool:
        try:
            self.admit(channel_name)
        except Exception:
            logger.exception("admission failed and will be retried", channel=channel_name)
            return False
        return True

    def admit(self, channel_name: str) -> int:
        """Admits as many requests as the channel has room for; projects take turns. Returns how many were admitted.

        If there is not enough time for all, triggers another run for the rest.
        """
        if self._freeze.now().frozen:
            # Thawing triggers every channel.
            logger.info("frozen: nothing is admitted", channel=channel_name)
            return 0
        ends_at = self._monotonic() + _RUN_SECONDS
        self._channels.begin_run(channel_name)
        turns = self._turns(channel_name, ends_at)
        in_time = self._admit_all(turns, ends_at)
        left = self.wait_reasons.write(turns) if in_time else turns.waiting
        self._set_channel_due(turns, left)
        if not in_time:
            self._admission_queue.trigger(channel_name)
        logger.info("admitted", channel=channel_name, admitted=turns.admitted, left=left)
        return turns.admitted

    def _admit_all(self, turns: Turns, ends_at: float) -> bool:
        """Returns False if time ran out before all requests that have room were admitted."""
        started: list[Future[None]] = []
        ahead: dict[tuple[str, str], Request] = {}
        in_time = True
        with ThreadPoolExecutor(_START_THREADS, thread_name_prefix="start") as pool:
            while in_time:
                if group := self._next_group(turns, ahead):
                    started += [pool.submit(self.start, admitted) for admitted in group]
                elif (place := turns.next()) is not None:
                    self._admit_one(place, turns)
                else:
                    break
                in_time = not turns.admitted or self._monotonic() < ends_at
        for future in started:
            future.result()
        return in_time

    def _next_group(self, turns: Turns, ahead: dict[tuple[str, str], Request]) -> list[Request]:
        """Admits the next requests in one transaction and returns them.

        If the transaction is refused, tries them one by one and returns none. `ahead` caches requests that were read
        before earlier transactions: the check of the version refuses those that have changed since.
        """
        group = turns.next_group(MAX_GROUP, fits_one_transaction)
        places = [place for place, _ in group]
        if len(places) > 1:
            if any(_name(place) not in ahead for place in places):
                turns.put_back(places)
                ahead.clear()
                ahead.update(self._store.get_many(map(_name, turns.peek(_READ_AHEAD))))
                group = turns.next_group(MAX_GROUP, fits_one_transaction)
                places = [place for place, _ in group]
            moves = [
                self._move(request, turn)
                for place, turn in group
                if (request := ahead.pop(_name(place), None)) and _still_waits(request, place)
            ]
            if len(moves) == len(group) and self._admit_group(moves, turns.channel_before):
                return [move.new for move in moves]
        turns.put_back(places)
        for _ in places:
            place = turns.next()
            if place is not None:
                self._admit_one(place, turns)
        return []

    def _admit_group(self, moves: Sequence[AdmissionMove], channel: Channel) -> bool:
        try:
            self._store.admit_group(moves, channel, self._clock())
        except Refused as refused:
            logger.info("a group is admitted one by one", channel=channel.name, refused=sorted(refused.parts))
            return False
        return True

    def _admit_one(self, place: Place, turns: Turns) -> None:
        reason = self._try_to_admit(place, turns)
        if reason:
            turns.skipped.append((place, reason))

    def no_room(self, channel_name: str, project_id: str) -> str | None:
        """Why the project's next request would have to wait, even as the only one; None if there is room for it."""
        channel = self._channels.get(channel_name)
        if channel is None:
            return None
        if channel.free <= 0:
            return CHANNEL_PAUSED if channel.paused else CAPACITY
        quotas = self._quotas.quotas(project_id)
        most = ceiling(channel.capacity, (quotas.share or {}).get(channel_name))
        most = most if quotas.running is None else min(most, quotas.running)
        if self._channels.standing(channel_name, project_id).running >= most:
            return SHARE
        used = self._usage.today(project_id, self._clock())
        return RUNNER_HOURS if is_used_up(quotas, used, RUNNER_SECONDS) else None

    def _turns(self, name: str, ends_at: float = math.inf) -> Turns:
        channel = self._channels.ensure(name, self._capacities.get(name, 1))
        standings = self._channels.standings(name)
        if sum(standing.running for standing in standings) != channel.running:
            # Slots were taken by a version that did not count them by project, or changed between the two reads.
            self._channels.recount_running(name)
            standings = self._channels.standings(name)
        active = [standing.project_id for standing in standings if standing.is_active]
        found = self._usage.quotas_today(active, self._clock())
        turns = Turns(
            channel,
            {standing.project_id: standing for standing in standings},
            {
                project_id: each.share[name]
                for project_id, (each, _) in found.items()
                if each.share and name in each.share
            },
            lambda project_id: self._lane(project_id, turns, ends_at),
            self._clock().timestamp(),
            self._extra_slot_wait,
            {project_id: each.running for project_id, (each, _) in found.items() if each.running is not None},
            {project_id for project_id, (each, used) in found.items() if is_used_up(each, used, RUNNER_SECONDS)},
        )
        return turns

    def _lane(self, project_id: str, turns: Turns, ends_at: float) -> Iterator[Place]:
        """A project's places, in the order of admission. Reads once per page which mutexes are held.

        Reads no further page after `ends_at`: a project with very many blocked requests must not use up the time in
        which others are admitted.
        """
        checked: set[str] = set()
        for page in self._channels.waiting(turns.channel.name, project_id):
            locking = [place for place in page if place.mutex is not None]
            unknown = {str(place.mutex) for place in locking} - checked
            if unknown and len(locking) > 1:
                held = self._channels.held_mutexes(project_id, unknown, turns.now)
                checked |= unknown
                for place in locking:
                    if place.mutex in held:
                        turns.mark_mutex_held(place)
            yield from page
            if self._monotonic() >= ends_at:
                return

    def _try_to_admit(self, place: Place, turns: Turns) -> str | None:
        """Returns why the request must wait; None if it was admitted or does not wait any more."""
        request = self._store.get(place.project_id, place.request_id)
        if request is None:
            self._channels.drop_place(place)
            return None
        if not _still_waits(request, place):
            return None
        move = self._move(request, turns.turn(place))
        try:
            self._store.move(request, move.new, move.line, now=self._clock(), turn=move.turn)
        except Refused as refused:
            return self._wait_reason(refused, place, turns)
        turns.mark_admitted(place)
        self.start(move.new)
        return None

    def _move(self, request: Request, turn: Turn) -> AdmissionMove:
        now = self._clock()
        timeout = request.timeout or self._policies[request.type].timeout
        admitted = moved(
            request,
            "admit",
            attempt=request.attempt + 1,
            slots_held=turn.slots,
            deadline=now.timestamp() + timeout,
            start_time=iso(now),
            heartbeat_time=iso(now),
            not_before=None,
            last_wait_reason=None,
        )
        line = RequestQueue.line(request, admitted, "admit", SYSTEM, f"a slot of {request.channel} was free", now)
        return AdmissionMove(request, admitted, line, turn)

    def _wait_reason(self, refused: Refused, place: Place, turns: Turns) -> str | None:
        """Updates `turns` with what the refused transaction showed."""
        if transaction.CHANNEL in refused.parts:
            turns.channel = self._channels.ensure(turns.channel.name, 1)
            return turns.reason or CAPACITY
        if transaction.STANDING in refused.parts:
            standing = self._channels.standing(place.channel, place.project_id)
            # At least the ceiling that refused it: with a stale count the same slot would be offered again and again.
            held = max(standing.running, turns.turn(place).ceiling)
            turns.standings[place.project_id] = replace(standing, running=held)
            return SHARE
        if transaction.MUTEX in refused.parts:
            turns.mark_mutex_held(place)
            return MUTEX
        if transaction.SLOT in refused.parts:
            # An earlier attempt left its slot behind: the recount of the channel removes it.
            return CAPACITY
        return None

    def start(self, admitted: Request) -> None:
        """Starts the request's state machine. A second start has no effect: the name is the request and attempt."""
        try:
            self._runner.start(admitted)
        except DomainError:
            logger.exception("the machine was not started; compensation will", request_id=admitted.request_id)

    def _set_channel_due(self, turns: Turns, left: int) -> None:
        """Keeps the channel due while requests wait for room, so that compensation replaces a lost message."""
        waits = left > 0 and not turns.channel.paused
        now = self._clock().timestamp()
        due_at = turns.channel.due_at
        if waits and (due_at is None or due_at < now + _CHANNEL_DUE_SECONDS / 2):
            self._channels.set_due(turns.channel.name, now + _CHANNEL_DUE_SECONDS)
        elif not waits and due_at is not None:
            self._channels.set_due(turns.channel.name, None)


def _name(place: Place) -> tuple[str, str]:
    return place.project_id, place.request_id


def _still_waits(request: Request, place: Place) -> bool:
    return request.status in WAITING and request.priority == place.priority
