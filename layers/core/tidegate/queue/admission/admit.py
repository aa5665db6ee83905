"""Who runs next: one run per channel at a time, as the FIFO group of the channel guarantees."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock, iso
from tidegate.errors import DomainError
from tidegate.projects.audit import SYSTEM
from tidegate.projects.store import ProjectStore
from tidegate.queue import transaction
from tidegate.queue.admission.fairness import Turn, ceiling
from tidegate.queue.admission.together import MOST_TOGETHER, Move, fit_together
from tidegate.queue.admission.turns import Turns
from tidegate.queue.admission.wakeups import AdmissionQueue
from tidegate.queue.channels.model import Channel, Place
from tidegate.queue.channels.store import ChannelStore
from tidegate.queue.model import BACKOFF, CAPACITY, CHANNEL_PAUSED, MUTEX, PENDING, SHARE, WAITING, Request, moved
from tidegate.queue.policies import Policy
from tidegate.queue.queue import RequestQueue
from tidegate.queue.runner import RequestRunner
from tidegate.queue.store import RequestStore
from tidegate.queue.transaction import Refused

logger = Logger(service="tidegate", child=True)

# Where many wait, the first of them are told why in each run; the rest is told as it moves up.
_NOTES_PER_RUN = 25
_FEW_NOTES, _NOTES_TOGETHER = 4, 8
_LOOK_AGAIN_SECONDS = 60
# Machines are started while the next requests are admitted: to start one takes longer than to admit it.
_STARTS_TOGETHER = 16
# Requests whose turn comes next are read together, as many as DynamoDB gives in one call.
_READ_AHEAD = 100
# One run starts what it can in this time and leaves the rest to the next: a function that reaches its time-out is
# killed, and its message then blocks the channel's group until it is visible again.
_RUN_SECONDS = 4.0


class Admission:
    def __init__(
        self,
        store: RequestStore,
        channels: ChannelStore,
        quotas: ProjectStore,
        runner: RequestRunner,
        admission_queue: AdmissionQueue,
        clock: Clock,
        policies: Mapping[str, Policy],
        capacities: Mapping[str, int],
        extra_slot_wait: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._channels = channels
        self._quotas = quotas
        self._runner = runner
        self._admission_queue = admission_queue
        self._clock = clock
        self._policies = policies
        self._capacities = capacities
        self._extra_slot_wait = extra_slot_wait
        self._monotonic = monotonic

    def admit(self, channel_name: str) -> int:
        """Admits what the channel has room for, project by project. Returns how many were admitted.

        A run whose time is up admits the rest in a run of its own.
        """
        ends_at = self._monotonic() + _RUN_SECONDS
        turns = self._turns(channel_name)
        in_time = self._admit_all(turns, ends_at)
        left = self._tell(turns) if in_time else turns.waiting
        self._look_again(turns, left)
        if not in_time:
            self._admission_queue.trigger(channel_name)
        logger.info("admitted", channel=channel_name, admitted=turns.admitted, left=left)
        return turns.admitted

    def _admit_all(self, turns: Turns, ends_at: float) -> bool:
        """False if the time was up before all were admitted that there is room for."""
        started: list[Future[None]] = []
        ahead: dict[tuple[str, str], Request] = {}
        in_time = True
        with ThreadPoolExecutor(_STARTS_TOGETHER, thread_name_prefix="start") as pool:
            while in_time:
                if group := self._next_group(turns, ahead):
                    started += [pool.submit(self.start, admitted) for admitted in group]
                elif (place := turns.next()) is not None:
                    self._try_one(place, turns)
                else:
                    break
                in_time = not turns.admitted or self._monotonic() < ends_at
        for future in started:
            future.result()
        return in_time

    def _next_group(self, turns: Turns, ahead: dict[tuple[str, str], Request]) -> list[Request]:
        """Admits the next requests in one transaction. None of them if it is refused: they are next one by one.

        `ahead` are requests as they were read some transactions ago: one that moved since is refused by its version.
        """
        group = turns.next_together(MOST_TOGETHER, fit_together)
        places = [place for place, _ in group]
        if len(places) > 1:
            if any(_name(place) not in ahead for place in places):
                turns.give_back(places)
                ahead.clear()
                ahead.update(self._store.get_many(map(_name, turns.peek(_READ_AHEAD))))
                group = turns.next_together(MOST_TOGETHER, fit_together)
                places = [place for place, _ in group]
            moves = [
                self._move(request, turn)
                for place, turn in group
                if (request := ahead.pop(_name(place), None)) and _still_waits(request, place)
            ]
            if len(moves) == len(group) and self._took_together(moves, turns.channel_before):
                return [move.new for move in moves]
        turns.give_back(places)
        for _ in places:
            place = turns.next()
            if place is not None:
                self._try_one(place, turns)
        return []

    def _took_together(self, moves: Sequence[Move], channel: Channel) -> bool:
        try:
            self._store.admit_together(moves, channel, self._clock())
        except Refused as refused:
            logger.info("a group is admitted one by one", channel=channel.name, refused=sorted(refused.parts))
            return False
        return True

    def _try_one(self, place: Place, turns: Turns) -> None:
        reason = self._try(place, turns)
        if reason:
            turns.passed.append((place, reason))

    def no_room(self, channel_name: str, project_id: str) -> str | None:
        """Why a project's next request would wait, whatever else waits; None if there is room for it."""
        channel = self._channels.get(channel_name)
        if channel is None:
            return None
        if channel.free <= 0:
            return CHANNEL_PAUSED if channel.paused else CAPACITY
        share = (self._quotas.quotas(project_id).share or {}).get(channel_name)
        running = self._channels.standing(channel_name, project_id).running
        return SHARE if running >= ceiling(channel.capacity, share) else None

    def _turns(self, name: str) -> Turns:
        channel = self._channels.ensure(name, self._capacities.get(name, 1))
        standings = self._channels.standings(name)
        if sum(standing.running for standing in standings) != channel.running:
            # Slots taken before they were counted by project, or a slot that changed hands between the two reads.
            self._channels.recount_running(name)
            standings = self._channels.standings(name)
        turns = Turns(
            channel,
            {standing.project_id: standing for standing in standings},
            self._fixed_shares(name, [standing.project_id for standing in standings if standing.is_active]),
            lambda project_id: self._lane(project_id, turns),
            self._clock().timestamp(),
            self._extra_slot_wait,
        )
        return turns

    def _lane(self, project_id: str, turns: Turns) -> Iterator[Place]:
        """A project's places. Which mutexes are held is read once for a page, not once for each request."""
        known: set[str] = set()
        for page in self._channels.waiting(turns.channel.name, project_id):
            locking = [place for place in page if place.mutex is not None]
            unknown = {str(place.mutex) for place in locking} - known
            if unknown and len(locking) > 1:
                held = self._channels.held_mutexes(project_id, unknown, turns.now)
                known |= unknown
                for place in locking:
                    if place.mutex in held:
                        turns.hold(place)
            yield from page

    def _fixed_shares(self, name: str, project_ids: list[str]) -> dict[str, int]:
        found = self._quotas.quotas_of(project_ids)
        shares = {project_id: quotas.share or {} for project_id, quotas in found.items()}
        return {project_id: share[name] for project_id, share in shares.items() if name in share}

    def _try(self, place: Place, turns: Turns) -> str | None:
        """Returns why the request goes on waiting; None if it was admitted or is gone."""
        request = self._store.get(place.project_id, place.request_id)
        if request is None:
            self._channels.drop_place(place)
            return None
        if not _still_waits(request, place):
            return None
        move = self._move(request, turns.turn(place.project_id))
        try:
            self._store.move(request, move.new, move.line, now=self._clock(), turn=move.turn)
        except Refused as refused:
            return self._refused(refused, place, turns)
        turns.took(place)
        self.start(move.new)
        return None

    def _move(self, request: Request, turn: Turn) -> Move:
        now = self._clock()
        timeout = request.timeout or self._policies[request.type].timeout
        admitted = moved(
            request,
            "admit",
            attempt=request.attempt + 1,
            deadline=now.timestamp() + timeout,
            start_time=iso(now),
            heartbeat_time=iso(now),
            not_before=None,
            last_wait_reason=None,
        )
        line = RequestQueue.line(request, admitted, "admit", SYSTEM, f"a slot of {request.channel} was free", now)
        return Move(request, admitted, line, turn)

    def _refused(self, refused: Refused, place: Place, turns: Turns) -> str | None:
        if transaction.CHANNEL in refused.parts:
            turns.channel = self._channels.ensure(turns.channel.name, 1)
            return turns.reason or CAPACITY
        if transaction.STANDING in refused.parts:
            standing = self._channels.standing(place.channel, place.project_id)
            # Never less than what refused: a stale count would offer the slot again and again.
            held = max(standing.running, turns.turn(place.project_id).ceiling)
            turns.standings[place.project_id] = replace(standing, running=held)
            return SHARE
        if transaction.MUTEX in refused.parts:
            turns.hold(place)
            return MUTEX
        if transaction.SLOT in refused.parts:
            # A slot of an earlier attempt was left behind: the channel's recount removes it.
            return CAPACITY
        return None

    def start(self, admitted: Request) -> None:
        """The execution is named by request and attempt, so a second start changes nothing."""
        try:
            self._runner.start(admitted)
        except DomainError:
            logger.exception("started later, by compensation", request_id=admitted.request_id)

    def _tell(self, turns: Turns) -> int:
        """Notes on the first waiting requests why they wait. Returns how many wait for more than their back-off."""
        backing_off = 0
        notes: list[tuple[Place, str]] = []
        extra = turns.next_extra_slot()
        for place, reason in turns.rest():
            backing_off += reason == BACKOFF
            if len(notes) < _NOTES_PER_RUN and _is_news(place, reason):
                notes.append((place, reason))
                if extra is not None and place == extra[0]:
                    now = self._clock()
                    self._admission_queue.wake(place.channel, datetime.fromtimestamp(extra[1], UTC), now)
        self._note_all(notes)
        return max(0, turns.waiting - backing_off)

    def _note_all(self, notes: Sequence[tuple[Place, str]]) -> None:
        if len(notes) < _FEW_NOTES:
            for note in notes:
                self._note(*note)
            return
        # Where many wait they must not hold up the next run.
        with ThreadPoolExecutor(_NOTES_TOGETHER, thread_name_prefix="note") as pool:
            list(pool.map(self._note, *zip(*notes, strict=True)))

    def _note(self, place: Place, reason: str) -> None:
        if place.status != PENDING or reason == BACKOFF:
            self._store.note_wait(place, reason)
            return
        request = self._store.get(place.project_id, place.request_id)
        if request is not None and request.status == PENDING:
            self.queue_up(request, reason)

    def queue_up(self, request: Request, reason: str) -> None:
        """pending → queued: seen by admission, and waiting for what `reason` says."""
        now = self._clock()
        queued = moved(request, "wait", last_wait_reason=reason)
        line = RequestQueue.line(request, queued, "wait", SYSTEM, reason, now)
        try:
            self._store.move(request, queued, line, now=now)
        except Refused:
            return

    def _look_again(self, turns: Turns, left: int) -> None:
        """While something waits for room, the channel itself is due, so that a lost message does not stop it."""
        waits = left > 0 and not turns.channel.paused
        now = self._clock().timestamp()
        due_at = turns.channel.due_at
        if waits and (due_at is None or due_at < now + _LOOK_AGAIN_SECONDS / 2):
            self._channels.look_again(turns.channel.name, now + _LOOK_AGAIN_SECONDS)
        elif not waits and due_at is not None:
            self._channels.look_again(turns.channel.name, None)


def _name(place: Place) -> tuple[str, str]:
    return place.project_id, place.request_id


def _still_waits(request: Request, place: Place) -> bool:
    return request.status in WAITING and request.priority == place.priority


def _is_news(place: Place, reason: str) -> bool:
    return place.reason != reason or (place.status == PENDING and reason != BACKOFF)
