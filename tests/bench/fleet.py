"""A fleet on paper: an idle host's month by count, and a Job to 10,000 and 100,000 hosts, with the real pacing code.

The simulation has a clock of its own. The hosts' moments come from what the product uses (`spread_seconds`, the alarm's
follow-ups, the reporter's spread, the pace of polls); what a function takes is assumed, and said in the notes.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench import prices
from tests.bench.figures import Figure
from tidegate.distribution.fleet.wakeups import _AGENTS_A_MESSAGE, spread_seconds
from tidegate_client.agent.pace import LONGEST_IDLE_ROUND, PUSHED_IDLE_ROUND, PUSHED_ROUND
from tidegate_client.agent.poll_alarm import ASK_AGAIN_AFTER
from tidegate_client.agent.push import BEAT_SECONDS
from tidegate_client.agent.reporter import LONGEST_SPREAD

SECTION = "A fleet (simulated)"
MONTH = 30 * 86400
CONNECTION_SECONDS = 2 * 3600
# Assumed milliseconds of one invocation, warm, and the size of its function in GB.
POLL_MS, REPORT_MS, SEND_MS, SMALL_MS, SMALL_GB = 40, 40, 25, 10, 0.25
SENDERS, WAKERS, WAKER_BATCH = 16, 10, 5
DOWNLOAD_SECONDS = 30.0
# How many find the inbox's index not up to date yet.
LAGGING = 0.05


def idle_month() -> Iterator[Figure]:
    """Every call, message and minute of a host to which nothing happens."""
    reconnects = MONTH / CONNECTION_SECONDS
    beats = MONTH / BEAT_SECONDS
    # On each connection, and now and then by itself.
    polls = reconnects + MONTH / (0.75 * PUSHED_IDLE_ROUND)
    # A ticket: written, deleted; the connection under its id and its key with an index entry: written, then expired;
    # the host's record at its beginning and its end.
    writes = reconnects * (2 + 3 + 2)
    reads = reconnects * 4 + polls
    invocations = beats + reconnects * 3 + polls
    dollars = (
        MONTH / 60 * prices.WEBSOCKET_MINUTE
        + beats * prices.WEBSOCKET_MESSAGE
        + (polls + reconnects) * prices.HTTP_API_REQUEST
        + writes * prices.DYNAMODB_WRITE
        + reads * prices.DYNAMODB_READ
        + invocations * (prices.LAMBDA_REQUEST + SMALL_MS / 1000 * SMALL_GB * prices.LAMBDA_GB_SECOND)
    )
    note = f"{beats:,.0f} beats, {reconnects:,.0f} connections, {polls:,.0f} polls, {writes:,.0f} writes"
    yield Figure(SECTION, "an idle connected host's month", dollars, "$", 0.02, note=note)
    polling = MONTH / (0.75 * LONGEST_IDLE_ROUND)
    each = prices.HTTP_API_REQUEST + prices.DYNAMODB_READ + prices.LAMBDA_REQUEST
    yield Figure(
        SECTION, "an idle host's month without a connection", polling * each, "$", note=f"{polling:,.0f} polls"
    )


@dataclass
class Load:
    """Functions at work, in slots of a tenth of a second."""

    busy: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    # By slot, for the figures over time.
    when: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def call(self, kind: str, at: float, milliseconds: float) -> None:
        self.calls[kind] += 1
        self.when[int(at * 10)][kind] += 1
        self.busy[int(at * 10)] += milliseconds / 100

    def between(self, first: int, last: int) -> Load:
        """What happened in these seconds, the last one excluded."""
        part = Load()
        for slot in range(first * 10, last * 10):
            part.busy[slot] = self.busy.get(slot, 0.0)
            part.calls.update(self.when.get(slot, {}))
        return part

    @property
    def most(self) -> float:
        """Over a second: what a moment has too many of waits for milliseconds."""
        seconds: defaultdict[int, float] = defaultdict(float)
        for slot, load in self.busy.items():
            seconds[slot // 10] += load / 10
        return max(seconds.values())


def told_at(hosts: int) -> list[float]:
    """When each host's message goes out: batches of a hundred by a few functions, sixteen sends side by side."""
    each = _AGENTS_A_MESSAGE / SENDERS * SEND_MS / 1000
    found = []
    for number in range(hosts):
        message, place = divmod(number, _AGENTS_A_MESSAGE)
        found.append(message // WAKERS * each + place // SENDERS * SEND_MS / 1000)
    return found


def job(hosts: int, seed: int = 7) -> tuple[Load, float, float]:
    """The load of one Job, when the last host was told, and when the last one reported."""
    draw, load, spread = random.Random(seed), Load(), spread_seconds(hosts)
    told = told_at(hosts)
    for message in range(0, hosts, _AGENTS_A_MESSAGE * WAKER_BATCH):
        seconds = told[min(message + _AGENTS_A_MESSAGE * WAKER_BATCH, hosts) - 1] - told[message]
        load.call("wake", told[message], 1000 * max(0.05, seconds))
    last = 0.0
    pause = min(spread, LONGEST_SPREAD)
    for at in told:
        asks = at + draw.uniform(0, spread)
        load.call("poll", asks, POLL_MS)
        if draw.random() < LAGGING:
            load.call("poll", asks + ASK_AGAIN_AFTER[0], POLL_MS)
        ends = asks + DOWNLOAD_SECONDS * draw.uniform(0.5, 1.5)
        renewal = asks + PUSHED_ROUND * draw.uniform(0.5, 1)
        while renewal < ends:
            load.call("poll", renewal, POLL_MS)
            renewal += PUSHED_ROUND * draw.uniform(0.5, 1)
        # In between it tells its progress, in steps of ten percent at most, and never closer than it was asked to.
        reports = asks
        while True:
            reports += max(2.0, pause * draw.uniform(0.5, 1.5), DOWNLOAD_SECONDS / 10)
            load.call("report", reports, REPORT_MS)
            if reports >= ends:
                break
        last = max(last, reports)
    return load, max(told), last


def dollars(load: Load) -> float:
    asked = load.calls["poll"] + load.calls["report"]
    gigabyte_seconds = sum(load.busy.values()) / 10 * SMALL_GB
    return (
        asked * prices.HTTP_API_REQUEST
        + sum(load.calls.values()) * prices.LAMBDA_REQUEST
        + gigabyte_seconds * prices.LAMBDA_GB_SECOND
        + load.calls["poll"] * prices.DYNAMODB_READ
        + load.calls["report"] * (prices.DYNAMODB_READ + prices.DYNAMODB_WRITE)
    )


def over_time(hosts: int, load: Load, last: float) -> Iterator[Figure]:
    """Six spans of the Job: functions at work at most, calls, and what they cost."""
    span = max(10, math.ceil(last / 6 / 10) * 10)
    for first in range(0, math.ceil(last), span):
        part = load.between(first, first + span)
        note = f"{sum(part.calls.values()):,} calls, ${dollars(part):.4f}"
        name = f"{hosts:,} hosts: functions at work, {first}–{first + span} s"
        yield Figure(SECTION, name, part.most, "", note=note)


def measure(quick: bool) -> Iterator[Figure]:
    yield from idle_month()
    for hosts, most in ((10_000, 50.0), (100_000, None)):
        load, told, last = job(hosts)
        note = f"{POLL_MS} ms a poll or report; {DOWNLOAD_SECONDS:.0f} s a download"
        yield Figure(SECTION, f"{hosts:,} hosts: the last one is told after", told, "s", 30 if most else None)
        yield Figure(SECTION, f"{hosts:,} hosts: functions at work at once, at most", load.most, "", most, note=note)
        calls = ", ".join(f"{count:,} {kind}s" for kind, count in sorted(load.calls.items()))
        yield Figure(SECTION, f"{hosts:,} hosts: the last report after", last, "s", note=calls)
        yield Figure(SECTION, f"{hosts:,} hosts: what their calls cost", dollars(load), "$")
        yield from over_time(hosts, load, last)
        if quick:
            return
