"""Runs some hosts of a swarm in a process: `python -m tests.support.swarm.worker SPEC BEGAN`.

Prints one line of JSON for every host that has the file, and serves until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from tests.support.swarm.lab import Placement
from tidegate_client.download import ResumingDownload, fetch_verified
from tidegate_client.inputs import SwarmFigures
from tidegate_client.rates import RateLimit
from tidegate_client.swarm.host import NoSwarm, SwarmHost, SwarmOptions


class LabHost:
    """A SwarmHost with a directory, which delivers files as the agent does."""

    def __init__(
        self,
        agent_id: str,
        home: Path,
        *,
        listens: bool = True,
        at: tuple[str, int] = ("127.0.0.1", 0),
        download_rate: float | None = None,
        **options: Any,
    ) -> None:
        self.agent_id = agent_id
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        listen = (at,) if listens else ()
        self._limit = limit = RateLimit(download_rate, saved_seconds=0.05) if download_rate else None
        self.host = SwarmHost(agent_id, home / "state", SwarmOptions(listen=listen, **options), limit)
        self.host.start()
        self.cancelled = False
        self.pool = urllib3.PoolManager(maxsize=8)

    @property
    def placement(self) -> Placement:
        presence = self.host.presence()
        return Placement(self.agent_id, tuple(presence["listen"]), presence["pin"])

    @property
    def published(self) -> Path:
        return self.home / "file"

    def deliver(self, transfer: Any, patience: float = 20.0) -> SwarmFigures:
        """Delivers by the swarm. A published file that exists already is used as the older version."""
        part = self.home / "part"
        part.touch()
        with ExitStack() as stack:
            file = stack.enter_context(part.open("r+b"))
            old = stack.enter_context(self.published.open("rb")) if self.published.exists() else None
            joined = stack.enter_context(
                self.host.join(
                    transfer,
                    file,
                    lambda _: transfer["url"],
                    pool=self.pool,
                    cancelled=lambda: self.cancelled,
                    on_progress=lambda *_: None,
                    patience=patience,
                    old=old,
                )
            )
            joined.fetch()
            part.rename(self.published)
            joined.seed()
            return joined.figures()

    def deliver_directly(self, transfer: Any) -> None:
        """Delivers without a swarm, as an older agent does."""
        part = self.home / "part"
        part.touch()
        with part.open("r+b") as file:
            throttle = self._limit.take if self._limit else None
            download = ResumingDownload(self.pool, file, size=transfer["size"], throttle=throttle)
            fetch_verified(download, lambda _: str(transfer["url"]), transfer["signature"])
            part.rename(self.published)

    def close(self) -> None:
        self.cancelled = True
        self.host.close()


async def _garbage(_piece: int, _offset: int, length: int) -> bytes:
    return b"\0" * length


async def _stall(_piece: int, _offset: int, _length: int) -> bytes:
    await asyncio.sleep(3600)
    return b""


BAD_READS = {"garbage": _garbage, "stall": _stall}


def _has_all(host: LabHost, transfer: Any, source: Path, read: Any) -> None:
    """Makes the host announce the whole file and send what `read` returns."""
    with source.open("rb") as file:
        host.host.seed_existing(transfer, file, host.pool)
    session = host.host._sessions[transfer["swarm"]["id"]]
    assert session is not None
    session.read = read  # type: ignore[method-assign]


def _run(given: dict[str, Any], began: float) -> None:
    host = LabHost(
        given["agent_id"],
        Path(given["home"]),
        listens=given["at"] is not None,
        at=tuple(given["at"] or ("", 0)),
        download_rate=given["rate"],
        upload_rate=given["rate"],
    )
    time.sleep(max(0.0, began + given["starts"] - time.time()))
    transfer = given["transfer"]
    if given["behaviour"] in BAD_READS:
        _has_all(host, transfer, Path(given["source"]), BAD_READS[given["behaviour"]])
        return
    started, cpu = time.monotonic(), time.process_time()
    figures: SwarmFigures | None = None
    try:
        if "swarm" not in transfer:
            raise NoSwarm
        figures = host.deliver(transfer)
    except NoSwarm:
        host.deliver_directly(transfer)
    result = {
        "agent_id": given["agent_id"],
        "seconds": time.monotonic() - started,
        "ended": time.time() - began,
        "figures": figures,
        "cpu": time.process_time() - cpu,
        "pid": os.getpid(),
        "cpu_from": cpu,
        "cpu_to": time.process_time(),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    sys.stdout.flush()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    began = float(sys.argv[2])
    for given in spec:
        threading.Thread(target=_run, args=(given, began), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
