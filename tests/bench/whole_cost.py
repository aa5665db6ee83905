"""Adds to the cost counted by `money` the authorizer, logs, hosts' calls, S3 requests and egress.

The services' own calls are counted on moto; those of hosts come from the simulated fleet. Assumptions are named here
and shown in the notes.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench import fleet, money, prices
from tests.bench.figures import Figure
from tests.bench.meter import Meter
from tests.support.template import functions, load_template

SECTION = "Dollars with everything (us-east-1 list prices)"
MILLION = 1_000_000
GIGABYTE, TERABYTE = 1e9, 1e12
HOSTS = 10_000
# Bytes of CloudWatch Logs: of an invocation (Lambda's lines and one or two of ours), and of a line of the access log.
LOG_BYTES, ACCESS_BYTES = 1_500, 400
# Milliseconds of the authorizer for a cached key; it caches a key for KeyCacheSeconds.
AUTHORIZER_MS = 3
# What it reads for a key that is not cached: the key by the index, the key itself and the project, consistently.
KEY_READS = 2.5
# File sizes that S3 sends for 50 hosts together: the bench of swarms measures 1.1 to 1.4.
SWARM_HOSTS, SWARM_ORIGIN = 50, 1.4
RANGE_BYTES = 8 * 1024**2
# The share of a swarm's bytes that stays in a zone, if hosts say theirs (the simulation of zones of 40 hosts).
IN_ZONE = 0.84


def request(times: float = 1, *, misses: float = 1.0) -> dict[str, float]:
    """Returns the cost of each HTTP request besides its own function: the authorizer and the access log.

    `misses`: how many of the requests find their key in no authorizer's cache, and read it and its project: all, for
    callers that come less often than every KeyCacheSeconds. A page of polls finds it there.
    """
    gigabytes = load_template()["Globals"]["Function"]["MemorySize"] / 1024
    authorizer = prices.LAMBDA_REQUEST + AUTHORIZER_MS / 1000 * gigabytes * prices.LAMBDA_GB_SECOND
    return {
        "authorizer": times * authorizer + times * misses * KEY_READS * prices.DYNAMODB_READ,
        "logs": times * _logs(1) + times * ACCESS_BYTES * prices.LOGS_GB / GIGABYTE,
    }


def _logs(invocations: float) -> float:
    return invocations * LOG_BYTES * prices.LOGS_GB / GIGABYTE


def _metered(meter: Meter, times: float) -> dict[str, float]:
    return {"services": meter.dollars(times), "logs": _logs(times * meter.used["LAMBDA_REQUEST"])}


def _added(*parts: dict[str, float]) -> dict[str, float]:
    return {name: sum(part.get(name, 0) for part in parts) for name in dict.fromkeys(n for part in parts for n in part)}


def _shown(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:,.2f}" for name, value in parts.items())


def million_targets() -> Iterator[Figure]:
    submit, _, job, _ = money._in_a_cloud(money._window)
    load, _, _ = fleet.job(HOSTS)
    share = MILLION / HOSTS
    requests = share * (load.calls["poll"] + load.calls["report"])
    hosts = {
        "hosts": share * fleet.dollars(load) + MILLION * prices.WEBSOCKET_MESSAGE,
        "logs": _logs(share * sum(load.calls.values())),
        "S3 requests": MILLION * prices.S3_GET,
    }
    jobs = MILLION / money.WINDOW
    parts = _added(_metered(submit, MILLION), request(MILLION), _metered(job, jobs), hosts, request(requests))
    note = f"{_shown(parts)}; {requests / MILLION:.1f} calls a host, told over its connection; egress is apart"
    yield Figure(
        SECTION, "a million targets, submitted one by one, to connected hosts", sum(parts.values()), "$", note=note
    )
    memory = next(each for name, each in functions().items() if name == "AgentsFunction")["MemorySize"] / 1024
    waiting = MILLION * 60 * memory * prices.LAMBDA_GB_SECOND
    note = f"60 s x {memory} GB x {prices.LAMBDA_GB_SECOND:.3g} a host and Job: what waiting in Lambda would add"
    yield Figure(SECTION, "the same if hosts waited in long polls", sum(parts.values()) + waiting, "$", note=note)


def host_month() -> Iterator[Figure]:
    """Yields the whole cost of a connected host, from the simulated fleet."""
    (idle, *_) = fleet.idle_month()
    yield Figure(SECTION, "a connected host's month without a file", idle.value, "$", note=idle.note)


def terabyte() -> Iterator[Figure]:
    requests = TERABYTE / RANGE_BYTES * prices.S3_GET
    egress = TERABYTE / GIGABYTE * prices.EGRESS_GB
    yield Figure(
        SECTION,
        "a TB delivered over the internet, each host from S3",
        egress + requests,
        "$",
        note=f"egress {egress:,.0f}, ranges of 8 MiB {requests:.2f}; hosts in the bucket's region: {requests:.2f}",
    )
    share = SWARM_ORIGIN / SWARM_HOSTS
    yield Figure(
        SECTION,
        f"the same in swarms of {SWARM_HOSTS} hosts",
        share * (egress + requests),
        "$",
        note=f"S3 sends {SWARM_ORIGIN} file sizes for {SWARM_HOSTS} hosts",
    )


def between_zones() -> Iterator[Figure]:
    """Yields what a swarm costs between hosts of the bucket's region, where S3 costs its requests only."""
    both_sides = 2 * prices.ZONE_GB * TERABYTE / GIGABYTE
    alone = TERABYTE / RANGE_BYTES * prices.S3_GET
    yield Figure(SECTION, "a TB to hosts in the bucket's region, each from S3", alone, "$", note="what `auto` does")
    unknown = f"{2 / 3 * both_sides:.1f} if no zone is known"
    note = f"{1 - IN_ZONE:.0%} of the bytes cross zones, billed on both sides; {unknown}"
    yield Figure(SECTION, "the same in a swarm over three zones", (1 - IN_ZONE) * both_sides, "$", note=note)


def slow_batch() -> Iterator[Figure]:
    """Yields the cost of a batch with a call a minute for a month: between calls it is in a Wait state."""
    memory = functions()["RunBatchSliceFunction"]["MemorySize"] / 1024
    held = fleet.MONTH * memory * prices.LAMBDA_GB_SECOND
    calls = fleet.MONTH / 60
    # RunSlice, WhatNext and SleepUntilNextCall; a second of Lambda for the call and for saving the state.
    transitions, seconds = 3 * calls * prices.STEP_FUNCTIONS_TRANSITION, calls * memory * prices.LAMBDA_GB_SECOND
    parts = {"transitions": transitions, "Lambda": seconds + calls * prices.LAMBDA_REQUEST, "logs": _logs(calls)}
    note = f"{_shown(parts)}; held in Lambda it would be {held:,.1f}"
    yield Figure(SECTION, "a batch of one call a minute, a month", sum(parts.values()), "$", held / 10, note=note)


def measure(quick: bool) -> Iterator[Figure]:
    yield from million_targets()
    yield from host_month()
    yield from terabyte()
    yield from between_zones()
    yield from slow_batch()
