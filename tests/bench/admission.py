"""How many requests a second one channel admits, with AWS's call times: the real code on moto, in simulated time.

A run of admission takes the sum of its calls' times; machines are started by 16 threads at once. Requests come at even
distances and run for a second, so that as many end as come. Each end is a transaction with the channel's record, which
an admission may meet: it is then repeated after a pause.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import NamedTuple
from unittest.mock import patch

from tests.bench.figures import Figure, few
from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud
from tests.support.queue import TestQueue
from tests.support.template import queue_functions
from tidegate.queue.model import Request

SECTION = "admission"
WANTED = 100
# Milliseconds. DynamoDB's documentation promises single-digit milliseconds for one item, its paper on transactions
# (USENIX ATC 2023) has 10 to 20 for writes of several; 20 to 30 are usual for StartExecution, 10 for SQS.
CALLS = {
    "dynamodb.GetItem": 5,
    "dynamodb.UpdateItem": 7,
    "dynamodb.Query": 8,
    "dynamodb.BatchGetItem": 10,
    "dynamodb.TransactWriteItems": 25,
    "sqs.SendMessageBatch": 15,
}
START, START_THREADS = 25, 16
# From the end of one invocation to the start of the next of the same FIFO group: delete, receive, invoke.
BETWEEN_RUNS = 40
# How long a transaction keeps others from its items, and the pause before one is repeated.
HELD, REPEATED_AFTER = 5, 20
_WORK_SECONDS = 1.0
# A project may run 100 requests at once, if nobody raised its quota.
_PROJECTS = 4


def _run_seconds(calls: dict[str, int], ends_a_second: float) -> float:
    starts = calls.pop("stepfunctions.StartExecution", 0)
    met = 1 - math.exp(-ends_a_second * HELD / 1000)
    repeats = calls.get("dynamodb.TransactWriteItems", 0) * met / (1 - met)
    total: float = sum(CALLS[name] * count for name, count in calls.items())
    total += repeats * (REPEATED_AFTER + CALLS["dynamodb.TransactWriteItems"])
    return (total + START * math.ceil(starts / START_THREADS) + BETWEEN_RUNS) / 1000


class Load(NamedTuple):
    """The seconds that each request waited for admission, the number of runs, the most messages that waited."""

    waited: list[float]
    runs: int
    messages: int


def under_load(rate: float, seconds: float) -> Load:
    batch = int(queue_functions()["AdmissionQueue"][1]["BatchSize"])
    with MotoCloud() as cloud:
        queues = [TestQueue(cloud, cloud.project()) for _ in range(_PROJECTS)]
        queues[0].capacity(no_cookie=10_000)
        began = cloud.clock()
        comes = [number / rate for number in range(round(rate * seconds))]
        ends: list[tuple[float, str, Request]] = []
        waited: list[float] = []
        started: list[Request] = []
        start = cloud.app.queue.runner.start
        free_at, runs, messages = 0.0, 0, 0

        def started_by(request: Request) -> str:
            started.append(request)
            return start(request)

        with patch.object(cloud.app.queue.runner, "start", started_by):
            while comes or ends:
                # All that happens while the channel's last run works; or, if nothing does, the next thing to happen.
                until = max(free_at, min([*comes[:1], *(at for at, *_ in ends[:1])]))
                while comes and comes[0] <= until:
                    cloud.clock.move_to(began + timedelta(seconds=comes.pop(0)))
                    queues[len(comes) % _PROJECTS].submit()
                while ends and ends[0][0] <= until:
                    queues[0].finish(heapq.heappop(ends)[2])
                cloud.clock.move_to(began + timedelta(seconds=until))
                messages = max(messages, cloud.app.compensation.status()[1])
                with count_calls(cloud.app) as calls:
                    cloud.deliver("AdmissionQueue", limit=batch)
                runs += 1
                free_at = until + _run_seconds(
                    {name: count for name, count in calls.items() if name in CALLS or "Start" in name}, rate
                )
                for request in started:
                    waited.append(free_at - _since(request, began.timestamp()))
                    heapq.heappush(ends, (free_at + _WORK_SECONDS, request.request_id, request))
                started.clear()
    return Load(waited, runs, messages)


def _since(request: Request, began: float) -> float:
    return datetime.fromisoformat(request.created_at).timestamp() - began


def measure(quick: bool) -> Iterator[Figure]:
    ceiling = 0
    for rate in (25, 50, WANTED, 150, 200, 300)[: few(6, 1)]:
        load = under_load(rate, few(2 if quick else 5))
        p95 = sorted(load.waited)[math.ceil(0.95 * len(load.waited)) - 1]
        bar, most = (1.0, 10.0) if rate <= WANTED else (None, None)
        note = f"{len(load.waited)} requests, as many ends, {load.runs} runs"
        yield Figure(SECTION, f"p95 of the wait at {rate} requests/s", p95, "s", bar, note=note)
        yield Figure(SECTION, f"messages that wait at {rate} requests/s, at most", load.messages, "", most)
        if p95 > 1 or load.messages > 10:
            break
        ceiling = rate
    yield Figure(SECTION, "requests a second without a backlog", ceiling, "/s", WANTED, at_least=True)
