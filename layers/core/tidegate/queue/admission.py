"""Admission: decides which waiting requests of a channel run next, and says why the others wait."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain, islice

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
    Standing,
    Turn,
    WaitingPlace,
    aged_priority,
    ceiling,
    fair_share,
    moved,
)
from tidegate.queue.queue import Queue
from tidegate.queue.store import MAX_GROUP, AdmissionMove, Refused, audit_line, fits_one_transaction

logger = Logger(service="tidegate", child=True)

# --- turns
# The order of one admission run: which project of a channel is next, with which of its requests.

# If more projects wait, only those that have waited longest for their turn are considered; the others move up.
_LANES_PER_RUN = 25
_PLACES_PER_RUN = 200


@dataclass(slots=True)
class Turns:
    """One run's view of a channel, updated with each admission of the run."""

    channel: Channel
    standings: dict[str, Standing]
    # The shares of this channel that operators have set, by project.
    fixed_shares: Mapping[str, int]
    read_lane: Callable[[str], Iterator[WaitingPlace]]
    now: float
    # Seconds after which a project without a slot gets one beyond the capacity, if another holds more than its share.
    extra_slot_wait: float
    # The most slots of the channel that a project may hold, by its quota `running`.
    most_running: Mapping[str, int] = field(default_factory=dict)
    # Projects that have used up their runner-hours of the day.
    held_back: Container[str] = frozenset()
    admitted: int = 0
    # Places that cannot be admitted now, and why.
    skipped: list[tuple[WaitingPlace, str]] = field(default_factory=list)
    _held_mutexes: set[tuple[str, str]] = field(default_factory=set)
    _lanes: dict[str, Iterator[WaitingPlace]] = field(default_factory=dict)
    # Places that were taken from their lanes to be compared, and not admitted yet.
    _heads: dict[str, WaitingPlace] = field(default_factory=dict)
    _before: tuple[Channel, dict[str, Standing], int] = field(init=False)

    @property
    def reason(self) -> str | None:
        """Why the channel admits nobody now; None if it has room."""
        if self.channel.paused:
            return CHANNEL_PAUSED
        return CAPACITY if self.channel.free <= 0 else None

    @property
    def waiting(self) -> int:
        return sum(standing.waiting for standing in self.standings.values())

    def next(self) -> WaitingPlace | None:
        """The next place: by priority, then of the project that has waited longest for a turn.

        Projects below their share come first. One that has its share is next only if no other can use the slot. While
        the next place needs more slots than are free, nobody else gets these: small requests would keep it waiting.
        """
        if self.channel.paused:
            return None
        if self.channel.free <= 0:
            return self._next_extra()
        split = self._fair_share()
        allowed = [
            each
            for each in self._waiting()
            if each.project_id not in self.held_back and each.running < self._ceiling(each.project_id)
        ]
        over = {each.project_id: each.running >= self.fixed_shares.get(each.project_id, split) for each in allowed}
        allowed.sort(key=lambda each: over[each.project_id])
        ready = (
            (each, place)
            for each in allowed
            if (place := self._first_ready(each.project_id)) is not None
            and each.running + self._slots(place) <= self._ceiling(each.project_id)
        )
        best = min(
            islice(ready, _LANES_PER_RUN),
            key=lambda pair: (over[pair[0].project_id], self._priority(pair[1]), pair[0].turn, pair[0].project_id),
            default=None,
        )
        if best and self._slots(best[1]) > self.channel.free:
            return self._next_extra()
        return self._heads.pop(best[0].project_id) if best else None

    def peek(self, most: int) -> list[WaitingPlace]:
        """The places that `next_group` would return, without marking them as admitted."""
        places = [place for place, _ in self.next_group(most)]
        self.put_back(places)
        return places

    def next_group(self, most: int, fits: Callable[[int, int], bool] | None = None) -> list[tuple[WaitingPlace, Turn]]:
        """The next places, each marked as admitted before the next is chosen; `put_back` undoes that.

        Ends when the channel has no room, or before a place that needs a mutex, because the mutex is often held.
        `fits(places, projects)` tells whether a group of that size is allowed.
        """
        self._before = (self.channel, dict(self.standings), self.admitted)
        found: list[tuple[WaitingPlace, Turn]] = []
        projects: set[str] = set()
        while len(found) < most and self.channel.free > 0 and (place := self.next()) is not None:
            projects.add(place.project_id)
            turn = self.turn(place)
            if place.mutex is not None or turn.extra or (fits and not fits(len(found) + 1, len(projects))):
                self._heads[place.project_id] = place
                break
            found.append((place, turn))
            self.mark_admitted(place)
        return found

    @property
    def channel_before(self) -> Channel:
        """The channel as it was before the last `next_group`."""
        return self._before[0]

    def put_back(self, places: Sequence[WaitingPlace]) -> None:
        """Undoes the last `next_group`: its places are the first of their lanes again."""
        self.channel, self.standings, self.admitted = self._before
        lanes: dict[str, list[WaitingPlace]] = {}
        for place in places:
            lanes.setdefault(place.project_id, []).append(place)
        for project_id, first in lanes.items():
            self._lanes[project_id] = chain(first, self._remaining(project_id))

    def turn(self, place: WaitingPlace) -> Turn:
        number, slots = self.channel.slot_changes + 1, self._slots(place)
        if self.channel.free < slots:
            return Turn(number, ceiling=slots, extra=True, slots=slots)
        return Turn(number, self._ceiling(place.project_id), slots=slots, capacity=self.channel.capacity)

    def _slots(self, place: WaitingPlace) -> int:
        return place.takes(self._ceiling(place.project_id))

    def _next_extra(self) -> WaitingPlace | None:
        """The place that may be the one request beyond the capacity now."""
        ready = [(each, place) for each, place in self._without_slot() if self._extra_slot_at(place) <= self.now]
        best = min(ready, key=lambda pair: (self._priority(pair[1]), pair[0].turn, pair[0].project_id), default=None)
        return self._heads.pop(best[0].project_id) if best else None

    def next_extra_slot(self) -> tuple[WaitingPlace, float] | None:
        """(the place that may take the slot beyond the capacity next, from when on); None if there is no such place."""
        times = ((place, self._extra_slot_at(place)) for _, place in self._without_slot())
        return min(times, key=lambda pair: pair[1], default=None)

    def _without_slot(self) -> Iterator[tuple[Standing, WaitingPlace]]:
        """Projects that wait without a slot while another holds more than its share, with their first places.

        None if no project holds more than its share, as in a channel with one slot: then they wait for their turn.
        """
        channel, split = self.channel, self._fair_share()
        holders = (each for each in self.standings.values() if each.running > 0)
        too_many = any(each.running > self.fixed_shares.get(each.project_id, split) for each in holders)
        if channel.paused or channel.running > channel.capacity or not too_many:
            return
        without = [each for each in self._waiting() if each.running <= 0 and each.project_id not in self.held_back]
        for each in without[:_LANES_PER_RUN]:
            place = self._first_ready(each.project_id) if self._ceiling(each.project_id) > 0 else None
            if place is not None and self._slots(place) > channel.free:
                yield each, place

    def _extra_slot_at(self, place: WaitingPlace) -> float:
        since = datetime.fromisoformat(place.since).timestamp()
        return max(since, place.not_before or 0.0) + self.extra_slot_wait

    def _fair_share(self) -> int:
        return fair_share(self.channel.capacity, self.standings.values())

    def mark_admitted(self, place: WaitingPlace) -> None:
        """Counts the place's request as running."""
        self.admitted += 1
        if place.mutex is not None:
            self.mark_mutex_held(place)
        channel, standing = self.channel, self.standings[place.project_id]
        slots = self._slots(place)
        self.channel = replace(channel, running=channel.running + slots, slot_changes=channel.slot_changes + 1)
        self.standings[place.project_id] = replace(
            standing, waiting=standing.waiting - 1, running=standing.running + slots, turn=self.channel.slot_changes
        )

    def mark_mutex_held(self, place: WaitingPlace) -> None:
        """Other places that need the same mutex are skipped from now on."""
        self._held_mutexes.add((place.project_id, str(place.mutex)))

    def still_waiting(self) -> Iterator[tuple[WaitingPlace, str]]:
        """Places that were not admitted, with the reason: the skipped ones, then the first of each lane."""
        yield from list(self.skipped)
        lanes = self._waiting()[:_LANES_PER_RUN]
        for standing in lanes:
            for place in islice(self._remaining(standing.project_id), max(1, _PLACES_PER_RUN // len(lanes))):
                yield place, self._obstacle(place) or self._wait(place)

    def _wait(self, place: WaitingPlace) -> str:
        if place.project_id in self.held_back:
            return RUNNER_HOURS
        if self.reason:
            return self.reason
        most = self._ceiling(place.project_id)
        is_below = (
            most >= self.channel.capacity or self.standings[place.project_id].running + self._slots(place) <= most
        )
        return CAPACITY if is_below and self._slots(place) > self.channel.free else SHARE

    def _waiting(self) -> list[Standing]:
        waiting = [standing for standing in self.standings.values() if standing.waiting > 0]
        return sorted(waiting, key=lambda standing: (standing.turn, standing.project_id))

    def _ceiling(self, project_id: str) -> int:
        share = ceiling(self.channel.capacity, self.fixed_shares.get(project_id))
        return min(share, self.most_running.get(project_id, share))

    def _priority(self, place: WaitingPlace) -> int:
        return aged_priority(place.priority, place.since, self.now)

    def _first_ready(self, project_id: str) -> WaitingPlace | None:
        """The project's first place that could be admitted now."""
        for place in self._remaining(project_id):
            obstacle = self._obstacle(place)
            if obstacle is None:
                self._heads[project_id] = place
                return place
            self.skipped.append((place, obstacle))
        return None

    def _remaining(self, project_id: str) -> Iterator[WaitingPlace]:
        """The places of a lane that were neither admitted nor skipped."""
        if project_id not in self._lanes:
            self._lanes[project_id] = self.read_lane(project_id)
        first = [self._heads.pop(project_id)] if project_id in self._heads else []
        return chain(first, self._lanes[project_id])

    def _obstacle(self, place: WaitingPlace) -> str | None:
        if place.not_before is not None and place.not_before > self.now:
            return BACKOFF
        return MUTEX if (place.project_id, str(place.mutex)) in self._held_mutexes else None


# --- wait reasons
# Stores on waiting requests why they wait.

# One run of admission writes the reason to this many requests. Those further back get theirs as they move up.
_REASONS_PER_RUN = 25
_FEW, _THREADS = 4, 8


def _write_reasons(queue: Queue, turns: Turns) -> int:
    """Writes the reasons of the first waiting requests. Returns how many wait for something other than back-off.

    Also schedules the run of admission that may give the next extra slot.
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
    """Moves a request from pending to queued: admission has seen it, and it waits for `reason`."""
    now = queue.clock()
    queued = moved(request, "wait", last_wait_reason=reason)
    line = audit_line(request, queued, "wait", SYSTEM, reason, now)
    try:
        queue.store.move(request, queued, line, now=now)
    except Refused:
        return


def _is_new(place: WaitingPlace, reason: str) -> bool:
    """Whether the reason, or the state `queued`, is not stored yet."""
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
# After this time the rest is left to another run. A function that reaches its time-out is killed, and its message then
# blocks the channel's FIFO group until it is visible again.
_RUN_SECONDS = 4.0


def admit_each(queue: Queue, channel_names: Collection[str]) -> list[str]:
    """Runs the admission of these channels, side by side. Returns those that failed."""
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
    """Admits as many requests as the channel has room for; projects take turns. Returns how many were admitted.

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
    """Returns False if time ran out before all requests that have room were admitted."""
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

    If the transaction is refused, tries them one by one and returns none. `ahead` caches requests that were read
    before earlier transactions: the check of the version refuses those that have changed since.
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
    """Why the project's next request would have to wait, even as the only one; None if there is room for it."""
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
    """A project's places, in the order of admission. Reads once per page which mutexes are held.

    Reads no further page after `ends_at`: a project with very many blocked requests must not use up the time in
    which others are admitted.
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
    """Returns why the request must wait; None if it was admitted or does not wait any more."""
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
        heartbeat_time=iso(now),
        not_before=None,
        last_wait_reason=None,
    )
    line = audit_line(request, admitted, "admit", SYSTEM, f"a slot of {request.channel} was free", now)
    return AdmissionMove(request, admitted, line, turn)


def _wait_reason(queue: Queue, refused: Refused, place: WaitingPlace, turns: Turns) -> str | None:
    """Updates `turns` with what the refused transaction showed."""
    if transaction.CHANNEL in refused.parts:
        turns.channel = queue.channel_store.ensure(turns.channel.name, 1)
        return turns.reason or CAPACITY
    if transaction.STANDING in refused.parts:
        standing = queue.channel_store.standing(place.channel, place.project_id)
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


def start(queue: Queue, admitted: Request) -> None:
    """Starts the request's state machine. A second start has no effect: the name is the request and attempt."""
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
