from __future__ import annotations

import threading
import time

from tests.support.batch_lab import Lab
from tests.support.batch_receiver import receiver
from tests.support.moto_cloud import MotoCloud
from tidegate.services.batch_slice import ENDED

RATE = 2000
BODY = b'{"batch_id":"bat-00000000000000000000000000","index":0,"attempt":1}'
HEADERS = {"content-type": "application/json", "webhook-signature": "v1," + "x" * 44}


def what_the_receiver_can_take(lab: Lab, seconds: float) -> float:
    """Bare posts over kept connections, as many as go through."""
    counts: list[int] = []

    def post_on() -> None:
        line, made, end = lab.http.line(lab.url, allow_private=True), 0, time.monotonic() + seconds
        while time.monotonic() < end:
            line.post(BODY, HEADERS)
            made += 1
        counts.append(made)
        line.close()

    threads = [threading.Thread(target=post_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


def test_the_runner_holds_2000_a_second_or_what_the_receiver_can_take(cloud: MotoCloud) -> None:
    with receiver() as business:
        lab = Lab(cloud.app.table, business.url)
        before = what_the_receiver_can_take(lab, 1.0)
        business.forget()
        batch = lab.batch(3 * RATE, rate=RATE)
        started = time.monotonic()
        assert lab.run(batch) == ENDED
        held = 3 * RATE / (time.monotonic() - started)
        calls = business.calls()
        assert len(calls) == 3 * RATE
        business.forget()
        capacity = min(before, what_the_receiver_can_take(lab, 1.0))
    print(f"held {held:.0f}/s of {RATE}/s; the receiver alone took {capacity:.0f}/s")
    assert held >= 0.9 * min(RATE, capacity)
