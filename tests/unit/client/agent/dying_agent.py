"""The agent, which logs each important step and kills itself before the step that KILL_BEFORE names.

Run as a module with the agent's own arguments. STEPS is the file for the log, one step per line."""

from __future__ import annotations

import os
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tidegate_client.agent.journal import Journal
from tidegate_client.cli import main
from tidegate_client.download import ResumingDownload
from tidegate_client.resources.agents import Agents


def step(name: str) -> None:
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
    return "tell the API" if any(result["error_code"] != 115 for result in results) else None


before(ResumingDownload, "run", lambda *_: "write")
before(os, "fchown", lambda *_: "chown")
before(os, "fchmod", lambda *_: "chmod")
before(os, "fsync", synced)
before(Journal, "apply", lambda *_: "journal the sequence")
before(os, "rename", lambda *_, **__: "rename")
before(Journal, "record", lambda *_: "journal the result")
before(Agents, "report", finals)
before(Journal, "acknowledge", lambda *_: "acknowledge")

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
