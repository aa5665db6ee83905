"""`make bench` prints the table of figures; QUICK=1 shortens it, SECTIONS=calls,money selects sections."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from tests.bench import (
    admission,
    bench_cells,
    bench_export,
    bench_ranges,
    bench_s3_calls,
    calls,
    ceiling,
    cold_start,
    first_paint,
    fleet,
    fleet_live,
    latency,
    load,
    money,
    releases,
    runners,
    small_batches,
    swarm,
    whole_cost,
)
from tests.bench.figures import Figure, save, table
from tests.support.deployed import deployed_at
from tests.support.template import ROOT

RESULTS = ROOT / ".local" / "bench.json"


def _deployed(quick: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as home, deployed_at(Path(home)) as cloud:
        yield from latency.measure(cloud, quick)
        yield from load.measure(cloud, quick)


def _first_paint(quick: bool) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as home, deployed_at(Path(home)) as cloud:
        yield from first_paint.measure(cloud, quick)


def _cold(quick: bool) -> Iterator[Figure]:
    yield from cold_start.measure(quick)
    # The output of `make build` for AWS, otherwise that of `make build-test` for this machine.
    built = (ROOT / ".aws-sam" / "build", ROOT / ".local" / "build" / "out")
    yield from cold_start.sizes(next((folder for folder in built if folder.is_dir()), built[0]))


SECTIONS: dict[str, Callable[[bool], Iterator[Figure]]] = {
    "cells": bench_cells.measure,
    "ranges": bench_ranges.measure,
    "s3_calls": bench_s3_calls.measure,
    "export": bench_export.measure,
    "calls": calls.measure,
    "ceiling": ceiling.measure,
    "money": money.measure,
    "whole_cost": whole_cost.measure,
    "fleet": fleet.measure,
    "fleet_live": fleet_live.measure,
    "cold": _cold,
    "releases": releases.measure,
    "runners": runners.measure,
    "admission": admission.measure,
    "small_batches": small_batches.measure,
    "swarm": swarm.measure,
    "deployed": _deployed,
    "first_paint": _first_paint,
}


def main() -> int:
    quick = bool(os.environ.get("QUICK"))
    sections = os.environ.get("SECTIONS", ",".join(SECTIONS)).split(",")
    os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
    figures: list[Figure] = []
    for name in sections:
        began = time.monotonic()
        figures += SECTIONS[name](quick)
        sys.stderr.write(f"  ✓ {name:<10} {time.monotonic() - began:5.0f} s\n")
    about = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}",
    }
    sys.stdout.write(f"{about['date']}, {about['machine']}\n\n{table(figures)}\n")
    save(figures, RESULTS, about)
    missed = [figure.name for figure in figures if not figure.holds]
    if missed:
        sys.stdout.write(f"\nBelow the bar: {'; '.join(missed)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
