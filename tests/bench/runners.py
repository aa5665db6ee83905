"""Compares a batch on one runner, on two, and loops of `requests` and `httpx`, each in its own process.

Computes the runners for 20,000 items/s.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from math import ceil

from tests.bench import loops
from tests.bench.figures import Figure, few
from tests.support.batches.lab import Lab
from tests.support.batches.processes import RunnerProcess, served_table
from tests.support.batches.receiver import Receiver, receiver
from tests.support.moto.cloud import MotoCloud
from tests.support.template import ROOT
from tidegate.batches.model import MOST_RUNNERS

SECTION = "runners"
WANTED = 20_000
ITEMS_PER_CALL = 100
# More than a runner can do: the processor is the limit, not the rate.
_UNLIMITED = 10_000_000
CONCURRENCY = 8


def _run(
    lab: Lab, business: Receiver, address: str, runners: int, items: int, items_per_call: int
) -> tuple[float, float]:
    """Runs a batch. Returns (items a second, items a CPU second of the runners)."""
    business.forget()
    batch = lab.batch(
        items, rate=_UNLIMITED, runners=runners, items_per_call=items_per_call, concurrency=CONCURRENCY * runners
    )
    url = f"{business.url}?n={items_per_call}"
    with ExitStack() as started:
        processes = [
            started.enter_context(closing(RunnerProcess(address, lab, url, batch, runner))) for runner in range(runners)
        ]
        for process in processes:
            process.wait_until_ready()
        for process in processes:
            process.go()
        seconds = [process.cpu_seconds() for process in processes]
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == ("finished", items), (ended, progress)
    moments = [moment for moment, _, _ in business.calls()]
    return items / (max(moments) - min(moments)), items / sum(seconds)


def _loop(name: str, url: str, items: int, items_per_call: int) -> tuple[float, float]:
    """Runs a peer's loop. Returns (items a second, items a CPU second)."""
    arguments = [name, url, str(ceil(items / items_per_call)), str(items_per_call), str(CONCURRENCY)]
    command = [sys.executable, "-m", "tests.bench.loops", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    rate, by_cpu = json.loads(done)
    return rate, by_cpu


def measure(quick: bool) -> Iterator[Figure]:
    """Runs one runner, two and the loops in turn, so that other load on the machine affects all of them."""
    with MotoCloud() as cloud, receiver() as business, served_table(cloud.app.table) as address:
        lab = Lab(cloud.app.table, business.url)
        one_rate = 0.0
        for items_per_call, items in ((1, 12_000), (ITEMS_PER_CALL, 900_000))[-few(100) :]:
            count = few(items // 3 if quick else items)
            url = f"{business.url}?n={items_per_call}"
            ones, twos = [], []
            peers: dict[str, list[tuple[float, float]]] = {name: [] for name in loops.LOOPS}
            for _ in range(few(2)):
                ones.append(_run(lab, business, address, 1, count, items_per_call))
                twos.append(_run(lab, business, address, 2, 2 * count, items_per_call))
                for name, runs in peers.items():
                    # They are slower: as many items would take minutes.
                    runs.append(_loop(name, url, max(CONCURRENCY * items_per_call, count // 4), items_per_call))
            one_rate, two_rate = max(ones)[0], max(twos)[0]
            one_by_cpu = max(by_cpu for _, by_cpu in ones)
            by_cpu = 2 * max(by_cpu for _, by_cpu in twos) / one_by_cpu
            named = f"{items_per_call} item{'s' * (items_per_call > 1)} a call"
            yield Figure(SECTION, f"one runner, {named}", one_rate, "items/s")
            note = f"{two_rate:,.0f} items/s, the business on the same cores; by the runners' CPU time {by_cpu:.2f} ×"
            # At one item a call, the business itself uses a good part of the two cores.
            bar = 1.8 if items_per_call > 1 else None
            yield Figure(SECTION, f"two runners, {named}", two_rate / one_rate, "×", bar, at_least=True, note=note)
            for name, runs in peers.items():
                rate, cpu = max(runs)[0], max(cpu for _, cpu in runs)
                note = f"{rate:,.0f} items/s of the loop; by CPU time {one_by_cpu / cpu:.2f} ×"
                what = f"one runner : a loop of {name}, {CONCURRENCY} connections, {named}"
                yield Figure(SECTION, what, one_rate / rate, "×", 1.0, at_least=True, note=note)
        ratio = WANTED / one_rate
        needed = ceil(ratio)
        note = f"{WANTED:,} ÷ {one_rate:,.0f} of one runner = {ratio:.1f}; {WANTED // ITEMS_PER_CALL} calls/s in all"
        yield Figure(
            SECTION, f"runners for {WANTED:,} items/s, {ITEMS_PER_CALL} a call", needed, "", MOST_RUNNERS, note=note
        )
