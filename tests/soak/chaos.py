"""What happens to the product meanwhile: processes die or freeze, the cloud restarts, clocks of hosts are set."""

from __future__ import annotations

import math
import os
import random
import re
import signal
import threading
import time
import traceback
from pathlib import Path

import local.emulator
from local.launcher import ANSWERING
from tests.soak.hosts import Host
from tests.soak.ledger import HARNESS, Ledger
from tests.support.deployed import Deployed

# Saving the state of a long run takes its time.
_STOP_SECONDS = 240
_CLOCK_SECONDS = 600.0
# Between two faults so many calls of callers are answered: on a slow machine, nothing would ever run otherwise.
_ANSWERS_BETWEEN = 8
# And between two restarts so many records are asked for: all functions have to start again after each.
_ASKED_BETWEEN = 20


class Lost(Exception):
    """The emulator was killed before it had saved its state: whatever follows says nothing about the product."""


class Chaos:
    def __init__(self, cloud: Deployed, hosts: list[Host], ledger: Ledger, seed: int, *, gentle: bool = False) -> None:
        """`gentle`: no waits of a minute. Functions that answer callers, and may hold an Idempotency-Key, live on."""
        self._cloud = cloud
        self._hosts = hosts
        self._ledger = ledger
        self._rng = random.Random(f"chaos {seed}")
        self._gentle = gentle
        self._stop = threading.Event()
        self._frozen: list[tuple[float, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._restart_every = self._restart_at = math.inf
        self._asked_before = 0

    def start(self, seconds: float) -> None:
        """Begins. The emulator restarts once in a short run, every four minutes in a long one, and not in 0 seconds."""
        if seconds:
            self._restart_every = seconds / max(1, round(seconds / 240))
            self._restart_at = time.monotonic() + self._restart_every / 2
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._thaw(float("inf"))
        for host in self._hosts:
            host.signal(signal.SIGCONT)
            host.set_clock(0)

    def _run(self) -> None:
        try:
            self._disturb()
        except Exception:
            self._ledger.breaks(HARNESS, f"no more faults: {traceback.format_exc()}")

    def _disturb(self) -> None:
        while not self._stop.is_set():
            now = time.monotonic()
            self._thaw(now)
            if now >= self._restart_at and len(self._ledger.asked) >= self._asked_before + _ASKED_BETWEEN:
                self._restart()
            else:
                deed = self._rng.choices(
                    (self._kill, self._freeze, self._kill_host, self._freeze_host, self._set_clock), (8, 5, 1, 1, 2)
                )[0]
                deed()
            answered = self._ledger.counts["calls answered"]
            self._stop.wait(self._rng.uniform(0.3, 2.5))
            while self._ledger.counts["calls answered"] < answered + _ANSWERS_BETWEEN and not self._stop.is_set():
                self._thaw(time.monotonic())
                self._stop.wait(0.2)

    def _workers(self, but: re.Pattern[str] | None = None) -> list[int]:
        """Processes of this emulator's functions, in an order that chance alone does not decide."""
        here = f"AWS_ENDPOINT_URL={self._cloud.up.emulator.place.endpoint}\0"
        found = []
        for process in Path("/proc").iterdir():
            try:
                if (
                    process.name.isdigit()
                    and "ministack-lambda-" in (words := (process / "cmdline").read_text(errors="replace"))
                    and not (but and but.search(words))
                    and here in (process / "environ").read_text(errors="replace")
                ):
                    found.append(int(process.name))
            except OSError:
                continue
        return sorted(found)

    def _one(self, but: re.Pattern[str] | None = None) -> int | None:
        workers = self._workers(but)
        return self._rng.choice(workers) if workers else None

    def _kill(self) -> None:
        if (pid := self._one(ANSWERING if self._gentle else None)) and _send(pid, signal.SIGKILL):
            self._ledger.count("functions killed")

    def _freeze(self) -> None:
        if (pid := self._one()) and _send(pid, signal.SIGSTOP):
            self._frozen.append((time.monotonic() + self._rng.choice((2, 4) if self._gentle else (2, 8, 25)), pid))
            self._ledger.count("functions frozen")

    def _thaw(self, now: float) -> None:
        for entry in [entry for entry in self._frozen if entry[0] <= now]:
            self._frozen.remove(entry)
            _send(entry[1], signal.SIGCONT)

    def _kill_host(self) -> None:
        host = self._rng.choice(self._hosts)
        host.kill()
        host.start()
        self._ledger.count("agents killed")

    def _freeze_host(self) -> None:
        host = self._rng.choice(self._hosts)
        host.signal(signal.SIGSTOP)
        self._stop.wait(self._rng.uniform(0.5, 4))
        host.signal(signal.SIGCONT)
        self._ledger.count("agents frozen")

    def _set_clock(self) -> None:
        self._rng.choice(self._hosts).set_clock(self._rng.uniform(-_CLOCK_SECONDS, _CLOCK_SECONDS))
        self._ledger.count("clocks of hosts set")

    def _restart(self) -> None:
        local.emulator.STOP_SECONDS = _STOP_SECONDS
        self._thaw(float("inf"))
        emulator = self._cloud.up.emulator
        if not emulator.stop():
            raise Lost
        emulator.start()
        self._ledger.count("restarts of the cloud")
        self._restart_at = time.monotonic() + self._restart_every
        self._asked_before = len(self._ledger.asked)


def _send(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
