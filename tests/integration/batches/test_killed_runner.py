"""A runner's process is killed with SIGKILL while another runner of the same batch continues."""

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
from tests.support.patience import idle_clock
from tidegate.batches import SliceTiming
from tidegate.batches.model import FINISHED, Batch

RATE = 200


@pytest.fixture(scope="module")
def business() -> Iterator[Receiver]:
    with receiver() as made:
        yield made


def wait_for_unsaved_calls(lab: Lab, business: Receiver, batch: Batch) -> None:
    """Waits until runner 1 has saved some progress and made calls since the last save."""
    deadline = idle_clock() + 60
    while True:
        called = sum(batch.share(1).owns(index) for _, index, _ in business.calls())
        saved = lab.batches.runners(batch)[1].progress.position
        if saved >= RATE and called >= saved + RATE / 8:
            return
        assert idle_clock() < deadline
        time.sleep(0.02)


def test_killed_process_repeats_at_most_a_second(cloud: MotoCloud, business: Receiver) -> None:
    lab = Lab(cloud.app.table, business.url, SliceTiming(lease_seconds=3))
    batch = lab.batch(1200, rate=RATE, runners=2)
    with served_table(lab.table) as address:
        processes = [RunnerProcess(address, lab, business.url, batch, runner) for runner in (0, 1, 1)]
        survivor, victim, successor = processes
        with closing(survivor), closing(victim), closing(successor):
            for process in processes:
                process.wait_until_ready()
            survivor.go()
            victim.go()
            wait_for_unsaved_calls(lab, business, batch)
            victim.kill()
            successor.go()
            survivor.cpu_seconds()
            successor.cpu_seconds()
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == (FINISHED, 1200)
    counted = Counter(index for _, index, _ in business.calls())
    assert sorted(counted) == list(range(1200))
    repeated = [index for index, times in counted.items() if times > 1]
    # One second at its half of the rate, and the time of the save that did not happen.
    assert 0 < len(repeated) <= RATE / 2 * 1.3
    assert all(batch.share(1).owns(index) for index in repeated)
