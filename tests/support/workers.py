"""Finds, freezes and kills the worker processes in which MiniStack runs a function's handler."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.deployed import Deployed, until


def workers(deployed: Deployed, function: str) -> list[int]:
    """Returns the process ids of the function's workers in this emulator: others may run on the machine."""
    here = f"AWS_ENDPOINT_URL={deployed.up.emulator.place.endpoint}\0"
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit()
        and f"ministack-lambda-tidegate-{function}-" in _text(process / "cmdline")
        and here in _text(process / "environ")
    ]


def alive(pid: int) -> bool:
    """Whether the process runs. A zombie does not: it only waits for its parent to reap it."""
    stat = _text(Path(f"/proc/{pid}/stat"))
    return stat != "" and stat.rpartition(") ")[2][0] not in "ZX"


def freeze(deployed: Deployed, function: str) -> list[int]:
    """Suspends the function's workers, so that a test can check what they were doing. Returns their process ids."""
    pids = workers(deployed, function)
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    return pids


def thaw(pids: list[int]) -> None:
    """Lets suspended workers go on, unless they are gone."""
    for pid in pids:
        if alive(pid):
            os.kill(pid, signal.SIGCONT)


def kill(deployed: Deployed, function: str) -> None:
    """Sends SIGKILL to all workers of the function, idle ones too, and waits until they are dead."""
    pids = workers(deployed, function)
    assert pids, f"no worker of {function} runs"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: [pid for pid in pids if alive(pid)], lambda left: not left, seconds=5, every=0.01)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
