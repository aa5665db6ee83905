from __future__ import annotations

import threading
import time

from tests.support.batches.lab import Lab
from tests.support.batches.receiver import receiver
from tests.support.moto.cloud import MotoCloud
from tidegate.batches.run.slice import ENDED

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
    """The best of three rounds: what else this machine does meanwhile is not the runner's."""
    with receiver() as business:
        lab = Lab(cloud.app.table, business.url)
        rounds: list[tuple[float, float]] = []
        while len(rounds) < 3 and not any(held >= 0.9 * wanted for held, wanted in rounds):
            capacity = what_the_receiver_can_take(lab, 0.5)
            business.forget()
            batch = lab.batch(2 * RATE, rate=RATE)
            assert lab.run(batch) == ENDED
            moments = [moment for moment, _, _ in business.calls()]
            assert len(moments) == 2 * RATE
            business.forget()
            capacity = min(capacity, what_the_receiver_can_take(lab, 0.5))
            rounds.append((len(moments) / (max(moments) - min(moments)), min(RATE, capacity)))
    print("held of wanted a second:", ", ".join(f"{held:.0f} of {wanted:.0f}" for held, wanted in rounds))
    assert any(held >= 0.9 * wanted for held, wanted in rounds)
