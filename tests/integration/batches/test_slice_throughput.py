"""The throughput of one runner, compared with bare HTTP calls made by the same process in the same minute."""

from __future__ import annotations

import threading
import time
from typing import NamedTuple

from tests.support.batches.lab import Lab
from tests.support.batches.receiver import Receiver, receiver
from tests.support.moto.cloud import MotoCloud
from tidegate.batches.slice import ENDED

RATE = 2000
BODY = b'{"batch_id":"bat-00000000000000000000000000","index":0,"attempt":1}'
HEADERS = {"content-type": "application/json", "webhook-signature": "v1," + "x" * 44}


class Throughput(NamedTuple):
    calls_per_second: float
    # CPU time of this process.
    cpu_per_call: float


def measure_bare_posts(lab: Lab, seconds: float) -> Throughput:
    """As many posts as possible over kept connections, from four threads."""
    counts: list[int] = []

    def post_repeatedly() -> None:
        connection, made, end = lab.http.line(lab.url, allow_private=True), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            connection.post(BODY, HEADERS)
            made += 1
        counts.append(made)
        connection.close()

    threads = [threading.Thread(target=post_repeatedly) for _ in range(4)]
    cpu = time.process_time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Throughput(sum(counts) / seconds, (time.process_time() - cpu) / sum(counts))


def measure_runner(lab: Lab, business: Receiver) -> Throughput:
    business.forget()
    batch = lab.batch(2 * RATE, rate=RATE)
    cpu = time.process_time()
    assert lab.run(batch) == ENDED
    cpu = time.process_time() - cpu
    moments = [moment for moment, _, _ in business.calls()]
    assert len(moments) == 2 * RATE
    business.forget()
    return Throughput(len(moments) / (max(moments) - min(moments)), cpu / len(moments))


def keeps_up(runner: Throughput, bare: Throughput) -> bool:
    """Whether the runner keeps the rate; or, on a machine too busy for it, makes as many calls as its CPU allows.

    A call of the runner may cost at most three bare posts, so that an idle core is enough for the rate.
    """
    if runner.cpu_per_call > 3 * bare.cpu_per_call:
        return False
    possible = bare.calls_per_second * bare.cpu_per_call / runner.cpu_per_call
    return runner.calls_per_second >= 0.9 * min(RATE, possible)


def test_runner_makes_2000_calls_per_second_or_machine_limit(cloud: MotoCloud) -> None:
    """The best of five rounds counts, because the load of the machine changes between the measurements."""
    rounds: list[tuple[Throughput, Throughput]] = []
    with receiver() as business:
        lab = Lab(cloud.app.table, business.url)
        while len(rounds) < 5 and not any(keeps_up(*round_) for round_ in rounds):
            before = measure_bare_posts(lab, 0.5)
            runner = measure_runner(lab, business)
            after = measure_bare_posts(lab, 0.5)
            slowest = min(before.calls_per_second, after.calls_per_second)
            rounds.append((runner, Throughput(slowest, (before.cpu_per_call + after.cpu_per_call) / 2)))
    assert any(keeps_up(*round_) for round_ in rounds), rounds
