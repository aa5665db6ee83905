from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.moto.cloud import MotoCloud


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    """A receiver that hangs costs a test one second, not ten."""
    with MotoCloud(CALLBACK_TIMEOUT_SECONDS="1") as made:
        yield made
