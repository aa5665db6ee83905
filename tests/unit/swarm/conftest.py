from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.support.swarm_lab import CountingOrigin, Placement, made_up_content
from tidegate_client.agent.rate_limit import RateLimit
from tidegate_client.models import SwarmFigures
from tidegate_client.swarm.host import SwarmHost, SwarmOptions

MIB = 1 << 20


class LabHost:
    """A SwarmHost with a directory, delivering as the agent does."""

    def __init__(
        self, agent_id: str, home: Path, *, listens: bool = True, download_rate: float | None = None, **options: Any
    ) -> None:
        self.agent_id = agent_id
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        listen = (("127.0.0.1", 0),) if listens else ()
        limit = RateLimit(download_rate, saved_seconds=0.05) if download_rate else None
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
        part = self.home / "part"
        part.touch()
        with (
            part.open("r+b") as file,
            self.host.join(
                transfer,
                file,
                lambda _: transfer["url"],
                pool=self.pool,
                cancelled=lambda: self.cancelled,
                on_progress=lambda *_: None,
                patience=patience,
            ) as joined,
        ):
            joined.fetch()
            part.rename(self.published)
            joined.seed()
            return joined.figures()

    def close(self) -> None:
        self.cancelled = True
        self.host.close()


@pytest.fixture
def origin() -> Iterator[CountingOrigin]:
    made = CountingOrigin(made_up_content(12 * MIB + 12345))
    yield made
    made.close()


@pytest.fixture
def new_host(tmp_path: Path) -> Iterator[Callable[..., LabHost]]:
    with ExitStack() as stack:

        def make(agent_id: str, **options: Any) -> LabHost:
            host = LabHost(agent_id, tmp_path / agent_id, **options)
            stack.callback(host.close)
            return host

        yield make
