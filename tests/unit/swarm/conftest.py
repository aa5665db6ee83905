from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.swarm.lab import CountingOrigin, random_content
from tests.support.swarm.worker import LabHost

__all__ = ["LabHost"]
MIB = 1 << 20


@pytest.fixture
def origin() -> Iterator[CountingOrigin]:
    made = CountingOrigin(random_content(12 * MIB + 12345))
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
