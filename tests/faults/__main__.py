"""`python -m tests.faults`: runs every scenario in every mode at all of its points, and keeps a table of the outcomes.

    python -m tests.faults --scenario ingest --mode stale --mode lost   # some pairs; run it again to continue
    python -m tests.faults --jobs 2                                     # everything, two scenarios at a time
    python -m tests.faults --show                                       # the table so far

A point that is in the table file (`--table`) is not run again; `--again` repeats those that had a fault. A mode is one
of `modes`, one of `conditions`, which hold for a whole run, or `twice`: every message and task is delivered twice.
"""

from __future__ import annotations

import argparse
import gc
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
from tests.faults.conditions import ALL_CONDITIONS, CONDITIONS
from tests.faults.modes import CRASHES, HARSH, LATE
from tests.faults.scenarios import ALL
from tests.faults.sweep import Scenario, delay_at, play
from tests.faults.table import Row, Table, commit

TWICE = "twice"
_CONDITIONS = {**CONDITIONS, "storm": ALL_CONDITIONS}
MODES = (*HARSH, LATE, *CRASHES, TWICE, *_CONDITIONS)


def sweep_pair(scenario: Scenario, mode: str, table: Table, *, again: bool = False) -> int:
    """Runs the points that the table lacks. Returns how many of them had a fault."""
    known = {row.at: row for row in table.rows.values() if (row.scenario, row.mode) == (scenario.name, mode)}
    if known and len(known) >= next(iter(known.values())).of and not (again and any(r.fault for r in known.values())):
        return 0
    if mode == TWICE or mode in _CONDITIONS:
        points, total = [1], 1
    else:
        calls = play(scenario, None, mode)
        points, total = calls.points(mode), len(calls.made)
    if not points or (mode == LATE and not scenario.works_alone):
        table.add(Row(scenario.name, mode, 0, 0, commit=commit()))
        return 0
    # The models of moto and botocore stay for ever: without this, each full garbage collection looks at all of them.
    gc.collect()
    gc.freeze()
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
    """Returns a description of the fault; empty if there was none."""
    try:
        if mode == TWICE:
            play(scenario, repeat=random.Random(scenario.name))
        elif mode in _CONDITIONS:
            play(scenario, conditions=_CONDITIONS[mode])
        else:
            play(scenario, at, mode, delay=delay_at(at, total))
    except AssertionError as error:
        return str(error) or "AssertionError"
    return ""


def _chosen(arguments: argparse.Namespace) -> Iterator[tuple[Scenario, str]]:
    for scenario in ALL:
        if not arguments.scenario or scenario.name in arguments.scenario:
            for mode in arguments.mode or MODES:
                yield scenario, mode


def _in_processes(arguments: argparse.Namespace) -> int:
    """Runs each scenario in its own process, because moto has one state per process."""

    def run(name: str) -> int:
        command = [sys.executable, "-m", "tests.faults", "--scenario", name, "--table", str(arguments.table)]
        command += [word for mode in arguments.mode or () for word in ("--mode", mode)]
        return subprocess.run([*command, *(["--again"] if arguments.again else [])], check=False).returncode

    with ThreadPoolExecutor(arguments.jobs) as pool:
        return max(pool.map(run, dict.fromkeys(scenario.name for scenario, _ in _chosen(arguments))), default=0)


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults")
    parser.add_argument("--scenario", action="append", choices=[scenario.name for scenario in ALL])
    parser.add_argument("--mode", action="append", choices=MODES)
    parser.add_argument("--table", type=Path, default=Path(".local/faults.jsonl"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="repeat points that had a fault")
    parser.add_argument("--show", action="store_true", help="print the table and run nothing")
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
