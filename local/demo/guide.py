"""`Guide`, which each step of the tour gets: clients, keys, a folder, and methods that wait and print."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from local.cloud import Cloud
from local.place import ROOT
from local.progress import say
from tidegate_client.client import Client

T = TypeVar("T")


class Unexpected(Exception):
    """A step of the tour had another result than expected."""


@dataclass(frozen=True)
class Guide:
    """The environment of a step of the tour: the cloud, its clients and project, and a folder for its files."""

    cloud: Cloud
    outputs: dict[str, str]
    admin: Client
    client: Client
    project_id: str
    callback_secret: str
    home: Path

    def tell(self, line: str) -> None:
        say(f"      {line}")

    def key(self, *scopes: str, agent_id: str | None = None) -> str:
        return self.admin.keys.create(self.project_id, scopes, agent_id=agent_id).key

    def until(self, read: Callable[[], T], holds: Callable[[T], bool], what: str, seconds: float = 60) -> T:
        """Reads a value again and again until `holds` accepts it, and returns the accepted value.

        Raises Unexpected after `seconds`."""
        deadline = time.monotonic() + seconds
        while not holds(value := read()):
            if time.monotonic() > deadline:
                raise Unexpected(f"{what} did not happen within {seconds:.0f} s; last seen: {value}")
            time.sleep(0.3)
        return value

    @contextmanager
    def commands(self, commands: Sequence[tuple[Sequence[str], str]]) -> Iterator[None]:
        """Runs `tidegate …` commands, each with its own key, until the block ends."""
        log = (self.home / "commands.log").open("ab")
        started = [
            subprocess.Popen(
                [sys.executable, "-m", "tidegate_client", *words],
                cwd=ROOT,
                env={**os.environ, "TIDEGATE_API_URL": self.cloud.api_url, "TIDEGATE_KEY": key},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            for words, key in commands
        ]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
            log.close()


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise Unexpected(what)
