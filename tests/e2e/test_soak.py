"""One minute of `make soak`: all capabilities at once under faults. A longer run is a matter of hours, not of tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.soak.__main__ import soak

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


@pytest.mark.timeout(1800)
def test_a_minute_under_faults_keeps_every_promise(tmp_path: Path) -> None:
    lines: list[str] = []
    broken = soak(tmp_path, 1, int(os.environ.get("SEED", "7")), 3, lines.append)
    assert not any(broken.values()), "\n".join(lines)
