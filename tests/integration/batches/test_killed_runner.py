"""kill -9 of the process of a runner, while another runner of the same batch goes on."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.batches.lab import Lab
from tests.support.batches.processes import RunnerProcess, served_table
from tests.support.batches.receiver import Receiver, receiver
from tests.support.moto.cloud import MotoCloud
from tidegate.batches.model import FINISHED
from tidegate.batches.run.slice import Pace

RATE = 200


@pytest.fixture(scope="module")
def business() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def test_a_killed_process_repeats_a_second_of_its_own_items(cloud: MotoCloud, business: Receiver) -> None:
    lab = Lab(cloud.app.table, business.url, Pace(lease_seconds=3))
    batch = lab.batch(1200, rate=RATE, runners=2)
    with served_table(lab.table) as address:
        processes = [RunnerProcess(address, lab, business.url, batch, runner) for runner in (0, 1, 1)]
        survivor, victim, successor = processes
        with closing(survivor), closing(victim), closing(successor):
            for process in processes:
                process.wait_until_ready()
            survivor.go()
            victim.go()
            deadline = time.monotonic() + 30
            while lab.runs.runners(batch)[1].progress.position < RATE:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            time.sleep(0.6)
            victim.kill()
            successor.go()
            survivor.cpu_seconds()
            successor.cpu_seconds()
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == (FINISHED, 1200)
    counted = Counter(index for _, index, _ in business.calls())
    assert sorted(counted) == list(range(1200))
    repeated = [index for index, times in counted.items() if times > 1]
    # Its half of the rate for a second, and the write that would have recorded it.
    assert 0 < len(repeated) <= RATE / 2 * 1.3
    assert all(batch.share(1).owns(index) for index in repeated)
