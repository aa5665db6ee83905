"""A simulated fleet: an idle host's month by count, and a Job to 10,000 and 100,000 hosts, with the real pacing code.

The simulation has a clock of its own. The hosts' moments come from what the product uses (`spread_seconds`, the alarm's
follow-ups, the reporter's spread, the pace of polls); what a function takes is assumed, and said in the notes.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.bench import prices
from tests.bench.figures import Figure
from tests.support.template import functions, load_template
from tidegate.distribution.fleet.wakeups import _AGENTS_A_MESSAGE, spread_seconds
from tidegate.distribution.targets import _SHARD_AIM
from tidegate_client.agent.backoff import Backoff
from tidegate_client.agent.pace import LONGEST_IDLE_ROUND, PUSHED_IDLE_ROUND, PUSHED_ROUND
from tidegate_client.agent.poll_trigger import FOLLOW_UP_SECONDS
from tidegate_client.agent.push import BEAT_SECONDS, FIRST_PAUSE, LEAST_PAUSE, LONGEST_PAUSE
from tidegate_client.agent.reporter import LONGEST_SPREAD

SECTION = "A fleet (simulated)"
MONTH = 30 * 86400
CONNECTION_SECONDS = 2 * 3600
# Assumed milliseconds of one invocation, warm. The memory of each function is the template's.
POLL_MS, REPORT_MS, SEND_MS, SMALL_GB = 40, 40, 25, 0.25
AUTHORIZER_MS, TICKET_MS, CONNECT_MS, DISCONNECT_MS = 3, 25, 40, 20
SENDERS, WAKERS, WAKER_BATCH = 16, 10, 5
# The dispatch writes inbox entries one BatchWriteItem after another.
ENTRIES_A_WRITE, WRITE_MS = 25, 10
DOWNLOAD_SECONDS = 30.0
# How many find the inbox's index not up to date yet.
LAGGING = 0.05
# Of one connection of an idle host, from its ticket to its end, as tests/integration counts them: ticket, its use,
# the connection under its id and under its key, the host's record at the beginning, the poll and the end.
CYCLE_WRITES, CYCLE_READS = 7, 3.5
# A key's use is noted once a day, in the table and in an index.
DAY_WRITES = 2
# Bytes of CloudWatch Logs of an invocation: Lambda's start and report lines (150 and 310) and one of ours; and the
# gateway's own line of a request.
LOG_BYTES, ACCESS_BYTES = 850, 400
# API Gateway's quota for an account, and a burst of as many.
CONNECTIONS_A_SECOND = 500


def idle_month() -> Iterator[Figure]:
    """Every call, message, minute and log line of a connected host to which nothing happens."""
    cycles = MONTH / CONNECTION_SECONDS
    beats = cycles * (CONNECTION_SECONDS // BEAT_SECONDS)
    # Each connection brings one; its own timer is longer than a connection lasts.
    polls = cycles if PUSHED_IDLE_ROUND / 2 >= CONNECTION_SECONDS else cycles + MONTH / (0.75 * PUSHED_IDLE_ROUND)
    requests = cycles + polls
    seconds = {
        "AuthorizerFunction": requests * AUTHORIZER_MS / 1000,
        "ApiFunction": cycles * TICKET_MS / 1000,
        "AgentsFunction": polls * POLL_MS / 1000,
        "WebSocketFunction": cycles * (CONNECT_MS + DISCONNECT_MS) / 1000,
    }
    invocations = requests + cycles + polls + 2 * cycles
    parts = {
        "connection": MONTH / 60 * prices.WEBSOCKET_MINUTE + beats * prices.WEBSOCKET_MESSAGE,
        "requests": requests * prices.HTTP_API_REQUEST,
        "functions": invocations * prices.LAMBDA_REQUEST
        + sum(_gigabytes(name) * used for name, used in seconds.items()) * prices.LAMBDA_GB_SECOND,
        "table": (cycles * CYCLE_WRITES + MONTH / 86400 * DAY_WRITES) * prices.DYNAMODB_WRITE
        + cycles * CYCLE_READS * prices.DYNAMODB_READ,
        "logs": (invocations * LOG_BYTES + requests * ACCESS_BYTES) * prices.LOGS_GB / 1e9,
    }
    shown = ", ".join(f"{name} {value:.4f}" for name, value in parts.items())
    note = f"{shown}; {beats:,.0f} beats without a function, {cycles:,.0f} connections, {polls:,.0f} polls"
    yield Figure(SECTION, "an idle connected host's month, with logs", sum(parts.values()), "$", 0.02, note=note)
    polling = MONTH / (0.75 * LONGEST_IDLE_ROUND)
    each = prices.HTTP_API_REQUEST + prices.DYNAMODB_READ + 2 * prices.LAMBDA_REQUEST
    each += (2 * LOG_BYTES + ACCESS_BYTES) * prices.LOGS_GB / 1e9
    yield Figure(
        SECTION, "an idle host's month without a connection", polling * each, "$", note=f"{polling:,.0f} polls"
    )


def _gigabytes(function: str) -> float:
    default = load_template()["Globals"]["Function"]["MemorySize"]
    return float(functions()[function].get("MemorySize", default)) / 1024


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
    """When each host's message goes out: once the dispatch has written the inbox entries of its shard, by a few
    functions that take a hundred hosts each, sixteen sends side by side."""
    each = _AGENTS_A_MESSAGE / SENDERS * SEND_MS / 1000
    free = [0.0] * WAKERS
    found = []
    for first in range(0, hosts, _AGENTS_A_MESSAGE):
        written = (first // _SHARD_AIM + 1) * _SHARD_AIM / ENTRIES_A_WRITE * WRITE_MS / 1000
        began = max(heapq.heappop(free), written)
        heapq.heappush(free, began + each)
        some = range(min(_AGENTS_A_MESSAGE, hosts - first))
        found += [began + place // SENDERS * SEND_MS / 1000 for place in some]
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
            load.call("poll", asks + FOLLOW_UP_SECONDS[0], POLL_MS)
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
        # That the host was seen is written by each function that did not note it yet.
        + load.calls["poll"] * (prices.DYNAMODB_READ + prices.DYNAMODB_WRITE)
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


def reconnection(hosts: int, seed: int = 7) -> tuple[float, float, int]:
    """All connections are lost at one moment. Seconds until the last host is back, functions at work at most in a
    second, and the tries that the gateway turned away."""
    random.seed(seed)
    load, turned = Load(), 0
    waiting: list[tuple[float, int, Backoff]] = []
    for number in range(hosts):
        backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, least=LEAST_PAUSE)
        heapq.heappush(waiting, (backoff.next(), number, backoff))
    tokens, last = float(CONNECTIONS_A_SECOND), 0.0
    while waiting:
        at, number, backoff = heapq.heappop(waiting)
        tokens, last = min(CONNECTIONS_A_SECOND, tokens + (at - last) * CONNECTIONS_A_SECOND), at
        load.call("ticket", at, TICKET_MS + AUTHORIZER_MS)
        if tokens < 1:
            turned += 1
            heapq.heappush(waiting, (at + backoff.next(), number, backoff))
            continue
        tokens -= 1
        load.call("connect", at, CONNECT_MS)
        load.call("poll", at, POLL_MS + AUTHORIZER_MS)
    return last, load.most, turned


def reconnections(quick: bool) -> Iterator[Figure]:
    for hosts, most in ((10_000, 50.0), (100_000, None)):
        last, functions_at_once, turned = reconnection(hosts)
        note = f"{turned:,} tries turned away at {CONNECTIONS_A_SECOND} connections/s"
        name = f"{hosts:,} hosts lost their connections together"
        yield Figure(SECTION, f"{name}: functions at work at once, at most", functions_at_once, "", most, note=note)
        yield Figure(SECTION, f"{name}: all are back after", last, "s", 60 if most else None)
        if quick:
            return


def measure(quick: bool) -> Iterator[Figure]:
    yield from idle_month()
    yield from reconnections(quick)
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
