"""The agent, which logs each important step and kills itself before the step that KILL_BEFORE names.

Run as a module with the agent's own arguments. STEPS is the file for the log, one step per line; a repeated step has a
number, as in "fsync file#2". CLOCK may name a file with the seconds that the agent's clock is ahead."""

from __future__ import annotations

import os
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate_client.agent.journal import Journal
from tidegate_client.cli import main
from tidegate_client.download import ResumingDownload
from tidegate_client.resources.agents import Agents

seen: Counter[str] = Counter()
real_time = time.time


def moved_time() -> float:
    clock = Path(os.environ.get("CLOCK") or os.devnull)
    return real_time() + float((clock.exists() and clock.read_text()) or 0)


def step(name: str) -> None:
    seen[name] += 1
    name = name if seen[name] == 1 else f"{name}#{seen[name]}"
    if name == os.environ.get("KILL_BEFORE"):
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(os.environ["STEPS"]).open("a") as file:
        file.write(f"{name}\n")


def before(owner: Any, function: str, name: Callable[..., str | None]) -> None:
    right = getattr(owner, function)

    def noted(*args: Any, **more: Any) -> Any:
        if told := name(*args, **more):
            step(told)
        return right(*args, **more)

    setattr(owner, function, noted)


def synced(descriptor: int) -> str:
    return "fsync directory" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "fsync file"


def finals(_: object, __: str, results: list[dict[str, Any]]) -> str | None:
    if any(result["error_code"] != 115 for result in results):
        return "tell the API"
    return "tell that it is staged" if any(result.get("staged_at") for result in results) else None


before(ResumingDownload, "run", lambda *_: "write")
before(os, "fchown", lambda *_: "chown")
before(os, "fchmod", lambda *_: "chmod")
before(os, "fsync", synced)
before(Journal, "apply", lambda *_: "journal the sequence")
before(os, "rename", lambda _, name, **__: "stage" if str(name).endswith(".staged") else "rename")
before(Journal, "stage", lambda *_: "journal the staged file")
before(Journal, "unstage", lambda *_: "forget the staged file")
before(Journal, "record", lambda *_: "journal the result")
before(Agents, "report", finals)
before(Journal, "acknowledge", lambda *_: "acknowledge")

time.time = moved_time

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
