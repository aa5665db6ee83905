"""Stores deliveries of callbacks, and limits how many callbacks of a slow host or project run at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from random import SystemRandom
from typing import Annotated, Any
from urllib.parse import urlsplit

from tidegate.aws import keys
from tidegate.aws.keys import ALL_HOSTS
from tidegate.aws.table import ConditionFailed, Item, Store, delete, put_new, update
from tidegate.common.ids import iso
from tidegate.common.sequences import Listed
from tidegate.errors import FetchTimeout, WrongState
from tidegate.projects.audit import AuditLine, audit_write
from tidegate.records import F, item_of, record_from

# --- delivery model
# Deliveries of callbacks: when they are retried, and when they are given up.

PENDING, DELIVERED, DEAD = "pending", "delivered", "dead"

BACK_OFF_SECONDS = (5, 30, 120, 600, 1800)
HOURLY_SECONDS = 3600
GIVE_UP_SECONDS = 24 * 3600
KEPT_SECONDS = 7 * 24 * 3600
KEPT_ATTEMPTS = 100
JITTER = 0.2
GONE = 410


@dataclass(frozen=True, slots=True)
class Attempt:
    """One call of the receiver: the status of the receiver's answer, or the error if there was no answer."""

    at: Annotated[str, F("when, ISO 8601 UTC")]
    duration_ms: Annotated[int, F("how long the call took, in milliseconds")]
    status: Annotated[int | None, F("HTTP status of the receiver's answer, if there was one")] = None
    error: Annotated[str | None, F("kind of failure, if there was no answer")] = None
    detail: Annotated[str | None, F("what went wrong")] = None

    @property
    def succeeded(self) -> bool:
        return self.status is not None and 200 <= self.status < 300

    @property
    def blames_host(self) -> bool:
        """Whether other callbacks to the same host should wait, because the host is down or asks for fewer requests."""
        return self.status is None or self.status >= 500 or self.status == 429

    @property
    def timed_out(self) -> bool:
        return self.status is None and self.error == FetchTimeout.code


@dataclass(frozen=True, slots=True)
class CallbackDelivery:
    """One callback and its attempts. `tries` is the number of attempts since the start or the latest redelivery.

    `next_attempt_at` and `gives_up_at` are Unix times in seconds.
    """

    delivery_id: Annotated[str, F("id of the callback, which its receiver gets as `webhook-id`")]
    project_id: str
    record_id: Annotated[str, F("id of the record that the callback is about", shown="task_id")]
    kind: Annotated[str, F("type of the message, such as `task.completed`", shown="type")]
    url: Annotated[str, F("where it is sent")]
    # Empty in lists.
    body: Annotated[str, F("the JSON that is sent, as text")]
    state: Annotated[str, F("`pending`, `delivered` or `dead` (given up after 24 hours)", shown="callback_state")]
    created_at: Annotated[str, F("when it was created, ISO 8601 UTC")]
    gives_up_at: float
    next_attempt_at: float
    tries: Annotated[int, F("how often it was sent")] = 0
    attempts: Annotated[tuple[Attempt, ...], F("every delivery attempt: when, how long, with which result")] = ()
    delivered_at: Annotated[str | None, F("when the receiver answered 2xx")] = None

    @property
    def sent_again_at(self) -> Annotated[str | None, F("when it is sent again, ISO 8601 UTC", shown="next_attempt_at")]:
        return iso(datetime.fromtimestamp(self.next_attempt_at, UTC)) if self.state == PENDING else None

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc.lower()


def new_delivery(message: Mapping[str, Any], body: str, now: datetime) -> CallbackDelivery:
    """A delivery for a message of the notifications topic."""
    at = now.timestamp()
    return CallbackDelivery(
        delivery_id=message["message_id"],
        project_id=message["project_id"],
        record_id=message["record_id"],
        kind=message["type"],
        url=message["callback"],
        body=body,
        state=PENDING,
        created_at=iso(now),
        gives_up_at=at + GIVE_UP_SECONDS,
        next_attempt_at=at,
    )


def back_off(tries: int, chance: float) -> float:
    """Returns the seconds to wait after the attempt with the number `tries`. `chance` in [0, 1) spreads the retries."""
    base = BACK_OFF_SECONDS[tries - 1] if tries <= len(BACK_OFF_SECONDS) else HOURLY_SECONDS
    return base * (1 + JITTER * chance)


def after(
    delivery: CallbackDelivery, attempt: Attempt, now: datetime, *, retry_after: float | None, chance: float
) -> CallbackDelivery:
    """Returns the delivery as it is after an attempt.

    The last attempt is made at the end of the delivery's day, even if Retry-After asks for a later time.
    """
    at = now.timestamp()
    tried = replace(
        delivery, tries=delivery.tries + 1, attempts=(*delivery.attempts, attempt)[-KEPT_ATTEMPTS:], next_attempt_at=at
    )
    if attempt.succeeded:
        return replace(tried, state=DELIVERED, delivered_at=iso(now))
    if attempt.status == GONE or at >= delivery.gives_up_at:
        return replace(tried, state=DEAD)
    wait = max(back_off(tried.tries, chance), retry_after or 0)
    return replace(tried, next_attempt_at=min(at + wait, delivery.gives_up_at))


def redelivered(delivery: CallbackDelivery, now: datetime) -> CallbackDelivery:
    at = now.timestamp()
    return replace(
        delivery, state=PENDING, tries=0, gives_up_at=at + GIVE_UP_SECONDS, next_attempt_at=at, delivered_at=None
    )


# --- circuit rules
# How many callbacks a slow or failing host gets at once, so that callbacks to other hosts do not wait for it; and how
# many a project with slow hosts gets at once, so that other projects do not wait for it.

SLOW_SECONDS = 3.0
FAILURES_TO_OPEN = 3
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 60.0
# A callback holds its place at the host this long, unless its result is known earlier.
PLACE_SECONDS = 15.0
# How many callbacks a slow or failing host gets at once at first, and at most.
FIRST_LIMIT, MOST_AT_ONCE = 8, 32
# Waiting callbacks are planned as if the host's limit were this many times as high: it grows by one with each success,
# so it doubles in about the time of one callback.
EXPECTED_GROWTH = 4
# The longest time for which a callback is put off, because the host may have recovered.
LONGEST_PUT_OFF_SECONDS = 1800.0

# The first and the lowest limit on how many callbacks of a project with slow hosts run at once. At most MOST_AT_ONCE.
PROJECT_FIRST_LIMIT, PROJECT_LEAST = 16, 4
# The seconds that a callback is expected to take, until one was answered.
PROJECT_FIRST_TOOK = 5.0
# The limit grows by one whenever no further host fails to answer for this long.
PROJECT_GROWTH_SECONDS = 10.0
# The place of a callback that was not answered stays taken for this long, so that such callbacks are also rare.
PROJECT_REST_SECONDS = 30.0
# A project has no limit when none of its hosts was slow for this long.
PROJECT_SLOW_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class ProjectState:
    """How many callbacks of a project with slow hosts may run at once: `limit`, which was set at `limit_at`.

    `took`: the average seconds of an answer. `slow_at`: when the project's last slow callback ended. `places`: the time
    until which each place is taken.
    """

    limit: int
    limit_at: float
    slow_at: float
    took: float
    places: Mapping[int, float]

    def is_slow(self, now: float) -> bool:
        return now - self.slow_at < PROJECT_SLOW_SECONDS

    def limit_now(self, now: float) -> int:
        grown = self.limit + max(0, int((now - self.limit_at) / PROJECT_GROWTH_SECONDS))
        return min(grown, MOST_AT_ONCE)

    def free_places(self, now: float, *, failing: bool) -> list[int]:
        """Returns the places that are free now.

        `failing`: whether the callback goes to a host that is known to fail. Such callbacks may use only half of the
        places.
        """
        limit = self.limit_now(now)
        return [place for place in range(limit // 2 if failing else limit) if self.places.get(place, 0.0) <= now]

    def average(self, took: float) -> float:
        return self.took + (took - self.took) / 4


def pause_after(failures: int) -> float:
    """Returns the seconds without callbacks for a host after `failures` failures in a row. 0 after the first few."""
    if failures < FAILURES_TO_OPEN:
        return 0.0
    return min(FIRST_PAUSE_SECONDS * 2.0 ** (failures - FAILURES_TO_OPEN), LONGEST_PAUSE_SECONDS)


def lowered(limit: int) -> int:
    return max(1, limit // 2)


def lowered_for_project(limit: int) -> int:
    return max(PROJECT_LEAST, limit // 2)


def raised(limit: int) -> int:
    return min(limit + 1, MOST_AT_ONCE)


# --- delivery store
# Callbacks with every attempt to deliver them, and the circuit-breaker state of their hosts and projects.

DUE_KIND = "callback"
_MUTABLE = ("state", "tries", "attempts", "next_attempt_at", "gives_up_at", "delivered_at")


def delivery_of(item: Item) -> CallbackDelivery:
    return record_from(CallbackDelivery, item, body=item.get("body", ""))


class DeliveryStore(Store):
    """Deliveries in the table. Only the holder of a delivery's lease may call the receiver."""

    def add(self, delivery: CallbackDelivery, lease_until: float) -> bool:
        """Adds a delivery whose lease is already taken. False if the delivery exists already."""
        lists = {
            "gsi1pk": keys.callbacks_list(delivery.project_id),
            "gsi1sk": f"{delivery.created_at}#{delivery.delivery_id}",
            "gsi2pk": keys.callbacks_of(delivery.project_id, delivery.record_id),
            "gsi2sk": f"{delivery.created_at}#{delivery.delivery_id}",
        }
        kept = {"lease_until": lease_until, "expires_at": int(lease_until) + KEPT_SECONDS}
        item = keys.callback(delivery.project_id, delivery.delivery_id) | item_of(delivery) | lists | kept
        return self._table.try_write(put_new(item | keys.due(delivery.delivery_id, lease_until, DUE_KIND)))

    def claim(self, project_id: str, delivery_id: str, now: float, lease_until: float) -> CallbackDelivery | None:
        """Takes the lease of a pending delivery that is due.

        None if the delivery is not pending, is not due, or is leased by another function.
        """
        claimed = update(
            keys.callback(project_id, delivery_id),
            {"lease_until": lease_until, **keys.due(delivery_id, lease_until, DUE_KIND)},
            condition="#state = :pending AND #next_attempt_at <= :now"
            " AND (attribute_not_exists(#lease_until) OR #lease_until <= :now)",
            pending=PENDING,
            now=now,
        )
        try:
            return delivery_of(self._table.write(claimed))
        except ConditionFailed:
            return None

    def settle(self, delivery: CallbackDelivery, lease_until: float, now: float) -> bool:
        """Writes the result of an attempt and releases the lease. False if the lease was lost meanwhile."""
        sets = {name: value for name, value in item_of(delivery).items() if name in _MUTABLE}
        sets["expires_at"] = int(now) + KEPT_SECONDS
        removes = ["lease_until"]
        if delivery.state == PENDING:
            sets |= keys.due(delivery.delivery_id, delivery.next_attempt_at, DUE_KIND)
        else:
            removes += keys.DUE_ATTRIBUTES
        settled = update(
            keys.callback(delivery.project_id, delivery.delivery_id),
            sets,
            removes=removes,
            condition="#lease_until = :lease",
            lease=lease_until,
        )
        return self._table.try_write(settled)

    def restart(self, delivery: CallbackDelivery, now: float, line: AuditLine) -> None:
        """Starts the delivery again.

        Raises WrongState while an attempt runs, because the attempt's result would be lost.
        """
        sets = {name: value for name, value in item_of(delivery).items() if name in _MUTABLE and name != "attempts"}
        restarted = update(
            keys.callback(delivery.project_id, delivery.delivery_id),
            sets
            | {"expires_at": int(now) + KEPT_SECONDS}
            | keys.due(delivery.delivery_id, delivery.next_attempt_at, DUE_KIND),
            removes=("lease_until", "delivered_at"),
            condition="attribute_exists(#pk) AND (attribute_not_exists(#lease_until) OR #lease_until <= :now)",
            now=now,
        )
        try:
            self._table.transact([restarted, audit_write(line)])
        except ConditionFailed as error:
            raise WrongState("the callback is being delivered right now: try again in a few seconds") from error

    def get(self, project_id: str, delivery_id: str) -> CallbackDelivery | None:
        item = self._table.get(keys.callback(project_id, delivery_id), consistent=True)
        return delivery_of(item) if item else None

    def list(
        self, project_id: str, *, record_id: str | None, state: str | None, limit: int, cursor: str | None
    ) -> Listed[CallbackDelivery]:
        place, index = keys.callbacks_list(project_id), "gsi1"
        if record_id:
            place, index = keys.callbacks_of(project_id, record_id), "gsi2"
        wanted = {"state": state} if state else {}
        page = self._table.find(place, limit=limit, cursor=cursor, wanted=wanted, index=index)
        return Listed([replace(delivery_of(item), body="") for item in page.items], page.cursor)


@dataclass(frozen=True, slots=True)
class HostState:
    """How many callbacks a slow or failing host may get at once: `limit`. Before `open_until`, the host gets none.

    `places`: when each place becomes free. `took`: the seconds that the last callback took.
    """

    limit: int
    open_until: float
    took: float
    places: Mapping[int, float]

    def free_places(self, now: float) -> list[int]:
        return [place for place in range(self.limit) if self.places.get(place, 0.0) <= now]


_PLACE = "place_"
_HOST_KEPT_SECONDS = 3600


def _places(item: Item) -> dict[int, float]:
    return {int(name.removeprefix(_PLACE)): float(item[name]) for name in item if name.startswith(_PLACE)}


def _host_state(item: Item) -> HostState:
    took = float(item.get("took", 1.0))
    return HostState(int(item.get("limit", 1)), float(item["open_until"]), took, _places(item))


def _project_state(item: Item) -> ProjectState:
    slow_at, limit = float(item["slow_at"]), int(item.get("limit", PROJECT_FIRST_LIMIT))
    limit_at = float(item["limit_at"]) if "limit_at" in item else slow_at
    return ProjectState(limit, limit_at, slow_at, float(item.get("took", PROJECT_FIRST_TOOK)), _places(item))


class CircuitStore(Store):
    """The stored state of slow or failing hosts, and of projects with slow hosts.

    Other hosts and projects have no item. With `ALL_HOSTS` as `host`, a method handles the state of the whole project.
    """

    def states(self, project_id: str, host: str) -> tuple[HostState | None, ProjectState | None]:
        """Returns (state of the host, state of its project), with one read. A state is None if nothing is stored."""
        of_host, of_project = keys.circuit(project_id, host), keys.circuit(project_id, keys.ALL_HOSTS)
        found = {item["pk"]: item for item in self._table.batch_get([of_host, of_project])}
        one, all_hosts = found.get(of_host["pk"]), found.get(of_project["pk"])
        return _host_state(one) if one else None, _project_state(all_hosts) if all_hosts else None

    def claim_place(self, project_id: str, host: str, place: int, now: float, until: float) -> bool:
        name = f"{_PLACE}{place}"
        free = f"#open_until <= :now AND (attribute_not_exists(#{name}) OR #{name} <= :now)"
        return self._table.try_write(update(keys.circuit(project_id, host), {name: until}, condition=free, now=now))

    def free(self, project_id: str, host: str, place: int) -> None:
        self._table.try_write(update(keys.circuit(project_id, host), removes=(f"{_PLACE}{place}",)))

    def reserve(
        self, project_id: str, host: str, earliest: float, latest: float, step: float, name: str = "next_at"
    ) -> float | None:
        """Reserves a time for one callback, `step` seconds after the last reserved time.

        If the last reserved time is before `earliest`, the new time is `step` seconds after `earliest`. Returns None,
        without a reservation, if the new time would be after `latest`. `name`: the attribute that stores the last
        reserved time.
        """
        key, after, until = keys.circuit(project_id, host), round(earliest * 1000), round((latest - step) * 1000)
        within = f"#{name} >= :after AND #{name} <= :until"
        try:
            later = update(key, adds={name: round(step * 1000)}, condition=within, after=after, until=until)
            return float(self._table.write(later)[name]) / 1000
        except ConditionFailed as refused:
            if float((refused.item or {}).get(name, 0)) > until:
                return None
            at = after + round(step * 1000)
            self._table.try_write(update(key, {name: at}))
            return at / 1000

    def fail(self, project_id: str, host: str, now: float, limit: int, took: float, place: int | None) -> int:
        """Counts a failure of the host. Returns the number of its failures in a row."""
        failed = self._record_result(project_id, host, now, {"limit": limit, "took": took}, {"failures": 1}, place)
        return int(failed["failures"])

    def succeed(self, project_id: str, host: str, now: float, limit: int, took: float, place: int | None) -> None:
        self._record_result(project_id, host, now, {"limit": limit, "took": took, "failures": 0}, None, place)

    def record_slow(
        self, project_id: str, now: float, took: float | None, limit: int | None, places: Mapping[int, float]
    ) -> None:
        """Records that a callback of the project was slow.

        If `took` or `limit` is None, the stored value stays. `places`: the time until which each of these places is
        taken.
        """
        sets: dict[str, Any] = {f"{_PLACE}{place}": until for place, until in places.items()}
        sets |= {"slow_at": now, "open_until": 0, "expires_at": int(now) + _HOST_KEPT_SECONDS}
        sets |= {"took": took, "limit": limit, "limit_at": None if limit is None else now}
        self._table.write(update(keys.circuit(project_id, keys.ALL_HOSTS), sets, condition=""))

    def record_quick(self, project_id: str, now: float, took: float, limit: int | None, place: int) -> None:
        """Records a callback that was not slow, and frees its place. If `limit` is None, the stored limit stays."""
        sets = {"took": took, "limit": limit, "limit_at": None if limit is None else now}
        key = keys.circuit(project_id, keys.ALL_HOSTS)
        self._table.try_write(update(key, sets, removes=(f"{_PLACE}{place}",)))

    def _record_result(
        self,
        project_id: str,
        host: str,
        now: float,
        sets: dict[str, Any],
        adds: dict[str, int | set[str]] | None,
        place: int | None,
    ) -> Item:
        sets |= {"open_until": now, "expires_at": int(now) + _HOST_KEPT_SECONDS}
        removes = () if place is None else (f"{_PLACE}{place}",)
        write = update(keys.circuit(project_id, host), sets, adds=adds, removes=removes, condition="")
        return self._table.write(write)

    def pause(self, project_id: str, host: str, until: float) -> None:
        sets = {"open_until": until, "expires_at": int(until) + _HOST_KEPT_SECONDS}
        self._table.write(update(keys.circuit(project_id, host), sets, condition=""))

    def clear(self, project_id: str, host: str) -> None:
        self._table.write(delete(keys.circuit(project_id, host)))


_choice, _between = SystemRandom().sample, SystemRandom().uniform
_TRIES = 3


class ProjectPlaces:
    """Limits how many callbacks of a project run at once while some of its hosts are slow.

    A limit for each host is not enough: a project may have any number of hosts that do not answer, and a new host has
    no limit yet. Callbacks to healthy hosts are never stopped. They only share the project's limit.
    """

    def __init__(self, store: CircuitStore) -> None:
        self._store = store

    def claim_place(self, project_id: str, state: ProjectState, now: float, *, failing: bool) -> int | None:
        """Takes a place for one callback and returns its number. None if no free place could be taken."""
        free = state.free_places(now, failing=failing)
        for place in _choice(free, min(_TRIES, len(free))):
            if self._store.claim_place(project_id, ALL_HOSTS, place, now, now + PLACE_SECONDS):
                return place
        return None

    def put_off(self, project_id: str, state: ProjectState, now: float, *, failing: bool) -> float:
        """Reserves a time for the callback's next try, and returns the seconds until then.

        Callbacks to hosts that are known to fail get times from a separate series, far apart. So they do not delay
        other callbacks. If no time is free, the callback reserves nothing and waits a long random time.
        """
        limit, latest = state.limit_now(now), now + LONGEST_PUT_OFF_SECONDS
        if failing:
            at = self._store.reserve(
                project_id, ALL_HOSTS, now, latest, PROJECT_REST_SECONDS / limit, "next_failing_at"
            )
        else:
            at = self._store.reserve(project_id, ALL_HOSTS, now, latest, max(0.02, state.took / (2 * limit)))
        if at is None:
            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)
        return max(1.0, at - now)

    def leave(
        self,
        project_id: str,
        state: ProjectState | None,
        place: int | None,
        now: float,
        *,
        took: float,
        unanswered: bool,
        failing: bool,
    ) -> None:
        """Records the result of a call.

        `failing`: whether the host was known to fail before the call. Then the project's limit is not lowered again.
        """
        average = state.average(took) if state else took
        limit = state.limit_now(now) if state else PROJECT_FIRST_LIMIT
        if unanswered:
            lower = None if failing and state else lowered_for_project(limit)
            rest = {} if place is None else {place: now + PROJECT_REST_SECONDS}
            self._store.record_slow(project_id, now, None, lower, rest)
        elif took >= SLOW_SECONDS:
            # The place is free from now on.
            self._store.record_slow(project_id, now, average, raised(limit), {} if place is None else {place: now})
        elif place is not None:
            # Quick answers raise the limit up to the first one, so that a dead host hardly delays other hosts.
            self._store.record_quick(
                project_id, now, average, limit + 1 if limit < PROJECT_FIRST_LIMIT else None, place
            )

    def give_back(self, project_id: str, place: int | None, now: float, waited: float) -> None:
        """Frees the place of a call that was not sent.

        If the call waited long, it counts as slow, because it held the place all that time.
        """
        if waited >= SLOW_SECONDS:
            self._store.record_slow(project_id, now, None, None, {} if place is None else {place: now})
        elif place is not None:
            self._store.free(project_id, ALL_HOSTS, place)


@dataclass(frozen=True, slots=True)
class CircuitEntry:
    """Whether a host may be called now. If `wait` is 0, it may; otherwise the caller asks again after `wait` seconds.

    If the host is neither slow nor failing, `state` is None and the host has no limit. If none of the project's hosts
    is slow, `project` is None and the project has no limit.
    """

    wait: float = 0.0
    state: HostState | None = None
    place: int | None = None
    project: ProjectState | None = None
    project_place: int | None = None

    @property
    def failing(self) -> bool:
        """Whether the host was known to fail. Then the host's limit is below `FIRST_LIMIT`.

        A host that is only slow has a higher limit.
        """
        return self.state is not None and self.state.limit < FIRST_LIMIT


class CircuitBreaker:
    """Limits how many callbacks a host gets at once.

    The limit rises by one after each success, and is halved after each failure. After several failures in a row, the
    host gets no callbacks for a while.
    """

    def __init__(self, store: CircuitStore) -> None:
        self._store = store
        self._projects = ProjectPlaces(store)

    def enter(self, project_id: str, host: str, now: float) -> CircuitEntry:
        """Returns whether a callback to the host may be sent now.

        If it may, the caller must call `leave` or `give_back` later.
        """
        state, project = self._store.states(project_id, host)
        entry = CircuitEntry(0.0, state, None, project if project and project.is_slow(now) else None)
        if state is not None:
            entry = self._at_host(project_id, host, entry, state, now)
        if entry.project is None or entry.wait:
            return entry
        place = self._projects.claim_place(project_id, entry.project, now, failing=entry.failing)
        if place is None:
            if entry.place is not None:
                self._store.free(project_id, host, entry.place)
            return CircuitEntry(self._projects.put_off(project_id, entry.project, now, failing=entry.failing), state)
        return replace(entry, project_place=place)

    def _at_host(self, project_id: str, host: str, entry: CircuitEntry, state: HostState, now: float) -> CircuitEntry:
        free = state.free_places(now) if state.open_until <= now else []
        if free and entry.project and not entry.project.free_places(now, failing=entry.failing):
            # The project has no free place, so none of the host is taken.
            return entry
        for place in _choice(free, min(_TRIES, len(free))):
            if self._store.claim_place(project_id, host, place, now, now + PLACE_SECONDS):
                return replace(entry, place=place)
        return CircuitEntry(self._put_off(project_id, host, state, now), state)

    def _put_off(self, project_id: str, host: str, state: HostState, now: float) -> float:
        """Reserves a time for the callback's next try, and returns the seconds until then.

        Each callback gets a time of its own. The times follow each other as fast as the host answers, so many waiting
        callbacks do not overload the host. If no time is free within the longest wait, the callback reserves nothing.
        It then tries again at a random time in the second half of the longest wait.
        """
        step = max(0.05, state.took / min(MOST_AT_ONCE, state.limit * EXPECTED_GROWTH))
        latest = now + LONGEST_PUT_OFF_SECONDS
        at = self._store.reserve(project_id, host, max(now, state.open_until), latest, step)
        if at is None:
            return LONGEST_PUT_OFF_SECONDS * _between(0.5, 1.0)
        return max(1.0, at - now)

    def leave(
        self,
        project_id: str,
        host: str,
        now: float,
        *,
        blamed: bool,
        took: float,
        entry: CircuitEntry,
        timed_out: bool = False,
    ) -> None:
        """Records the result of a call that `enter` allowed.

        `blamed`: whether the host failed. `took`: the seconds that the call took.
        """
        self._projects.leave(
            project_id,
            entry.project,
            entry.project_place,
            now,
            took=took,
            unanswered=timed_out or (blamed and took >= SLOW_SECONDS),
            failing=entry.failing,
        )
        limit = entry.state.limit if entry.state else FIRST_LIMIT
        if blamed:
            failures = self._store.fail(project_id, host, now, lowered(limit), took, entry.place)
            pause = pause_after(failures)
            if pause:
                self._store.pause(project_id, host, now + pause)
        elif took < SLOW_SECONDS and limit >= FIRST_LIMIT:
            if entry.state is not None:
                self._store.clear(project_id, host)
        else:
            self._store.succeed(project_id, host, now, raised(limit), took, entry.place)

    def give_back(self, project_id: str, host: str, now: float, *, waited: float, entry: CircuitEntry) -> None:
        """Frees the places of a call that was not sent. `waited`: the seconds that the call waited."""
        self._projects.give_back(project_id, entry.project_place, now, waited)
        if entry.place is not None:
            self._store.free(project_id, host, entry.place)
