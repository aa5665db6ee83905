"""One batch over one runner and over two, each in a process of its own, against one business; and what that makes for
20,000 items a second.

The table is moto's, in this process; the runners reach it through a socket. A runner writes to it about five times a
second, so it is not what is measured.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from math import ceil
from multiprocessing.managers import BaseManager
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from tests.bench.figures import Figure
from tests.support.batches.lab import PROJECT, Lab
from tests.support.batches.receiver import Receiver, receiver
from tests.support.moto.cloud import MotoCloud
from tests.support.template import ROOT
from tidegate.aws.table import Table
from tidegate.batches.model import MOST_RUNNERS
from tidegate.batches.run.slice import ENDED

SECTION = "runners"
WANTED = 20_000
ITEMS_PER_CALL = 100
# More than a runner can do: the processor is the limit, not the rate.
_UNLIMITED = 10_000_000
_KEY = b"bench"
_CALLS = ("get_item", "put_item", "update_item", "query", "batch_get_item", "batch_write_item", "transact_write_items")


class _Manager(BaseManager):
    pass


class _Client:
    """The client of the other process. Errors come from there without their own classes."""

    exceptions = SimpleNamespace(ConditionalCheckFailedException=ClientError, TransactionCanceledException=ClientError)

    def __init__(self, proxy: Any) -> None:
        self._proxy = proxy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)


def _run_one(address: str, table: str, url: str, batch_id: str, runner: int) -> None:
    """The process of one runner: says that it is ready, waits for the word, tells its CPU seconds at the end."""
    import resource

    _Manager.register("client", exposed=_CALLS)
    host, port = address.split(":")
    manager = _Manager((host, int(port)), authkey=_KEY)
    manager.connect()
    lab = Lab(Table(_Client(manager.client()), table), url)  # type: ignore[attr-defined, arg-type]
    batch = lab.batches.get(PROJECT, batch_id)
    assert batch
    print("ready", flush=True)
    sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF)
    # Of two that end at once one ends the batch, and the other finds it ended.
    while lab.run(batch, runner) != ENDED:
        time.sleep(0.1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, flush=True)


def _run(
    lab: Lab, business: Receiver, address: str, runners: int, items: int, items_per_call: int
) -> tuple[float, float]:
    """(items a second, items a CPU second of the runners)."""
    business.forget()
    batch = lab.batch(items, rate=_UNLIMITED, runners=runners, items_per_call=items_per_call, concurrency=8 * runners)
    url = f"{business.url}?n={items_per_call}"
    with ExitStack() as started:
        processes = []
        for runner in range(runners):
            words = [address, lab.table.name, url, batch.batch_id, str(runner)]
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.bench.runners", *words],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            processes.append(started.enter_context(process))
        for process in processes:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        seconds = [float(process.stdout.readline()) for process in processes if process.stdout]
    ended, progress = lab.now(batch)
    assert (ended.status, progress.position) == ("finished", items), (ended, progress)
    moments = [moment for moment, _, _ in business.calls()]
    return items / (max(moments) - min(moments)), items / sum(seconds)


def measure(quick: bool) -> Iterator[Figure]:
    """One, two, one, two: what else the machine does meanwhile is in both."""
    with MotoCloud() as cloud, receiver() as business:
        lab = Lab(cloud.app.table, business.url)
        client: Any = lab.table._client
        _Manager.register("client", lambda: client, exposed=_CALLS)
        server = _Manager(("127.0.0.1", 0), authkey=_KEY).get_server()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host, port = server.address  # type: ignore[misc, str-unpack]
        address = f"{host!s}:{port!s}"
        one = 0.0
        for items_per_call, items in ((1, 12_000), (ITEMS_PER_CALL, 900_000)):
            count = items // 3 if quick else items
            rounds = [(_run(lab, business, address, n, n * count, items_per_call)) for n in (1, 2, 1, 2)]
            one, two = max(rounds[0][0], rounds[2][0]), max(rounds[1][0], rounds[3][0])
            by_cpu = 2 * max(rounds[1][1], rounds[3][1]) / max(rounds[0][1], rounds[2][1])
            named = f"{items_per_call} item{'s' * (items_per_call > 1)} a call"
            yield Figure(SECTION, f"one runner, {named}", one, "items/s")
            note = f"{two:,.0f} items/s, the business on the same cores; by the runners' CPU time {by_cpu:.2f} ×"
            # At one item a call the business takes a good part of the two cores itself.
            bar = 1.8 if items_per_call > 1 else None
            yield Figure(SECTION, f"two runners, {named}", two / one, "×", bar, at_least=True, note=note)
        needed = ceil(WANTED / one)
        note = f"{WANTED:,} ÷ {one:,.0f} of one runner = {WANTED / one:.1f}; {WANTED // ITEMS_PER_CALL} calls/s in all"
        yield Figure(
            SECTION, f"runners for {WANTED:,} items/s, {ITEMS_PER_CALL} a call", needed, "", MOST_RUNNERS, note=note
        )


if __name__ == "__main__":
    address, table, url, batch_id, runner = sys.argv[1:]
    _run_one(address, table, url, batch_id, int(runner))
