from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto_cloud import MotoCloud
from tests.support.moto_locks import atomic_writes


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    """Callbacks are delivered by threads, so writes must be as atomic as DynamoDB's; a hanging receiver costs 1 s."""
    with MotoCloud(CALLBACK_TIMEOUT_SECONDS="1") as made, atomic_writes():
        yield made
