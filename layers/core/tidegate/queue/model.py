"""The records and rules of the queue: requests, their states and policies, channels, turns and statistics. Pure."""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from itertools import chain, islice
from typing import Annotated, Any, NamedTuple

from tidegate.errors import DomainError, Invalid, WrongState
from tidegate.records import F, view_of

# --- model
# The life cycle of a request: its states, the transitions between them, and how callers see it.

PENDING, QUEUED, RUNNING, PAUSED = "pending", "queued", "running", "paused"
COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"

WAITING = frozenset({PENDING, QUEUED})
TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})
STATES = WAITING | TERMINAL | {RUNNING, PAUSED}

# action: the states in which it is allowed, and the state after it (None: the same)
TRANSITIONS: Mapping[str, tuple[frozenset[str], str | None]] = {
    "wait": (frozenset({PENDING}), QUEUED),
    "admit": (WAITING, RUNNING),
    "complete": (frozenset({RUNNING}), COMPLETED),
    "fail": (frozenset({RUNNING}), FAILED),
    "retry_later": (frozenset({RUNNING}), PENDING),
    "cancel": (WAITING | {RUNNING, PAUSED}, CANCELLED),
    "pause": (WAITING | {RUNNING}, PAUSED),
    "resume": (frozenset({PAUSED}), PENDING),
    "retry": (frozenset({FAILED}), PENDING),
    "retry_now": (WAITING, None),
    "prioritize": (WAITING | {PAUSED}, None),
}

# A function that works on a request sends a heartbeat at least every ten seconds. Compensation checks a request whose
# oldest heartbeat is LOOK_SECONDS old, and replaces the function if it is SILENT_SECONDS old.
LOOK_SECONDS, SILENT_SECONDS = 25, 50

# Why a request waits.
CAPACITY, SHARE, CHANNEL_PAUSED, MUTEX, BACKOFF = "capacity", "share", "paused", "mutex", "backoff"
RUNNER_HOURS = "runner_hours_per_day"
WaitReason = Annotated[
    str | None,
    F(
        "why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or "
        "`runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the "
        "next day"
    ),
]

# Priorities: 1 to 3 for requests of people, 4 to 6 for schedules and other systems, 7 to 10 for maintenance.
BY_HAND, BY_SCHEDULE, UPKEEP = 3, 5, 8
DEFAULT_PRIORITY = BY_SCHEDULE
# Checking stored files is maintenance, unless the caller sets a priority.
PRIORITIES: Mapping[str, int] = {"check": UPKEEP}


@dataclass(frozen=True, slots=True)
class Request:
    request_id: Annotated[str, F("id of the request in the queue")]
    project_id: str
    type: Annotated[str, F("`scan`, `associate`, `check`, `download`, `extract`, `export`, `batch` or `verify`")]
    channel: Annotated[str, F("the channel of the queue")]
    priority: Annotated[int, F("1 (first) to 10 (last)")]
    status: Annotated[str, F("`pending`, `queued`, `running`, `completed`, `failed`, `cancelled` or `paused`")]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC", shown="create_time")]
    payload: dict[str, Any] = field(default_factory=dict)
    # Incremented by each admission. A worker that runs an older attempt may no longer write.
    attempt: Annotated[int, F("number of attempts so far", shown="attempts")] = 0
    retries: int = 0
    version: int = 0
    timeout: int = 0
    subscription_id: Annotated[str | None, F("id of the subscription")] = None
    # How many slots it needs (a batch: one for each runner), and how many it got when it was last admitted.
    slots: int = 1
    slots_held: int = 1
    # Which mutex of its subscription it needs. A subscription runs one request at once in each of its lanes.
    lane: int = 0
    callback: str | None = None
    last_wait_reason: WaitReason = None
    not_before: float | None = None
    deadline: float | None = None
    execution: str | None = None
    error: Annotated[dict[str, str] | None, F("why it failed: `code` and `detail`")] = None
    result: Annotated[dict[str, Any] | None, F("the result; the fields depend on the type")] = None
    progress: Annotated[dict[str, Any] | None, F("how far it is; the fields depend on the type")] = None
    start_time: Annotated[str | None, F("when it started, ISO 8601 UTC")] = None
    # How long earlier attempts worked, in milliseconds.
    worked_ms: int = 0
    # What all attempts used: CPU time, the most memory of one function, bytes that were moved.
    cpu_ms: int = 0
    peak_mb: int = 0
    moved_bytes: int = 0
    finish_time: Annotated[str | None, F("when it ended, ISO 8601 UTC")] = None
    # When each function that works on this attempt sent its last heartbeat, in Unix seconds, by its name.
    beats: Annotated[dict[str, int], F(stored=False, shown=False)] = field(default_factory=dict)
    # The furthest progress of the earlier attempts.
    reached: int = 0
    expired_at: str | None = None

    @property
    def name(self) -> Annotated[str | None, F("the given name, or the name of the file")]:
        """The name that the caller gave, or the name of the request's file."""
        path = str(self.payload.get("file_path") or "").rstrip("/")
        return self.payload.get("name") or self.payload.get("file_name") or path.rpartition("/")[2] or None

    def view(self) -> dict[str, Any]:
        """The request as callers and notices see it, without the payload, which has internal references."""
        view = view_of(self)
        return view if self.status in WAITING else {k: v for k, v in view.items() if k != "last_wait_reason"}

    @property
    def mutex(self) -> str | None:
        """The lock that only one running request may hold; None if the request needs none."""
        return f"{self.subscription_id}#{self.lane}" if self.subscription_id and self.lane else self.subscription_id

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    @property
    def progress_made(self) -> int:
        """How far this attempt is, in bytes, items or rows. The number serves to compare attempts."""
        progress = self.progress or {}
        return max((int(progress.get(name) or 0) for name in ("bytes", "processed", "rows", "queued")), default=0)

    def silent(self, now: float) -> list[str]:
        """The functions of this attempt whose heartbeat is missing."""
        return sorted(name for name, at in self.beats.items() if now - at >= SILENT_SECONDS)

    def worked_until(self, moment: datetime) -> int:
        """The milliseconds that all attempts have worked together. The present attempt counts until `moment`."""
        began = datetime.fromisoformat(self.start_time) if self.start_time else moment
        return self.worked_ms + max(0, round((moment - began).total_seconds() * 1000))


def next_state(action: str, status: str) -> str:
    """The state after an action. WrongState if the action is not allowed in this state."""
    allowed, target = TRANSITIONS[action]
    if status not in allowed:
        raise WrongState(
            f"cannot {action.replace('_', ' ')} a request that is {status}: it must be {' or '.join(sorted(allowed))}"
        )
    return target or status


def moved(request: Request, action: str, **changes: Any) -> Request:
    """The request after an action. Every change of state goes through here."""
    return replace(request, status=next_state(action, request.status), version=request.version + 1, **changes)


def notice_kind(request_type: str, status: str) -> str:
    """The type of the notice that is sent when a request ends.

    Callers know exports as tasks. A batch ends when its request ends.
    """
    if request_type == "export":
        return "task.completed" if status == COMPLETED else "task.failed"
    return "batch.finished" if request_type == "batch" else "request.finished"


class Usage(NamedTuple):
    """CPU time, memory and moved bytes that a function used for a request."""

    cpu_ms: int = 0
    peak_mb: int = 0
    moved_bytes: int = 0

    def added_to(self, request: Request) -> Request:
        return replace(
            request,
            cpu_ms=request.cpu_ms + self.cpu_ms,
            peak_mb=max(request.peak_mb, self.peak_mb),
            moved_bytes=request.moved_bytes + self.moved_bytes,
        )

    def __str__(self) -> str:
        return f"CPU {self.cpu_ms / 1000:.1f} s, memory {self.peak_mb} MB, {self.moved_bytes} bytes"


# --- policies
# The policy of each type of request: its time-out, retries, channel and retention. Configuration can change it.

LONGEST_BACKOFF = 300.0
# A longer Retry-After of a server is shortened to this: it is probably a mistake.
LONGEST_RETRY_AFTER = 24 * 3600.0
DAY = 24 * 3600

REQUIRES_COOKIE, NO_COOKIE, EXPORT, BATCH = "requires_cookie", "no_cookie", "export", "batch"


@dataclass(frozen=True, slots=True)
class Policy:
    """How requests of one type run. All times are seconds.

    `growth`: 1 keeps the delay between retries fixed, 2 doubles it with each retry, up to `LONGEST_BACKOFF`."""

    timeout: int
    retries: int
    delay: float
    growth: int = 1
    channel: str = NO_COOKIE
    machine: str = "ingest"
    keep_completed: int = 7 * DAY
    keep_failed: int = 30 * DAY
    # How long the record is shown as expired after its objects were deleted.
    keep_expired: int = 0

    def backoff(self, retries_used: int, retry_after: float | None = None) -> float:
        """Seconds until the next retry. Never less than `retry_after`, for which the server asked (Retry-After)."""
        delay: float = min(self.delay * self.growth**retries_used, LONGEST_BACKOFF)
        return max(delay, min(retry_after or 0.0, LONGEST_RETRY_AFTER))


POLICIES: Mapping[str, Policy] = {
    "download": Policy(timeout=1800, retries=3, delay=60, growth=2),
    "scan": Policy(timeout=300, retries=2, delay=30),
    "associate": Policy(timeout=120, retries=2, delay=10),
    # The time to read the file is added.
    "check": Policy(timeout=60, retries=1, delay=5),
    # Six hours for all entries of an archive, in invocations of at most fifteen minutes.
    "extract": Policy(timeout=6 * 3600, retries=3, delay=30, growth=2),
    # The time to read the file is added: 5 TiB take a day and a half, in invocations of at most fifteen minutes.
    "verify": Policy(timeout=1800, retries=3, delay=30, growth=2),
    "export": Policy(
        timeout=3600, retries=2, delay=30, growth=2, channel=EXPORT, machine="export", keep_expired=23 * DAY
    ),
    "batch": Policy(timeout=90 * DAY, retries=3, delay=10, growth=2, channel=BATCH, machine="batch"),
}

CAPACITIES: Mapping[str, int] = {REQUIRES_COOKIE: 2, NO_COOKIE: 5, EXPORT: 4, BATCH: 4}


def policies_from(text: str) -> dict[str, Policy]:
    """The default policies with the deployment's changes, given as `{"download": {"retries": 5}, …}`."""
    changed: dict[str, dict[str, int]] = json.loads(text or "{}")
    names = {field.name for field in fields(Policy)}
    policies = dict(POLICIES)
    for kind, values in changed.items():
        if kind not in policies:
            raise Invalid(f"request policies: there is no request type {kind}, only {', '.join(POLICIES)}")
        if unknown := set(values) - names:
            raise Invalid(
                f"request policies: {kind} has no {', '.join(sorted(unknown))}, only {', '.join(sorted(names))}"
            )
        policies[kind] = replace(policies[kind], **values)  # type: ignore[arg-type]
    return policies


def capacities_from(text: str) -> dict[str, int]:
    return {**CAPACITIES, **json.loads(text or "{}")}


def retry_delay(policy: Policy, retries_used: int, error: DomainError) -> float | None:
    """Seconds until the next attempt. None if the error is not retryable or no retries are left.

    The type of the error decides, never its text.
    """
    if not error.retryable or retries_used >= policy.retries:
        return None
    return 0.0 if error.at_once and not retries_used else policy.backoff(retries_used, error.retry_after)


# --- model
# Channels of the queue, and the places of requests that wait in them.

_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
MAX_CAPACITY = 10_000
ALL = "all"


@dataclass(frozen=True, slots=True)
class Channel:
    name: str
    capacity: int
    running: int = 0
    paused: bool = False
    # Incremented when a slot is taken or released, so that a recount detects concurrent changes.
    slot_changes: int = 0
    due_at: int | None = None

    @property
    def free(self) -> int:
        return 0 if self.paused else max(0, self.capacity - self.running)


@dataclass(frozen=True, slots=True)
class WaitingPlace:
    """A waiting request in its project's lane, with what admission needs to skip it without reading the request."""

    channel: str
    project_id: str
    request_id: str
    priority: int
    since: str
    status: str
    reason: str | None = None
    not_before: float | None = None
    mutex: str | None = None
    # None in places that an older version wrote.
    slots: int | None = None

    def slots_needed(self, ceiling: int) -> int:
        """How many slots the request gets: as many as it needs, but not more than its project may hold (`ceiling`)."""
        return max(1, min(self.slots or 1, ceiling))


def name_fault(name: str) -> str | None:
    if name == ALL or not _NAME.fullmatch(name):
        return f"a channel's name has 1 to 40 characters of a-z, 0-9 and _, starts with a letter, and is not {ALL!r}"
    return None


# --- fairness
# Rules of fair admission: how projects share a channel's slots, and how the priority rises with waiting.

# The priority of a waiting request rises by one in this time, so that urgent requests cannot hold it back for ever.
AGE_STEP_SECONDS = 600
HIGHEST_PRIORITY = 1


@dataclass(frozen=True, slots=True)
class Standing:
    """A project's counts in a channel: how many of its requests wait and run, and when it last had its turn."""

    project_id: str
    waiting: int = 0
    running: int = 0
    # The channel's `slot_changes` at the project's latest admission. A new project has 0, so it goes first.
    turn: int = 0
    # Incremented with every change of the counts, so that a recount detects concurrent changes.
    changes: int = 0

    @property
    def is_active(self) -> bool:
        return self.waiting > 0 or self.running > 0


@dataclass(frozen=True, slots=True)
class Turn:
    """A project's turn to take `slots` slots. With them, the project may hold at most `ceiling` slots.

    `number` is stored as the project's latest turn. `extra` allows one request beyond the channel's capacity.
    """

    number: int
    ceiling: int
    extra: bool = False
    slots: int = 1
    # The capacity of the channel, as it was read.
    capacity: int = 0


def rank(priority: int, since: str) -> int:
    """The sort key of a waiting request: its arrival in milliseconds, plus one age step for each level of priority.

    So a request overtakes requests of a lower priority that arrived a little earlier: at most one age step for each
    level between the two. The order of two requests never changes, so ageing needs no writes.
    """
    arrived = round(datetime.fromisoformat(since).timestamp() * 1000)
    return arrived + priority * AGE_STEP_SECONDS * 1000


def aged_priority(priority: int, since: str, now: float) -> int:
    """The priority at `now`.

    It rises by one level with each age step that the request has waited, up to the highest level.
    """
    left = rank(priority, since) / 1000 - now
    return max(HIGHEST_PRIORITY, math.ceil(left / AGE_STEP_SECONDS))


def fair_share(capacity: int, standings: Iterable[Standing]) -> int:
    """The slots of each project that has waiting or running requests: an even split of the capacity.

    The split is rounded up, so that no slot is left unused.
    """
    active = sum(standing.is_active for standing in standings)
    return math.ceil(capacity / max(1, active))


def ceiling(capacity: int, fixed_share: int | None) -> int:
    """The most slots that a project may hold: all of them, unless an operator has set its share."""
    return capacity if fixed_share is None else min(fixed_share, capacity)


# If more projects wait, only those that have waited longest for their turn are considered; the others move up.
_LANES_PER_RUN = 25
_PLACES_PER_RUN = 200


@dataclass(slots=True)
class Turns:
    """The order of one admission run: which project of a channel is next, and which of its requests.

    Has the run's view of the channel, and updates it with each admission.
    """

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
        """Why the channel admits nobody now. None if it has room."""
        if self.channel.paused:
            return CHANNEL_PAUSED
        return CAPACITY if self.channel.free <= 0 else None

    @property
    def waiting(self) -> int:
        return sum(standing.waiting for standing in self.standings.values())

    def next(self) -> WaitingPlace | None:
        """The next place: by priority, then of the project that has waited longest for a turn. None if there is none.

        Projects below their share come first; a project that has its share is next only if no other can use the slot.
        If the next place needs more slots than are free, the free slots are kept for it. Otherwise it might wait for
        ever.
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
        """The next places. Each is marked as admitted before the next one is chosen; `put_back` undoes that.

        Ends when the channel has no room, or before a place that needs a mutex, because the mutex is often held.
        `fits(places, projects)` tells whether a group may have that many places and projects.
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
        """Undoes the last `next_group`. Its `places` become the first of their lanes again."""
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
        return place.slots_needed(self._ceiling(place.project_id))

    def _next_extra(self) -> WaitingPlace | None:
        """The place whose request may run beyond the channel's capacity now; None if there is none."""
        ready = [(each, place) for each, place in self._without_slot() if self._extra_slot_at(place) <= self.now]
        best = min(ready, key=lambda pair: (self._priority(pair[1]), pair[0].turn, pair[0].project_id), default=None)
        return self._heads.pop(best[0].project_id) if best else None

    def next_extra_slot(self) -> tuple[WaitingPlace, float] | None:
        """Returns (place, Unix time): the place whose request may run next beyond the capacity, and the earliest time.

        None if there is no such place.
        """
        times = ((place, self._extra_slot_at(place)) for _, place in self._without_slot())
        return min(times, key=lambda pair: pair[1], default=None)

    def _without_slot(self) -> Iterator[tuple[Standing, WaitingPlace]]:
        """Yields projects that wait without a slot, each with its first place.

        Yields nothing if no other project holds more than its share. So it is in a channel with one slot, where
        projects wait for their turn.
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
        """Makes later calls skip all places that need the same mutex."""
        self._held_mutexes.add((place.project_id, str(place.mutex)))

    def still_waiting(self) -> Iterator[tuple[WaitingPlace, str]]:
        """Places that were not admitted, each with the reason: the skipped places, then the first ones of each lane."""
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
        """The project's first place that could be admitted now. None if there is no such place."""
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


# --- stats
# Statistics of requests: counts, success rate and durations. Kept as counters, so no request is read for them.

# Durations are counted in classes, each wider than the one before by this factor; a percentile is its class's mean.
_CLASS_GROWTH = 1.15


@dataclass(frozen=True, slots=True)
class RequestFigures:
    count: Annotated[int, F("number of requests")]
    by_status: Annotated[dict[str, int], F("number of requests by status")] = field(default_factory=dict)
    success_rate: Annotated[float | None, F("share that succeeded, 0 to 1")] = None
    mean_s: Annotated[float | None, F("mean run time in seconds")] = None
    p95_s: Annotated[float | None, F("95th percentile of the run time in seconds")] = None
    mean_cpu_s: Annotated[
        float | None, F("mean CPU time of a request that ended, over all its attempts, in seconds")
    ] = None
    peak_memory_mb: Annotated[int | None, F("the most memory that a function used for one, in MB, within 15 %")] = None
    bytes: Annotated[int | None, F("bytes that were fetched, read or written for them")] = None


def counts_of(request: Request | None) -> dict[str, int]:
    """What a request adds to the counts of its type: its status. If it completed or failed, also its duration class."""
    if request is None:
        return {}
    counts = {request.status: 1}
    if request.status in (COMPLETED, FAILED) and request.start_time and request.finish_time:
        milliseconds = request.worked_until(datetime.fromisoformat(request.finish_time))
        duration = round(math.log(max(1, milliseconds), _CLASS_GROWTH))
        counts |= {f"n{duration}": 1, f"ms{duration}": milliseconds}
    if request.status in (COMPLETED, FAILED) and request.peak_mb:
        memory = round(math.log(request.peak_mb, _CLASS_GROWTH))
        counts |= {f"k{memory}": 1, f"mb{memory}": request.peak_mb}
        counts |= {"cpu": request.cpu_ms, "bytes": request.moved_bytes}
    return counts


def change_of(old: Request | None, new: Request) -> dict[str, int]:
    """The change of the counts when a request is submitted (`old` is None) or changes its state."""
    before, after = counts_of(old), counts_of(new)
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in before.keys() | after.keys()}
    return {name: change for name, change in changes.items() if change}


def stats_by_type(counted: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, RequestFigures]:
    """The statistics of each type, from (type, counts) pairs. A type may occur any number of times."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, counts in counted:
        sums[kind].update(counts)
    return {kind: stats for kind, counts in sorted(sums.items()) if (stats := _stats(counts)).count}


def _stats(counts: Counter[str]) -> RequestFigures:
    # A count may be negative: a request from before counts existed leaves a status that never counted it.
    by_status = {status: counts[status] for status in sorted(STATES) if counts[status] > 0}
    ended = by_status.get(COMPLETED, 0) + by_status.get(FAILED, 0)
    classes, memories = _classes(counts, "n"), _classes(counts, "k")
    measured = sum(counts[f"k{number}"] for number in memories)
    timed = sum(counts[f"n{number}"] for number in classes)
    milliseconds = sum(counts[f"ms{number}"] for number in classes)
    return RequestFigures(
        count=sum(by_status.values()),
        by_status=by_status,
        success_rate=round(by_status.get(COMPLETED, 0) / ended, 4) if ended else None,
        mean_s=round(milliseconds / timed / 1000, 3) if timed else None,
        p95_s=_percentile(counts, classes, 0.95 * timed) if timed else None,
        mean_cpu_s=round(counts["cpu"] / measured / 1000, 3) if measured else None,
        peak_memory_mb=round(counts[f"mb{memories[-1]}"] / counts[f"k{memories[-1]}"]) if measured else None,
        bytes=counts["bytes"] if measured else None,
    )


def _classes(counts: Counter[str], kind: str) -> list[int]:
    return sorted(
        int(name[1:]) for name, count in counts.items() if name[0] == kind and name[1:].isdigit() and count > 0
    )


def _percentile(counts: Counter[str], classes: list[int], wanted: float) -> float:
    """A percentile by nearest rank. Returns the mean of the class in which it lies: single values are not stored."""
    seen = 0
    for number in classes:
        seen += counts[f"n{number}"]
        if seen >= wanted:
            break
    return round(counts[f"ms{number}"] / counts[f"n{number}"] / 1000, 3)


def percentile(values: list[float], share: float) -> float:
    """The percentile of these values by nearest rank. Always one of the values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
