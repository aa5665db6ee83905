"""Simulates a fleet: the cost of an idle host's month, and a Job to 10,000 and 100,000 hosts.

The simulation has its own clock. The times of hosts come from the product's code (`spread_seconds`, the alarm's
follow-ups, the reporter's spread, the pace of polls); the duration of functions is assumed, as the notes say.
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
from tidegate.distribution.fleet import _AGENTS_A_MESSAGE, spread_seconds
from tidegate.distribution.model import _SHARD_AIM
from tidegate_client.agent.inbox import BEAT_SECONDS, FIRST_PAUSE, LEAST_PAUSE, LONGEST_PAUSE, LONGEST_SPREAD
from tidegate_client.agent.threads import FOLLOW_UP_SECONDS
from tidegate_client.rates import LONGEST_IDLE_ROUND, PUSHED_IDLE_ROUND, PUSHED_ROUND, Backoff

SECTION = "A fleet (simulated)"
MONTH = 30 * 86400
CONNECTION_SECONDS = 2 * 3600
# Assumed milliseconds of one warm invocation. The memory of each function comes from the template.
# What docs/operations.md names for large fleets.
FLEET_RATE = 500
POLL_MS, REPORT_MS, SEND_MS, SMALL_GB = 40, 40, 25, 0.25
AUTHORIZER_MS, TICKET_MS, CONNECT_MS, DISCONNECT_MS = 3, 25, 40, 20
SENDERS, WAKERS, WAKER_BATCH = 16, 10, 5
# The dispatch writes inbox entries one BatchWriteItem after another.
ENTRIES_A_WRITE, WRITE_MS = 25, 10
DOWNLOAD_SECONDS = 30.0
# The share of polls that find the inbox's index not yet up to date.
LAGGING = 0.05
# Calls of one connection of an idle host, as tests/integration counts them: the ticket and its use, the connection by
# its id and by its key, and the host's record at the start, the poll and the end.
CYCLE_WRITES, CYCLE_READS = 7, 3.5
# The use of a key is written once a day, to the table and to an index.
DAY_WRITES = 2
# Bytes of CloudWatch Logs: of an invocation (Lambda's start and report lines with 150 and 310, and one of ours), and of
# a request (the gateway's access log).
LOG_BYTES, ACCESS_BYTES = 850, 400
# API Gateway's quota of an account, and the size of its burst.
CONNECTIONS_A_SECOND = 500


def polls_of_a_month() -> float:
    """One for each connection of an idle host, if the timer of polls is longer than a connection lasts."""
    cycles = MONTH / CONNECTION_SECONDS
    return cycles if PUSHED_IDLE_ROUND / 2 >= CONNECTION_SECONDS else cycles + MONTH / (0.75 * PUSHED_IDLE_ROUND)


def idle_month() -> Iterator[Figure]:
    """Yields the cost of a connected host without transfers: every call, message, minute and log line."""
    cycles = MONTH / CONNECTION_SECONDS
    beats = cycles * (CONNECTION_SECONDS // BEAT_SECONDS)
    polls = polls_of_a_month()
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
    """Concurrent functions, in slots of a tenth of a second."""

    busy: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    calls: Counter[str] = field(default_factory=Counter)
    # By slot, for the figures over time.
    when: defaultdict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def call(self, kind: str, at: float, milliseconds: float) -> None:
        self.calls[kind] += 1
        self.when[int(at * 10)][kind] += 1
        self.busy[int(at * 10)] += milliseconds / 100

    def between(self, first: int, last: int) -> Load:
        """Returns the load in these seconds, the last one excluded."""
        part = Load()
        for slot in range(first * 10, last * 10):
            part.busy[slot] = self.busy.get(slot, 0.0)
            part.calls.update(self.when.get(slot, {}))
        return part

    @property
    def most(self) -> float:
        """The largest average over a second: within a second, excess calls only wait for milliseconds."""
        seconds: defaultdict[int, float] = defaultdict(float)
        for slot, load in self.busy.items():
            seconds[slot // 10] += load / 10
        return max(seconds.values())


def told_at(hosts: int) -> list[float]:
    """Returns when each host's wake-up is sent.

    It is sent after the dispatch has written the inbox entries of its shard, by a few functions that take a hundred
    hosts each and send sixteen messages in parallel.
    """
    each = _AGENTS_A_MESSAGE / SENDERS * SEND_MS / 1000
    free = [0.0] * WAKERS
    moments = []
    for first in range(0, hosts, _AGENTS_A_MESSAGE):
        written = (first // _SHARD_AIM + 1) * _SHARD_AIM / ENTRIES_A_WRITE * WRITE_MS / 1000
        began = max(heapq.heappop(free), written)
        heapq.heappush(free, began + each)
        places = range(min(_AGENTS_A_MESSAGE, hosts - first))
        moments += [began + place // SENDERS * SEND_MS / 1000 for place in places]
    return moments


def job(hosts: int, seed: int = 7) -> tuple[Load, float, float]:
    """Returns the load of one Job, when the last host was woken, and when the last one reported."""
    draw, load, spread = random.Random(seed), Load(), spread_seconds(hosts, FLEET_RATE)
    woken = told_at(hosts)
    for message in range(0, hosts, _AGENTS_A_MESSAGE * WAKER_BATCH):
        seconds = woken[min(message + _AGENTS_A_MESSAGE * WAKER_BATCH, hosts) - 1] - woken[message]
        load.call("wake", woken[message], 1000 * max(0.05, seconds))
    last = 0.0
    pause = min(spread, LONGEST_SPREAD)
    for at in woken:
        polls_at = at + draw.uniform(0, spread)
        load.call("poll", polls_at, POLL_MS)
        if draw.random() < LAGGING:
            load.call("poll", polls_at + FOLLOW_UP_SECONDS[0], POLL_MS)
        ends_at = polls_at + DOWNLOAD_SECONDS * draw.uniform(0.5, 1.5)
        renewal = polls_at + PUSHED_ROUND * draw.uniform(0.5, 1)
        while renewal < ends_at:
            load.call("poll", renewal, POLL_MS)
            renewal += PUSHED_ROUND * draw.uniform(0.5, 1)
        # Progress reports: at most one for each ten percent, and never closer than the requested pause.
        reports = polls_at
        while True:
            reports += max(2.0, pause * draw.uniform(0.5, 1.5), DOWNLOAD_SECONDS / 10)
            load.call("report", reports, REPORT_MS)
            if reports >= ends_at:
                break
        last = max(last, reports)
    return load, max(woken), last


def dollars(load: Load) -> float:
    requests = load.calls["poll"] + load.calls["report"]
    gigabyte_seconds = sum(load.busy.values()) / 10 * SMALL_GB
    return (
        requests * prices.HTTP_API_REQUEST
        + sum(load.calls.values()) * prices.LAMBDA_REQUEST
        + gigabyte_seconds * prices.LAMBDA_GB_SECOND
        # Each function writes that it saw the host, if it has not done so yet.
        + load.calls["poll"] * (prices.DYNAMODB_READ + prices.DYNAMODB_WRITE)
        + load.calls["report"] * (prices.DYNAMODB_READ + prices.DYNAMODB_WRITE)
    )


def over_time(hosts: int, load: Load, last: float) -> Iterator[Figure]:
    """Yields, for six spans of the Job, the most concurrent functions, the calls and their cost."""
    span = max(10, math.ceil(last / 6 / 10) * 10)
    for first in range(0, math.ceil(last), span):
        part = load.between(first, first + span)
        note = f"{sum(part.calls.values()):,} calls, ${dollars(part):.4f}"
        name = f"{hosts:,} hosts: functions at work, {first}–{first + span} s"
        yield Figure(SECTION, name, part.most, "", note=note)


def reconnection(hosts: int, seed: int = 7) -> tuple[float, float, int]:
    """Simulates the loss of all connections at one moment.

    Returns the seconds until the last host is back, the most concurrent functions, and the refused connections.
    """
    random.seed(seed)
    load, refused = Load(), 0
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
            refused += 1
            heapq.heappush(waiting, (at + backoff.next(), number, backoff))
            continue
        tokens -= 1
        load.call("connect", at, CONNECT_MS)
        load.call("poll", at, POLL_MS + AUTHORIZER_MS)
    return last, load.most, refused


def reconnections(quick: bool) -> Iterator[Figure]:
    for hosts, most in ((10_000, 50.0), (100_000, None)):
        last, functions_at_once, refused = reconnection(hosts)
        note = f"{refused:,} tries turned away at {CONNECTIONS_A_SECOND} connections/s"
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
