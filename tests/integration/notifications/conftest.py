from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto.cloud import MotoCloud


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    """Shortens the time-out, so that a receiver that hangs costs a test one second instead of ten."""
    with MotoCloud(CALLBACK_TIMEOUT_SECONDS="1") as made:
        yield made
