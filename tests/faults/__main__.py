"""`python -m tests.faults [words]`: a table of modes by scenarios, each pair at all of its points.

A row is printed as soon as its pair is done. A word chooses the pairs whose scenario or mode contains it; FAULTS_SKIP
names a file of rows that are done already.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.faults import conftest as _quiet  # noqa: F401
from tests.faults.modes import CRASHES, HARSH, LATE
from tests.faults.scenarios import ALL
from tests.faults.sweep import Scenario, play, sweep


def _pairs(words: list[str]) -> Iterator[tuple[Scenario, str]]:
    for mode in (*HARSH, LATE, *CRASHES):
        for scenario in ALL:
            if mode == LATE and not scenario.works_alone:
                continue
            if not words or any(word in scenario.name or word == mode for word in words):
                yield scenario, mode


def _row(scenario: Scenario, mode: str) -> str:
    return f"{scenario.name:<36} {mode:<12}"


def main(words: list[str]) -> int:
    done = Path(os.environ["FAULTS_SKIP"]).read_text() if "FAULTS_SKIP" in os.environ else ""
    faults: list[str] = []
    for scenario, mode in _pairs(words):
        if _row(scenario, mode) in done:
            continue
        began = time.monotonic()
        outcome = sweep(scenario, mode, 0, counted=play(scenario, None, mode))
        print(f"{_row(scenario, mode)} {outcome.row:<32} {time.monotonic() - began:5.0f} s", flush=True)
        for fault in outcome.faults:
            print(f"  FAULT {fault}", flush=True)
        faults += outcome.faults
    return 1 if faults else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    sys.exit(main(sys.argv[1:]))
