"""`python -m tests.faults`: plays every mode of every scenario at all of its points, and keeps a table of the outcomes.

    python -m tests.faults --scenario ingest --mode stale --mode lost   # some pairs; repeat to go on where it stopped
    python -m tests.faults --jobs 2                                     # everything, two pairs at a time
    python -m tests.faults --show                                       # the table as far as it is known

A point that the file lists (`--table`) is not played again; `--again` plays those that had a fault. Names are matched
whole. A mode is one of `modes`, a weather that holds for a whole run, or `twice`: every message and task comes twice.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.faults import conftest as _quiet  # noqa: F401
from tests.faults.modes import CRASHES, HARSH, LATE
from tests.faults.scenarios import ALL
from tests.faults.sweep import Scenario, nap_at, play
from tests.faults.table import Row, Table, commit
from tests.faults.weather import STORM, WEATHERS

TWICE = "twice"
_WEATHERS = {**WEATHERS, "storm": STORM}
MODES = (*HARSH, LATE, *CRASHES, TWICE, *_WEATHERS)


def sweep_pair(scenario: Scenario, mode: str, table: Table, *, again: bool = False) -> int:
    """Plays the points that the table lacks. Returns how many of them were not survived."""
    known = {row.at: row for row in table.rows.values() if (row.scenario, row.mode) == (scenario.name, mode)}
    if known and len(known) >= next(iter(known.values())).of and not (again and any(r.fault for r in known.values())):
        return 0
    if mode == TWICE or mode in _WEATHERS:
        points, total = [1], 1
    else:
        calls = play(scenario, None, mode)
        points, total = calls.points(mode), len(calls.made)
    if not points or (mode == LATE and not scenario.works_alone):
        table.add(Row(scenario.name, mode, 0, 0, commit=commit()))
        return 0
    faults = 0
    for at in points:
        if at in known and not (again and known[at].fault):
            continue
        began = time.monotonic()
        fault = _play(scenario, mode, at, total)
        took = round(time.monotonic() - began, 2)
        table.add(Row(scenario.name, mode, at, len(points), fault, took, commit()))
        faults += bool(fault)
        if fault:
            print(f"FAULT {scenario.name}, {mode}, point {at}: {fault}", flush=True)
    print(f"{scenario.name:<24} {mode:<14} {len(points)} points, {faults} faults now", flush=True)
    return faults


def _play(scenario: Scenario, mode: str, at: int, total: int) -> str:
    """Describes the fault; empty if the point was survived."""
    try:
        if mode == TWICE:
            play(scenario, repeat=random.Random(scenario.name))
        elif mode in _WEATHERS:
            play(scenario, weather=_WEATHERS[mode])
        else:
            play(scenario, at, mode, nap=nap_at(at, total))
    except AssertionError as error:
        return str(error) or "AssertionError"
    return ""


def _chosen(arguments: argparse.Namespace) -> Iterator[tuple[Scenario, str]]:
    for mode in arguments.mode or MODES:
        for scenario in ALL:
            if not arguments.scenario or scenario.name in arguments.scenario:
                yield scenario, mode


def _in_processes(arguments: argparse.Namespace) -> int:
    """Runs each pair in a process of its own: moto keeps one state for a process."""

    def run(pair: tuple[Scenario, str]) -> int:
        command = [sys.executable, "-m", "tests.faults", "--scenario", pair[0].name, "--mode", pair[1]]
        command += ["--table", str(arguments.table), *(["--again"] if arguments.again else [])]
        return subprocess.run(command, check=False).returncode

    with ThreadPoolExecutor(arguments.jobs) as pool:
        return max(pool.map(run, list(_chosen(arguments))), default=0)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in ALL])
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--table", type=Path, default=Path(".local/faults.jsonl"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="play points again that had a fault")
    parser.add_argument("--show", action="store_true", help="print the table and play nothing")
    arguments = parser.parse_args(given)
    failed = 0
    if not arguments.show and arguments.jobs > 1:
        failed = _in_processes(arguments)
    elif not arguments.show:
        table = Table(arguments.table)
        for scenario, mode in _chosen(arguments):
            failed += sweep_pair(scenario, mode, table, again=arguments.again)
    if arguments.show or arguments.jobs > 1:
        table = Table(arguments.table)
        print(table.shown([scenario.name for scenario in ALL], arguments.mode or MODES))
        failed = len(table.faults())
        for row in table.faults():
            print(f"FAULT {row.scenario}, {row.mode}, point {row.at}: {row.fault}")
    return 1 if failed else 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    os.environ.setdefault("POWERTOOLS_METRICS_DISABLED", "true")
    sys.exit(main(sys.argv[1:]))
