"""Runners in separate processes that use the moto table of this one: to be measured or killed.

A runner accesses the table through a socket, about five times a second.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from types import SimpleNamespace
from typing import Any

from botocore.exceptions import ClientError

from tests.support.batches.lab import PROJECT, Lab
from tests.support.batches.receiver import ROOT
from tidegate.aws.table import Table
from tidegate.batches import SliceTiming
from tidegate.batches.model import Batch
from tidegate.batches.slice import ENDED

_KEY = b"runners"
_CALLS = ("get_item", "put_item", "update_item", "query", "batch_get_item", "batch_write_item", "transact_write_items")


class _Manager(BaseManager):
    pass


class _Client:
    """The DynamoDB client of the main process. Its errors arrive without their own classes."""

    exceptions = SimpleNamespace(ConditionalCheckFailedException=ClientError, TransactionCanceledException=ClientError)

    def __init__(self, proxy: Any) -> None:
        self._proxy = proxy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proxy, name)


class RunnerProcess:
    def __init__(self, address: str, lab: Lab, url: str, batch: Batch, runner: int) -> None:
        arguments = [address, lab.table.name, url, batch.batch_id, str(runner), str(lab.timing.lease_seconds)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.batches.processes", *arguments],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def wait_until_ready(self) -> None:
        assert self._process.stdout
        assert self._process.stdout.readline() == "ready\n"

    def go(self) -> None:
        assert self._process.stdin
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def cpu_seconds(self) -> float:
        """Waits for the process to end. Returns its CPU time."""
        assert self._process.stdout
        return float(self._process.stdout.readline())

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait(10)

    def close(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()


@contextmanager
def served_table(table: Table) -> Iterator[str]:
    """Yields the address at which runners in other processes reach the table."""
    client: Any = table._client
    _Manager.register("client", lambda: client, exposed=_CALLS)
    server = _Manager(("127.0.0.1", 0), authkey=_KEY).get_server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host, port = server.address  # type: ignore[misc, str-unpack]
    yield f"{host!s}:{port!s}"


def _run_one(address: str, table: str, url: str, batch_id: str, runner: int, lease_seconds: float) -> None:
    """Prints that it is ready, waits for the signal to start, and prints its CPU time at the end."""
    _Manager.register("client", exposed=_CALLS)
    host, port = address.split(":")
    manager = _Manager((host, int(port)), authkey=_KEY)
    manager.connect()
    client: Any = _Client(manager.client())  # type: ignore[attr-defined]
    lab = Lab(Table(client, table), url, SliceTiming(lease_seconds=lease_seconds))
    batch = lab.batches.get(PROJECT, batch_id)
    assert batch
    print("ready", flush=True)
    sys.stdin.readline()
    before = resource.getrusage(resource.RUSAGE_SELF)
    # Repeat while the lease of a dead runner is valid, or if another runner ends the batch at the same time.
    while lab.run(batch, runner) != ENDED:
        time.sleep(0.1)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, flush=True)


if __name__ == "__main__":
    address, table, url, batch_id, runner, lease_seconds = sys.argv[1:]
    _run_one(address, table, url, batch_id, int(runner), float(lease_seconds))
