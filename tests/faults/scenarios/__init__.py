"""What the crash sweep plays."""

from __future__ import annotations

from tests.faults.scenarios import distribution, upload
from tests.faults.sweep import Scenario

ALL: tuple[Scenario, ...] = (upload.SCENARIO, distribution.SCENARIO)
