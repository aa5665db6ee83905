"""The most that each kind of key can cost, from the quotas, the throttles of the template and the price list.

Each way of spending is one line, with the quota or throttle that bounds it. Of ways that share a bound, such as the
routes that share a project's rate of requests, only the most expensive counts. Not bounded by anything here, and
docs/security.md says so: how often somebody uses a presigned URL while it is valid, and what an operator's own grants
cost (Athena, e-mail, copies to other buckets).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.bench import prices
from tests.bench.figures import Figure
from tests.support.template import ROOT, functions, load_template, resources
from tidegate.batches.workers import CALL_BYTES
from tidegate.projects.limits import HOST_POLLS, MOST_PUT_BYTES
from tidegate.projects.model import (
    AGENT_RATE,
    AGENT_READ_UNITS,
    AGENT_WRITE_UNITS,
    ANSWER_BYTES,
    DEFAULT_BURST_SECONDS,
    DEFAULTS,
    READ_UNITS,
    REQUEST_SECONDS,
)
from tidegate.releases.model import MOST_BYTES, MOST_RELEASES
from tidegate.releases.rollout import RUNNER_BYTES, RUNNER_SECONDS, SELDOM
from tidegate.web.releases import CHANGE_REQUESTS

SECTION = "The most that a key can cost (us-east-1 list prices)"
SECURITY = ROOT / "docs/security.md"
BEGIN, END = "<!-- ceiling: begin -->", "<!-- ceiling: end -->"
HOUR, DAY = 3600, 86400
GIGABYTE = 1e9
# Bars: dollars in an hour without a key, with `read`, with `agent`; in a day with `write`.
BARS = {("none", "hour"): 1.0, ("read", "hour"): 2.0, ("agent", "hour"): 2.0, ("write", "day"): 25.0}

# Bytes of CloudWatch Logs: of an invocation whose function logs Lambda's own lines, and of the access log.
LOG_BYTES, ACCESS_BYTES, REFUSED_BYTES = 1_500, 400, 260
# A warm authorizer looks the key up in memory; for an unknown key it makes one consistent read.
AUTHORIZER_MS = 3
# What one request of a route uses at most. Measured on moto: POST /v1/requests 34 writes and 19 ms, POST /v1/files 22
# writes and an S3 PUT, GET /v1/overview 10 reads and 147 ms. One that reads more than READ_UNITS, takes longer or has
# a larger answer counts as several requests (`web/api.py`).
# Requests are accepted only as fast as runner-hours allow, and a full queue is refused by a read; so 22 are sustained.
POST_MS, AGENT_MS = 60, 30
# A stranger who knows a project that allows AWS roles can have STS asked about a made-up signature, once for each. It
# refuses that in tens of milliseconds; no stranger can slow it down. If AWS itself does, the call ends after 3 s.
STS_MS = 60
WRITES_A_POST = 22
# Functions that serve one project at once may each let a burst pass before they know of each other.
FUNCTIONS_AT_ONCE = 4
# Requests of strangers that one authorizer passes on (functions/authorizer), and how many authorizers there may be.
STRANGERS_RATE, AUTHORIZERS = 1.0, 4
# POST /v1/downloads/batch of 1,000 targets costs 0.0019 dollars; their Jobs 0.0009 for 1,000, and hosts 0.0079.
TARGET_DOLLARS = 3e-6
# A look at a roll-out writes the release twice, in a transaction, and its entry of due work anew, besides few counts.
LOOK_MS, LOOK_WRITES, LOOK_READS = 100, 8, 10
# After a quota is used up: requests that were accepted before a function knew of it (10 s), each a Job of 900 s.
LATE_JOBS_SECONDS = 250


@dataclass(frozen=True, slots=True)
class Way:
    """One way to spend, and what bounds it. Ways with the same `shares` exclude each other."""

    what: str
    bound: str
    hour: float
    day: float
    shares: str = ""


def _gb(function: str) -> float:
    memory = functions()[function].get("MemorySize") or load_template()["Globals"]["Function"]["MemorySize"]
    return float(memory) / 1024


def _lambda(function: str, ms: float, *, logs: bool = True) -> float:
    run = prices.LAMBDA_REQUEST + ms / 1000 * _gb(function) * prices.LAMBDA_GB_SECOND
    return run + (LOG_BYTES * prices.LOGS_GB / GIGABYTE if logs else 0)


def _rate(value: Any) -> float:
    """A throttle of the template, which may be a parameter."""
    if isinstance(value, dict):
        return float(load_template()["Parameters"][value["Ref"]]["Default"])
    return float(value)


def throttles() -> dict[str, float]:
    """Requests per second of each route of the HTTP API. Those without their own have the default, each."""
    stage = resources("AWS::ApiGatewayV2::Stage")["HttpStage"]["Properties"]
    routes = [each["Properties"] for each in resources("AWS::ApiGatewayV2::Route").values()]
    names = [route["RouteKey"] for route in routes if route["ApiId"] == {"Ref": "HttpApi"}]
    own = {name: _rate(settings["ThrottlingRateLimit"]) for name, settings in stage["RouteSettings"].items()}
    return {name: own.get(name, _rate(stage["DefaultRouteSettings"]["ThrottlingRateLimit"])) for name in names}


def open_routes() -> set[str]:
    routes = [each["Properties"] for each in resources("AWS::ApiGatewayV2::Route").values()]
    return {r["RouteKey"] for r in routes if r["ApiId"] == {"Ref": "HttpApi"} and "AuthorizationType" not in r}


def _gateway(answer_bytes: float) -> float:
    access = ACCESS_BYTES * prices.LOGS_GB / GIGABYTE
    return prices.HTTP_API_REQUEST + access + answer_bytes * prices.EGRESS_GB / GIGABYTE


def _authorizer(*, unknown: bool = False) -> float:
    return _lambda("AuthorizerFunction", AUTHORIZER_MS, logs=False) + (prices.DYNAMODB_READ if unknown else 0)


def _per(rate: float, dollars: float, what: str, bound: str, shares: str = "", extra: float = 0) -> Way:
    """`extra`: requests on top of the rate, once."""
    return Way(what, bound, (rate * HOUR + extra) * dollars, (rate * DAY + extra) * dollars, shares)


def _pages() -> dict[str, int]:
    """The largest answer of each open route, uncompressed: a caller need not accept gzip."""
    import json

    from tidegate.web.api import build_api
    from tidegate.web.console.bundle import console
    from tidegate.web.openapi import contract

    bundle = console()
    return {
        "GET /": len(bundle.page.text),
        "GET /docs": len(bundle.docs.text),
        "GET /start": len(bundle.start.text),
        "GET /console/{name}": max(len(asset.text) for asset in bundle.assets.values()),
        "GET /openapi.json": len(json.dumps(contract(build_api()), separators=(",", ":"))),
        "GET /healthz": 20,
        "POST /v1/agents/enrol": 1000,
    }


def without_key() -> list[Way]:
    rates, opened, sizes = throttles(), open_routes(), _pages()
    ways = []
    for route in sorted(opened):
        asks_sts = route == "POST /v1/agents/enrol"
        each = _gateway(sizes[route]) + _lambda("ApiFunction", STS_MS if asks_sts else 10) + 2 * prices.DYNAMODB_READ
        each += prices.DYNAMODB_WRITE if asks_sts else 0
        ways.append(_per(rates[route], each, f"`{route}`, uncompressed", f"{rates[route]:g} a second"))
    closed = sum(rate for route, rate in rates.items() if route not in opened)
    refused = _authorizer(unknown=True) + REFUSED_BYTES * prices.LOGS_GB / GIGABYTE
    ways.append(_per(closed, refused, "requests with an unknown key, refused", f"{closed:g} a second, all routes"))
    told = STRANGERS_RATE * AUTHORIZERS
    passed = _gateway(300) + _lambda("ApiFunction", 5)
    ways.append(_per(told, passed, "the same, answered with 401", f"{told:g} a second"))
    stage = resources("AWS::ApiGatewayV2::Stage")["WebSocketStage"]["Properties"]
    connects = _rate(stage["RouteSettings"]["$connect"]["ThrottlingRateLimit"])
    connect = prices.WEBSOCKET_MESSAGE + _lambda("WebSocketFunction", 5, logs=False) + prices.DYNAMODB_READ
    ways.append(_per(connects, connect, "connections without a ticket", f"{connects:g} a second"))
    return ways


def _requests(quotas: dict[str, Any]) -> tuple[float, float, str]:
    """(rate, burst, bound) of a project's requests, over HTTP and the WebSocket together."""
    rate = float(quotas["requests_per_s"])
    return rate, rate * DEFAULT_BURST_SECONDS * FUNCTIONS_AT_ONCE, f"`requests_per_s` {rate:g}"


def read(quotas: dict[str, Any]) -> list[Way]:
    rate, burst, bound = _requests(quotas)
    # Answer, reads and time are added up to what counts as one request: the most expensive of them.
    get = _gateway(0) + _authorizer() + _lambda("ApiFunction", 0)
    get += max(
        ANSWER_BYTES * prices.EGRESS_GB / GIGABYTE,
        READ_UNITS * prices.DYNAMODB_READ,
        REQUEST_SECONDS * _gb("ApiFunction") * prices.LAMBDA_GB_SECOND,
    )
    message = prices.WEBSOCKET_MESSAGE * 2 + _lambda("WebSocketFunction", 50) + 100 * prices.DYNAMODB_READ
    # A connection lasts two hours at most, and needs a request for its ticket.
    connect = (prices.WEBSOCKET_MINUTE * 120 + _lambda("WebSocketFunction", 50) + get / 2) / 2
    return [
        _per(rate, get, "requests that read most or take longest", bound, "requests", burst),
        _per(
            rate,
            max(message, connect),
            "WebSocket: messages of 100 ids, or connections of two hours",
            bound,
            "requests",
            burst,
        ),
        _slow_calls(quotas),
    ]


def _runner(quotas: dict[str, Any], what: str) -> Way:
    hours = quotas["runner_hours_per_day"]
    hourly = max(_gb(name) for name in ("RunBatchSliceFunction", "RenderRangesFunction", "IngestFunction"))
    hourly *= HOUR * prices.LAMBDA_GB_SECOND
    return Way(what, f"`runner_hours_per_day` {hours}", min(hours, quotas["slow_calls"]) * hourly, hours * hourly)


def _slow_calls(quotas: dict[str, Any]) -> Way:
    """Samples, previews and sync exports hold a function of the API, and their time counts as a runner's."""
    hours, hourly = quotas["runner_hours_per_day"], _gb("ApiFunction") * HOUR * prices.LAMBDA_GB_SECOND
    most = min(hours, quotas["slow_calls"])
    bound = f"`slow_calls` {quotas['slow_calls']}, `runner_hours_per_day` {hours}"
    return Way("samples, previews and sync exports", bound, most * hourly, hours * hourly)


def agent(quotas: dict[str, Any]) -> list[Way]:
    poll = (
        _gateway(4096) + _authorizer() + _lambda("AgentsFunction", AGENT_MS) + AGENT_READ_UNITS * prices.DYNAMODB_READ
    )
    report = _gateway(100) + _authorizer() + _lambda("AgentsFunction", AGENT_MS)
    # One with long texts of hooks, or many results, counts as several.
    report += AGENT_WRITE_UNITS * prices.DYNAMODB_WRITE + AGENT_READ_UNITS * prices.DYNAMODB_READ
    waiting = HOST_POLLS * _gb("AgentsFunction") * prices.LAMBDA_GB_SECOND
    bound = f"{AGENT_RATE:g} a second of a host"
    return [
        _per(AGENT_RATE, poll, "polls of its inbox", bound, "requests"),
        _per(AGENT_RATE, report, "presence and results", bound, "requests"),
        _per(1, waiting, "polls that wait", f"{HOST_POLLS} of a host at once"),
    ]


def look(size: int) -> float:
    """One look at a roll-out of a release of this many bytes."""
    writes = LOOK_WRITES + 4 * size / 1024
    steps = 3 * prices.STEP_FUNCTIONS_TRANSITION + _lambda("WatchReleaseFunction", LOOK_MS)
    return steps + writes * prices.DYNAMODB_WRITE + LOOK_READS * prices.DYNAMODB_READ


def look_seconds(size: int) -> float:
    return RUNNER_SECONDS + size / RUNNER_BYTES


def release_change(post: float) -> float:
    """For each request that it counts as: it starts an execution, which looks twice, whatever follows."""
    return (post + prices.STEP_FUNCTIONS_TRANSITION + 2 * look(0)) / (1 + CHANGE_REQUESTS)


def write(quotas: dict[str, Any]) -> list[Way]:
    rate, burst, bound = _requests(quotas)
    post = _gateway(1024) + _authorizer() + _lambda("ApiFunction", POST_MS)
    # An upload in parts is begun by a PUT; every second request is the deletion that makes room for the next.
    post += prices.S3_PUT / 2
    post += WRITES_A_POST * prices.DYNAMODB_WRITE + 10 * prices.DYNAMODB_READ + prices.SQS_FIFO_REQUEST
    runner = _runner(quotas, "batches, exports, ingest, sync exports, Jobs, starts of these, looks at releases")
    hourly = runner.day / quotas["runner_hours_per_day"]
    slots = 40 * hourly
    egress = quotas["egress_bytes_per_day"] * prices.EGRESS_GB / GIGABYTE
    calls = quotas["outgoing_calls_per_day"] * CALL_BYTES * prices.EGRESS_GB / GIGABYTE
    targets = quotas["targets_per_day"] * TARGET_DOLLARS
    # 100 parts of unknown length, asked for when there was room for one, may bring 5 GiB each.
    stored = (quotas["stored_bytes"] + 100 * MOST_PUT_BYTES) / GIGABYTE * prices.S3_STORED_GB_MONTH / 30
    mapping = resources("AWS::Lambda::EventSourceMapping")["DeliverCallbackMapping"]["Properties"]
    callbacks = (
        mapping["ScalingConfig"]["MaximumConcurrency"] * _gb("DeliverCallbackFunction") * prices.LAMBDA_GB_SECOND
    )
    late = rate * DEFAULT_BURST_SECONDS * LATE_JOBS_SECONDS / HOUR * hourly
    reads = [way for way in read(quotas) if way.shares]
    # Of large and small releases, the more expensive: a look that counts for more is followed later.
    seldom = MOST_RELEASES * max(look(size) / (SELDOM * look_seconds(size)) for size in (0, MOST_BYTES))
    return [
        *reads,
        _per(rate, post, "requests that write most", bound, "requests", burst),
        _per(rate, release_change(post), "changes of releases, 10 requests each", bound, "requests", burst),
        _per(1, seldom, "looks at releases after those hours were used up", f"{MOST_RELEASES} releases"),
        Way(runner.what, runner.bound, min(runner.day, slots), runner.day),
        Way("Jobs accepted just before that was used up", "10 s of a full burst", late, late),
        Way(
            "files to hosts, out of the bucket",
            f"`egress_bytes_per_day` {quotas['egress_bytes_per_day']:,}",
            egress,
            egress,
        ),
        Way("targets of Jobs", f"`targets_per_day` {quotas['targets_per_day']:,}", targets, targets),
        Way(
            "calls to businesses, 16 KiB each",
            f"`outgoing_calls_per_day` {quotas['outgoing_calls_per_day']:,}",
            calls,
            calls,
        ),
        Way("a day of stored files", f"`stored_bytes` {quotas['stored_bytes']:,}", stored / 24, stored),
        _per(1, callbacks, "callbacks to slow receivers", "8 functions, of all projects together"),
    ]


def total(ways: list[Way], span: str) -> float:
    """The sum, with only the most expensive of ways that share a bound."""
    shared: dict[str, float] = {}
    alone = 0.0
    for way in ways:
        dollars = getattr(way, span)
        if way.shares:
            shared[way.shares] = max(shared.get(way.shares, 0), dollars)
        else:
            alone += dollars
    return alone + sum(shared.values())


def by_key(quotas: dict[str, Any] | None = None) -> dict[str, list[Way]]:
    quotas = dict(DEFAULTS) if quotas is None else quotas
    return {"none": without_key(), "read": read(quotas), "agent": agent(quotas), "write": write(quotas)}


def table() -> str:
    """The table of docs/security.md."""
    lines = [
        "| key | at most an hour | at most a day | the largest part, and its bound |",
        "| --- | ---: | ---: | --- |",
    ]
    for key, ways in by_key().items():
        most = max(ways, key=lambda way: way.day)
        name = "none" if key == "none" else f"`{key}`"
        # Rounded up, so that a page that grows by a few bytes does not change it.
        hour, day = (math.ceil(total(ways, span) * 10) / 10 for span in ("hour", "day"))
        dollars = f"${hour:.1f} | ${day:.1f}"
        lines.append(f"| {name} | {dollars} | {most.what}: {most.bound} |")
    lines.append("| `admin` | no limit | no limit | it sets the quotas; only the account's own limits hold |")
    return "\n".join(lines)


def measure(quick: bool) -> Iterator[Figure]:
    for key, ways in by_key().items():
        for way in ways:
            yield Figure(
                SECTION, f"{key}: {way.what}, a day", way.day, "$", note=f"{way.bound}; an hour {way.hour:.3f}"
            )
        for span in ("hour", "day"):
            yield Figure(SECTION, f"{key}: all of it, {span}", total(ways, span), "$", BARS.get((key, span)))
