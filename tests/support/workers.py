"""The processes in which MiniStack runs a function's handler, and how tests kill them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.deployed import Deployed, until


def workers(deployed: Deployed, function: str) -> list[int]:
    """Process ids of the function's workers, of this emulator alone: others may run on the machine."""
    here = f"AWS_ENDPOINT_URL={deployed.up.emulator.place.endpoint}\0"
    return [
        int(process.name)
        for process in Path("/proc").iterdir()
        if process.name.isdigit()
        and f"ministack-lambda-tidegate-{function}-" in _text(process / "cmdline")
        and here in _text(process / "environ")
    ]


def alive(pid: int) -> bool:
    """A zombie is dead: it only waits for its parent to reap it."""
    stat = _text(Path(f"/proc/{pid}/stat"))
    return stat != "" and stat.rpartition(") ")[2][0] not in "ZX"


def freeze(deployed: Deployed, function: str) -> None:
    """Stops its workers where they are, so that there is time to look at what they were doing."""
    for pid in workers(deployed, function):
        os.kill(pid, signal.SIGSTOP)


def kill(deployed: Deployed, function: str) -> None:
    """SIGKILL to all its workers, idle ones too; returns once they are dead."""
    found = workers(deployed, function)
    assert found, f"no worker of {function} runs"
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    until(lambda: [pid for pid in found if alive(pid)], lambda left: not left, seconds=5, every=0.01)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
