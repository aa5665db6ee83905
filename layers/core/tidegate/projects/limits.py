"""What a project may use: counts of its quotas, requests per second, and slow calls."""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, NamedTuple
from uuid import uuid4

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Item, Key, Store, Table, Write, below, check, update
from tidegate.common.ids import Clock
from tidegate.common.token_bucket import TokenBucket
from tidegate.errors import DomainError, QuotaExceeded, RateLimited
from tidegate.projects.model import DEFAULTS, READ_UNITS, Quotas
from tidegate.projects.projects import quotas_from

# --- usage store
# How much of its quotas a project uses.

logger = Logger(service="tidegate", child=True)

# Stored bytes become fewer by deletions or retention, not within seconds.
_STORAGE_RETRY_SECONDS = 3600
_UPLOADS_RETRY_SECONDS = 60
MOST_PUT_BYTES = 5 * 1024**3
# Counts of a day: the attribute, with its quota and how many units of the attribute make one of the quota.
RUNNER_SECONDS, EGRESS, TARGETS, CALLS = "runner_seconds", "egress_bytes", "targets", "outgoing_calls"
DAILY: Mapping[str, tuple[str, int]] = {
    RUNNER_SECONDS: ("runner_hours_per_day", 3600),
    EGRESS: ("egress_bytes_per_day", 1),
    TARGETS: ("targets_per_day", 1),
    CALLS: ("outgoing_calls_per_day", 1),
}
# Quotas of what a project has, each with a count of the same name. The others limit a rate, what runs, or a day.
_NOT_STANDING = {"running", "requests_per_s", "slow_calls", "share", *(name for name, _ in DAILY.values())}
STANDING = tuple(name for name in DEFAULTS if name not in _NOT_STANDING)
_DAY_KEPT_SECONDS = 3 * 86400
# The least runner seconds charged for a start of queued work: its state machine and records cost as much.
START_SECONDS = 10


def queued_write(project_id: str, change: int, limit: int | None = None) -> Write:
    """Returns the write that adds to the project's count of waiting requests.

    With a limit, the write fails if `limit` requests are already waiting.
    """
    return count_write(project_id, "queued", change, limit)


def count_write(project_id: str, name: str, change: int, limit: int | None = None) -> Write:
    """Returns the write that adds to one of the project's counts. A count has the name of its quota.

    With a limit, the write fails if the count has already reached the limit.
    """
    return _count_write(keys.usage(project_id), {name: change}, {} if limit is None else {name: limit})


def batches_write(project_id: str, changes: Mapping[str, int], quotas: Quotas | None = None) -> Write:
    """Returns the write that adds to the project's counts `batches` and `unstarted_batches`.

    With quotas, the write fails if one of the changed counts has already reached its quota.
    """
    limits = {name: int(getattr(quotas, name)) for name in changes} if quotas else {}
    return _count_write(keys.batch_usage(project_id), changes, limits)


def _count_write(key: Key, changes: Mapping[str, int], limits: Mapping[str, int]) -> Write:
    fits = [f"({below(name, name, allows_none=limit > 0)})" for name, limit in limits.items()]
    bounds: dict[str, Any] = dict(limits)
    return update(key, adds=dict(changes), condition=" AND ".join(fits), **bounds)


def upload_closed_write(project_id: str, size: int, condition: str = "", **values: Any) -> Write:
    """Returns the write that takes an announced upload out of the project's counts.

    Use it only in the transaction that deletes the record of the open upload.
    """
    adds: dict[str, int | set[str]] = {"open_uploads": -1, "announced_bytes": -size}
    return update(keys.upload_usage(project_id), adds=adds, condition=condition, **values)


def daily_limit(quotas: Quotas, count: str) -> int | None:
    """Returns the quota for a count of the day, in the unit of the count. None if there is no quota."""
    name, units = DAILY[count]
    limit: int | None = getattr(quotas, name)
    return None if limit is None else limit * units


def is_used_up(quotas: Quotas, used: Mapping[str, int], count: str) -> bool:
    limit = daily_limit(quotas, count)
    return limit is not None and used.get(count, 0) >= limit


def until_next_day(now: datetime) -> float:
    """Seconds until the next day (UTC), when the counts of the day begin at 0."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - now).total_seconds()


def day_exceeded(quotas: Quotas, count: str, now: datetime) -> QuotaExceeded:
    """Returns the error for a used-up quota of the day. Its Retry-After is the time until the next day."""
    name, _ = DAILY[count]
    return QuotaExceeded.for_limit(name, getattr(quotas, name), until_next_day(now))


def day_write(project_id: str, now: datetime, counts: Mapping[str, int], quotas: Quotas | None = None) -> Write:
    """Returns the write that adds to the project's counts of the day.

    With quotas, the write fails if a count would then exceed its quota.
    """
    bound: dict[str, Any] = {}
    fits = []
    for name, change in counts.items():
        limit = daily_limit(quotas, name) if quotas else None
        if limit is not None:
            bound[name] = limit - change + 1
            fits.append(f"({below(name, name, allows_none=change <= limit)})")
    return update(
        keys.day_usage(project_id, f"{now:%Y-%m-%d}"),
        {"expires_at": int(now.timestamp()) + _DAY_KEPT_SECONDS},
        adds=dict(counts),
        condition=" AND ".join(fits),
        **bound,
    )


class Room(NamedTuple):
    """A project's quota of stored bytes, the bytes that are stored, and the bytes of announced uploads still open."""

    limit: int | None
    stored: int = 0
    announced: int = 0

    @property
    def left(self) -> int:
        """The bytes of the quota that are still free; 0 if the project has no quota."""
        return 0 if self.limit is None else self.limit - self.stored - self.announced


def stored_bytes_write(project_id: str, size: int, limit: int | None) -> Write:
    """Returns the write that adds the size of new content to the project's stored bytes.

    With a limit, the write fails if the stored bytes would then exceed the limit.
    """
    bound: dict[str, Any] = {"room": limit - size + 1} if limit is not None else {}
    return update(
        keys.usage(project_id),
        adds={"stored_bytes": size},
        condition=below("stored_bytes", "room", allows_none=limit >= size) if limit is not None else "",
        **bound,
    )


class UsageStore(Store):
    @property
    def units_read(self) -> float:
        """Read units that this process has used so far."""
        return self._table.units_read

    def today(self, project_id: str, now: datetime) -> dict[str, int]:
        """The project's counts of the day, perhaps a moment old."""
        item = self._table.get(keys.day_usage(project_id, f"{now:%Y-%m-%d}")) or {}
        return {name: int(item.get(name, 0)) for name in DAILY}

    def quotas_today(self, project_ids: Iterable[str], now: datetime) -> dict[str, tuple[Quotas, dict[str, int]]]:
        """Returns the quotas and the counts of the day for each of these projects that exists.

        Up to 50 projects are read with one call of DynamoDB.
        """
        day = f"{now:%Y-%m-%d}"
        wanted = {each: (keys.project(each), keys.day_usage(each, day)) for each in project_ids}
        read = self._table.batch_get(chain.from_iterable(wanted.values()))
        found = {(item["pk"], item["sk"]): item for item in read}
        result = {}
        for project_id, named in wanted.items():
            project, counts = (found.get((key["pk"], key["sk"]), {}) for key in named)
            if project:
                result[project_id] = quotas_from(project), {name: int(counts.get(name, 0)) for name in DAILY}
        return result

    def queued(self, project_id: str) -> tuple[int | None, int]:
        """Returns the quota `queued` (None without a limit) and the number of waiting requests, perhaps a moment old.

        Reading both costs less than one write.
        """
        used = self._table.get(keys.usage(project_id)) or {}
        return self._quotas(project_id).queued, int(used.get("queued", 0))

    def add_today(self, project_id: str, now: datetime, **counts: int) -> dict[str, int]:
        """Adds to the counts of the day, and returns the new counts."""
        item = self._table.write(day_write(project_id, now, counts))
        return {name: int(item.get(name, 0)) for name in DAILY}

    def reserve_today(self, project_id: str, now: datetime, quotas: Quotas, **counts: int) -> bool:
        """Adds to the counts of the day. False, without a change, if one of the counts would exceed its quota."""
        return self._table.try_write(day_write(project_id, now, counts, quotas))

    def of_project(self, project_id: str, channels: Sequence[str], now: datetime) -> dict[str, Any]:
        """Returns the project's counts by the names of their quotas.

        The entry `running` has the number of running requests for each channel. A channel in which nothing runs is left
        out.
        """
        today = self.today(project_id, now)
        counts: Item = {}
        for key in (keys.usage(project_id), keys.batch_usage(project_id), keys.upload_usage(project_id)):
            counts |= self._table.get(key, consistent=True) or {}
        standings = self._table.batch_get([keys.standing(name, project_id) for name in channels], consistent=True)
        names = {keys.standings(name): name for name in channels}
        running = {names[item["pk"]]: int(item.get("running", 0)) for item in standings}
        return {
            **{name: int(counts.get(name, 0)) for name in STANDING},
            **{
                name: today[count] if units == 1 else round(today[count] / units, 2)
                for count, (name, units) in DAILY.items()
            },
            "running": {name: count for name, count in sorted(running.items()) if count > 0},
        }

    def register_server(self, key: Key, name: str, expires_at: float, **caller: Any) -> int:
        """Adds a function to the record of a time window. Returns the number of functions in this record.

        Returns 0 if the record could not be written. `caller`: whom the function serves, for the log.
        """
        noted = update(key, {"expires_at": int(expires_at)}, adds={"servers": {name}}, condition="")
        try:
            return len(self._table.write(noted)["servers"])
        except (ClientError, BotoCoreError, DomainError):
            # A failure of the rate limiter must not fail requests.
            logger.exception("the functions that serve a caller could not be counted", **caller)
            return 0

    def require_room(self, project_id: str, size: int) -> Room:
        """Returns the project's room for content. The bytes of all announced uploads count as used.

        Raises QuotaExceeded if content of this size does not fit.
        """
        return self._room(project_id, size, self._quotas(project_id))

    def upload_opened_writes(self, project_id: str, announced: int | None) -> tuple[int, list[Write]]:
        """Returns the size that an announced upload counts as, and the writes that count the upload.

        Raises QuotaExceeded if there is no room. The writes fail if a quota is used up meanwhile. If the project has a
        quota of stored bytes, an upload of unknown size counts as the largest size that S3 accepts in one PUT. If less
        room is left, it counts as all of this room.
        """
        quotas = self._quotas(project_id)
        room = self._room(project_id, 1 if announced is None else announced, quotas)
        size = min(room.left, MOST_PUT_BYTES) if announced is None else announced
        most = quotas.open_uploads
        if self._counts(keys.upload_usage(project_id), "open_uploads") >= most:
            raise QuotaExceeded.for_limit("open_uploads", most, _UPLOADS_RETRY_SECONDS)
        fits = f"({below('open_uploads', 'most', allows_none=True)})"
        bound: dict[str, Any] = {"most": most}
        checks = []
        if room.limit is not None:
            fits += f" AND ({below('announced_bytes', 'end', allows_none=True)})"
            bound["end"] = room.limit - room.stored - size + 1
            checks = [check(keys.usage(project_id), _not_above("stored_bytes"), seen=room.stored)]
        adds: dict[str, int | set[str]] = {"open_uploads": 1, "announced_bytes": size}
        return size, [update(keys.upload_usage(project_id), adds=adds, condition=fits, **bound), *checks]

    def upload_grown_writes(self, project_id: str, counted: int, size: int) -> tuple[int, list[Write]]:
        """Returns the size that an open upload counts as from now on, and the writes that change its count.

        The upload counts as `size`, or as all the room that is left if `size` does not fit. Raises QuotaExceeded if no
        room is left. The writes fail if the room is used up meanwhile.
        """
        room = self._room(project_id, min(size, 1 + counted) - counted, self._quotas(project_id))
        if room.limit is None:
            return size, [update(keys.upload_usage(project_id), adds={"announced_bytes": size - counted}, condition="")]
        size = min(size, room.left + counted)
        return size, [
            update(
                keys.upload_usage(project_id),
                adds={"announced_bytes": size - counted},
                condition=below("announced_bytes", "end", allows_none=True),
                end=room.limit - room.stored - size + counted + 1,
            ),
            check(keys.usage(project_id), _not_above("stored_bytes"), seen=room.stored),
        ]

    def new_content_writes(self, project_id: str, size: int, announced: int | None = None) -> list[Write]:
        """Returns the writes that count new content. Use them in the transaction that stores the content.

        Raises QuotaExceeded if the content does not fit. The writes fail if it stops fitting meanwhile. `announced`:
        the size that the content counted as while it was an open upload. None if the content was not an upload.
        """
        quotas = self._quotas(project_id)
        if announced == size:
            # Its room was reserved, so only a lowered quota refuses it.
            limit = quotas.stored_bytes
            if limit is not None and self._counts(keys.usage(project_id), "stored_bytes") + size > limit:
                raise QuotaExceeded.for_limit("stored_bytes", limit, _STORAGE_RETRY_SECONDS)
            return [stored_bytes_write(project_id, size, limit), upload_closed_write(project_id, size)]
        # Without what the upload itself has reserved.
        room = self._room(project_id, size - (announced or 0), quotas)
        if room.limit is None:
            closed = [] if announced is None else [upload_closed_write(project_id, announced)]
            return [stored_bytes_write(project_id, size, None), *closed]
        stored = stored_bytes_write(project_id, size, room.limit - room.announced + (announced or 0))
        same = _not_above("announced_bytes")
        if announced is None:
            return [stored, check(keys.upload_usage(project_id), same, seen=room.announced)]
        return [stored, upload_closed_write(project_id, announced, same, seen=room.announced)]

    def stored_bytes_limit(self, project_id: str) -> int | None:
        return self._quotas(project_id).stored_bytes

    def _quotas(self, project_id: str) -> Quotas:
        return quotas_from(self._table.get(keys.project(project_id)) or {})

    def _room(self, project_id: str, size: int, quotas: Quotas) -> Room:
        limit = quotas.stored_bytes
        if limit is None:
            return Room(None)
        stored = self._counts(keys.usage(project_id), "stored_bytes")
        announced = self._counts(keys.upload_usage(project_id), "announced_bytes")
        if stored + announced + size <= limit:
            return Room(limit, stored, announced)
        if stored + size > limit:
            raise QuotaExceeded.for_limit("stored_bytes", limit, _STORAGE_RETRY_SECONDS)
        error = QuotaExceeded(
            f"the project's quota stored_bytes is {limit}, and announced uploads hold {announced} of it: complete or "
            "delete pending files, or ask an admin to raise it",
            retry_after=_STORAGE_RETRY_SECONDS,
        )
        error.retryable = False
        raise error

    def _counts(self, key: Key, name: str) -> int:
        return int((self._table.get(key, consistent=True) or {}).get(name, 0))


class DayBudget:
    """What one function uses of a project's quotas of the day. It is reserved before the work and corrected after it.

    If the function dies, its reservation stays, because nobody knows how much the function has used.
    """

    def __init__(self, usage: UsageStore, quotas: Quotas, project_id: str, now: datetime) -> None:
        self._usage = usage
        self._quotas = quotas
        self._project_id = project_id
        # Everything counts for the day on which the function began.
        self._day = now
        self._units_before = usage.units_read
        self.reserved: dict[str, int] = {}

    def reserve(self, **counts: int) -> bool:
        """Reserves these counts. False, without a change, if one of the counts would exceed its quota."""
        if not self._usage.reserve_today(self._project_id, self._day, self._quotas, **counts):
            return False
        for name, count in counts.items():
            self.reserved[name] = self.reserved.get(name, 0) + count
        return True

    def settle(self, **used: int) -> None:
        """Corrects the reserved counts to what was used.

        The function's table reads are charged as time, because a batch may read a lot. If its results come in separate
        calls, it can read all of them at each tick.
        """
        if RUNNER_SECONDS in used:
            used[RUNNER_SECONDS] += int((self._usage.units_read - self._units_before) / READ_UNITS)
        changes = {name: used[name] - reserved for name, reserved in self.reserved.items() if used[name] != reserved}
        self.reserved = {}
        try:
            if changes:
                self._usage.add_today(self._project_id, self._day, **changes)
        except (ClientError, BotoCoreError, DomainError):
            # The work is done and saved, so this is only logged: the reservation counts until the end of the day.
            logger.exception("the use of a quota was not corrected", project_id=self._project_id)


class RunnerTime:
    """Charges a project for the time of its functions. Refuses further work if the day's runner-hours are used up."""

    def __init__(self, usage: UsageStore, quotas: Callable[[str], Quotas], clock: Clock) -> None:
        self._usage = usage
        self._quotas = quotas
        self._clock = clock

    def budget(self, project_id: str) -> DayBudget:
        return DayBudget(self._usage, self._quotas(project_id), project_id, self._clock())

    def spend(self, project_id: str, seconds: int) -> int | None:
        """Charges the project for work that was done.

        If the day's runner-hours are then used up, returns the seconds until the next day; otherwise None.
        """
        now = self._clock()
        used = self._usage.add_today(project_id, now, **{RUNNER_SECONDS: seconds})
        return math.ceil(until_next_day(now)) if is_used_up(self._quotas(project_id), used, RUNNER_SECONDS) else None

    @contextmanager
    def counted(self, project_id: str) -> Iterator[None]:
        """Charges the project for the time of the block.

        Raises QuotaExceeded before the block if the day's runner-hours are used up. The request then waits for the next
        day.
        """
        now, quotas = self._clock(), self._quotas(project_id)
        limit = daily_limit(quotas, RUNNER_SECONDS)
        if limit is not None and self._usage.today(project_id, now)[RUNNER_SECONDS] >= limit:
            error = day_exceeded(quotas, RUNNER_SECONDS, now)
            error.put_off = True
            raise error
        began, units_before = time.monotonic(), self._usage.units_read
        try:
            yield
        finally:
            try:
                seconds = math.ceil(time.monotonic() - began)
                seconds += int((self._usage.units_read - units_before) / READ_UNITS)
                self._usage.add_today(project_id, now, **{RUNNER_SECONDS: seconds})
            except (ClientError, BotoCoreError, DomainError):
                # The work is done, and its result must not be lost because it could not be counted.
                logger.exception("the time of a function was not counted", project_id=project_id)


def _not_above(name: str) -> str:
    """Returns the condition that the count has not grown since it was read. `:seen` is the value that was read."""
    return f"attribute_not_exists(#{name}) OR #{name} <= :seen"


REQUESTS_PER_SYNC = 20
WINDOW_SECONDS = 10
# Messages per second of one key over WebSockets. Each id in a message counts as another one; see
# `websocket.CONNECT_COSTS`. A million watched ids cost about $2.50 (three writes now, three when each ends): at this
# rate a key costs at most a dollar an hour.
SOCKET_RATE = 100.0

# (caller, window, function) → how many functions served the caller in that window so far; 0 if that is unknown.
Register = Callable[[str, int, str], int]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one kind of caller is limited. `refusal`: the error text, in which `{rate}` stands for the limit.

    `burst_seconds`: how many seconds' worth of requests a caller may send at once. `kept`: the most callers that one
    function remembers. `forgets`: whether the count of requests starts at 0 in each window. Then slow callers cost no
    table call.
    """

    refusal: str
    burst_seconds: float
    kept: int
    forgets: bool


PROJECT = Rule(
    "the project's quota requests_per_s is {rate:g}: send fewer requests, or ask an admin to raise it",
    burst_seconds=1,
    kept=1000,
    forgets=False,
)
AGENT = Rule(
    "a host may send {rate:g} requests per second: send fewer, or many results in one request",
    burst_seconds=10,
    # All hosts of a large fleet may call the same function.
    kept=20_000,
    forgets=True,
)


SOCKET = Rule(
    "a key may send {rate:g} messages and ids per second over WebSockets: send fewer, or wait",
    # A page that connects may watch as many records as a connection can.
    burst_seconds=11,
    kept=20_000,
    forgets=True,
)


@dataclass(slots=True)
class _Share:
    bucket: TokenBucket
    burst: float
    seen: int = 0
    seen_in: int = 0
    window: int = 0
    peers: int = 1
    peers_before: int = 1


class RateLimiter:
    """Limits the requests per second of each caller. Most requests need no table call.

    Each warm function counts for itself. At every 20th request of a caller, the function registers itself in the table.
    There it learns how many other functions serve this caller, and from then on it allows only its part of the rate.

    So the limit is approximate. In a burst over several functions, each may let up to 40 requests pass before it knows
    of the others. A load that is spread unevenly gets less than the whole rate.
    """

    def __init__(self, register: Register, rule: Rule = PROJECT) -> None:
        self._register = register
        self._rule = rule
        self._name = uuid.uuid4().hex
        self._shares: dict[str, _Share] = {}

    def require(self, caller: str, rate: float, now: float, count: int = 1, burst_seconds: float | None = None) -> None:
        """Raises RateLimited if this function's part of the caller's rate is used up.

        `count`: the number of requests that this request counts as.
        """
        burst = burst_seconds or self._rule.burst_seconds
        if caller not in self._shares and len(self._shares) >= self._rule.kept:
            self._shares.clear()
        share = self._shares.get(caller)
        if share is None:
            bucket = TokenBucket(rate, now, burst_seconds=burst)
            share = self._shares[caller] = _Share(bucket, burst)
        if self._rule.forgets:
            self._forget(share, now)
        share.seen += count
        if share.seen % REQUESTS_PER_SYNC < count:
            self._learn_peers(caller, share, now)
        part = rate / max(share.peers, share.peers_before)
        if (part, burst) != (share.bucket.rate, share.burst):
            share.bucket.change_rate(part, now, burst_seconds=burst)
            share.burst = burst
        wait = share.bucket.take(now, count)
        if wait > 0:
            raise RateLimited(self._rule.refusal.format(rate=rate), retry_after=wait)

    def charge(self, caller: str, requests: int) -> None:
        """Counts more requests of the caller, after one request that did the work of several."""
        share = self._shares.get(caller)
        if share is not None and requests > 0:
            share.bucket.owe(requests)

    @staticmethod
    def _forget(share: _Share, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != share.seen_in:
            share.seen, share.seen_in = 0, window
        if window > share.window + 1:
            # Outdated. A caller that has become slow would not register again, and would keep its small part for ever.
            share.peers = share.peers_before = 1

    def _learn_peers(self, caller: str, share: _Share, now: float) -> None:
        window = int(now // WINDOW_SECONDS)
        if window != share.window:
            share.peers_before = share.peers if window == share.window + 1 else 1
            share.window, share.peers = window, 1
        share.peers = self._register(caller, window, self._name) or share.peers


# Longer than a function of the API can run. So the slot of a function that died is free after this time.
LEASE_SECONDS = 35
# A host has one poll open; those of an agent that was restarted end by themselves within seconds.
HOST_POLLS = 5
_RETRY_SECONDS = 5
_KEPT_SECONDS = 86400


class SlowCalls:
    """Limits the number of slow API calls that are open at the same time.

    A slow call occupies a function for up to 20 seconds. Sync exports, samples, previews, dry runs and waiting polls of
    hosts are slow calls. Without a limit, one project or host could use up the concurrency of the API.

    Each open call holds a slot as a lease. The slot of a poll is in a record of the host. The slot of any other call is
    in a record of the project.
    """

    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._usage = UsageStore(table)
        self._clock = clock
        # How long the slow calls of projects have taken in this process. They are charged as runner time.
        self.seconds_held = 0.0

    @contextmanager
    def held(self, project_id: str) -> Iterator[None]:
        """Holds a slot while the call runs.

        Raises RateLimited if all slots of the project's quota `slow_calls` are taken. Raises QuotaExceeded if the
        project's runner-hours of the day are used up.
        """
        now = self._clock()
        quotas, used = self._usage.quotas_today([project_id], now).get(project_id, (quotas_from({}), {}))
        if is_used_up(quotas, used, RUNNER_SECONDS):
            raise day_exceeded(quotas, RUNNER_SECONDS, now)
        limit = quotas.slow_calls
        refusal = (
            f"the project's quota slow_calls is {limit}, and as many calls that wait for a remote server are open: "
            "try again when one of them has ended"
        )
        began = time.monotonic()
        with self._slot(project_id, keys.slow_calls(project_id), limit, refusal):
            try:
                yield
            finally:
                self.seconds_held += (self._clock() - now).total_seconds()
                self._count(project_id, math.ceil(time.monotonic() - began))

    def _count(self, project_id: str, seconds: int) -> None:
        """Charges the seconds as runner time, because a function that waits costs as much as one that runs a batch."""
        try:
            self._usage.add_today(project_id, self._clock(), **{RUNNER_SECONDS: seconds})
        except (ClientError, BotoCoreError, DomainError):
            # The caller must get its answer.
            logger.exception("the time of a slow call was not counted", project_id=project_id)

    @contextmanager
    def poll_held(self, project_id: str, agent_id: str) -> Iterator[None]:
        """Holds a slot while a host's poll waits.

        Raises RateLimited if `HOST_POLLS` polls of this host already wait.
        """
        refusal = f"{HOST_POLLS} polls of this host wait already: try again when one has ended, or poll without wait"
        with self._slot(project_id, keys.waiting_polls(project_id, agent_id), HOST_POLLS, refusal):
            yield

    @contextmanager
    def _slot(self, project_id: str, record: Key, limit: int, refusal: str) -> Iterator[None]:
        owner = uuid4().hex
        slot = self._take_slot(record, owner, limit, refusal)
        try:
            yield
        finally:
            self._release(project_id, record, owner, slot)

    def _take_slot(self, record: Key, owner: str, limit: int, refusal: str) -> int:
        # Chosen at random, so that concurrent calls seldom try the same one.
        free = [random.randrange(limit)]  # noqa: S311
        while free:
            slot = random.choice(free)  # noqa: S311
            try:
                self._try_slot(record, owner, slot)
            except ConditionFailed as error:
                # Another call took the slot meanwhile.
                free = self._free_slots(error.item or {}, limit)
            else:
                return slot
        raise RateLimited(refusal, retry_after=_RETRY_SECONDS)

    def _try_slot(self, record: Key, owner: str, slot: int) -> None:
        now = int(self._clock().timestamp())
        until = now + LEASE_SECONDS
        taken = {f"owner_{slot}": owner, f"until_{slot}": until, "expires_at": until + _KEPT_SECONDS}
        # `owner`: boto3 repeats a write whose answer was lost, and the repeated one must succeed, too.
        free = f"attribute_not_exists(#until_{slot}) OR #until_{slot} <= :now OR #owner_{slot} = :me"
        self._table.write(update(record, taken, condition=free, now=now, me=owner))

    def _free_slots(self, record: Item, limit: int) -> list[int]:
        now = self._clock().timestamp()
        return [slot for slot in range(limit) if int(record.get(f"until_{slot}", 0)) <= now]

    def _release(self, project_id: str, record: Key, owner: str, slot: int) -> None:
        removes = (f"owner_{slot}", f"until_{slot}")
        # A call that took longer than the lease may have lost the slot to another one.
        mine = update(record, removes=removes, condition=f"#owner_{slot} = :me", me=owner)
        try:
            self._table.try_write(mine)
        except (ClientError, BotoCoreError, DomainError):
            # The caller must get its answer; the slot is free when the lease ends.
            logger.exception("a slot for slow calls could not be released", project_id=project_id)
