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


def shifted_time() -> float:
    clock = Path(os.environ.get("CLOCK") or os.devnull)
    return real_time() + float((clock.exists() and clock.read_text()) or 0)


def step(name: str) -> None:
    seen[name] += 1
    name = name if seen[name] == 1 else f"{name}#{seen[name]}"
    if name == os.environ.get("KILL_BEFORE"):
        os.kill(os.getpid(), signal.SIGKILL)
    with Path(os.environ["STEPS"]).open("a") as file:
        file.write(f"{name}\n")


def log_before(owner: Any, function: str, name: Callable[..., str | None]) -> None:
    original = getattr(owner, function)

    def logged(*args: Any, **more: Any) -> Any:
        if step_name := name(*args, **more):
            step(step_name)
        return original(*args, **more)

    setattr(owner, function, logged)


def is_directory(descriptor: int) -> bool:
    return stat.S_ISDIR(os.fstat(descriptor).st_mode)


def sync_step(descriptor: int) -> str:
    return "fsync directory" if is_directory(descriptor) else "fsync file"


def report_step(_: object, __: str, results: list[dict[str, Any]]) -> str | None:
    if any(result["error_code"] != 115 for result in results):
        return "report the result"
    return "report the staging" if any(result.get("staged_at") for result in results) else None


log_before(ResumingDownload, "run", lambda *_: "write")
log_before(os, "fchown", lambda *_: "chown")
log_before(os, "fchmod", lambda descriptor, _: "close the part's directory" if is_directory(descriptor) else "chmod")
log_before(os, "fsync", sync_step)
log_before(Journal, "apply", lambda *_: "journal the sequence")
log_before(os, "rename", lambda *_, **__: "rename")
log_before(os, "rmdir", lambda *_, **__: "remove the part's directory")
log_before(Journal, "stage", lambda *_: "journal the staged file")
log_before(Journal, "unstage", lambda *_: "forget the staged file")
log_before(Journal, "record", lambda *_: "journal the result")
log_before(Agents, "report", report_step)
log_before(Journal, "acknowledge", lambda *_: "acknowledge")

time.time = shifted_time

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
