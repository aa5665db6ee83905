"""`make bench` prints the figures and writes them to the page; QUICK=1 shortens it, SECTIONS=calls,money selects."""

from __future__ import annotations

import os
import platform
import sys
import tempfile
import time
import traceback
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
    downloads,
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
from tests.bench.figures import Figure, save, table, write_page
from tests.support.deployed import Deployed, deployed_at
from tests.support.template import ROOT

RESULTS = ROOT / ".local" / "bench.json"
PAGE = Path(__file__).with_name("README.md")


def _deployed(cloud: Deployed, quick: bool) -> Iterator[Figure]:
    yield from latency.measure(cloud, quick)
    yield from load.measure(cloud, quick)


# Sections that need the deployed stack. tests/e2e runs them on its own.
ON_CLOUD: dict[str, Callable[[Deployed, bool], Iterator[Figure]]] = {
    "deployed": _deployed,
    "first_paint": first_paint.measure,
    "fleet_live": fleet_live.measure,
    "releases_live": releases.live,
}


def _on_cloud(name: str) -> Callable[[bool], Iterator[Figure]]:
    def measure(quick: bool) -> Iterator[Figure]:
        params = fleet_live.PARAMS if name == "fleet_live" else {}
        with tempfile.TemporaryDirectory() as home, deployed_at(Path(home), **params) as cloud:
            yield from ON_CLOUD[name](cloud, quick)

    return measure


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
    "cold": _cold,
    "releases": releases.measure,
    "runners": runners.measure,
    "admission": admission.measure,
    "small_batches": small_batches.measure,
    "download": downloads.measure,
    "swarm": swarm.measure,
    **{name: _on_cloud(name) for name in ON_CLOUD},
}


def main() -> int:
    quick = bool(os.environ.get("QUICK"))
    sections = os.environ.get("SECTIONS", ",".join(SECTIONS)).split(",")
    os.environ.setdefault("POWERTOOLS_LOG_LEVEL", "CRITICAL")
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    figures: list[Figure] = []
    failed: list[str] = []
    for name in sections:
        began, load_before = time.monotonic(), os.getloadavg()[0]
        try:
            found = list(SECTIONS[name](quick))
        # The others are worth having too.
        except (Exception, SystemExit):
            traceback.print_exc()
            failed.append(name)
            continue
        took = time.monotonic() - began
        sys.stderr.write(f"  ✓ {name:<13} {took:5.0f} s\n")
        figures += found
        size = "`QUICK=1`" if quick else "in full"
        how = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {size}, {took:.0f} s; {machine}; load before {load_before:.1f}."
        if found:
            write_page(PAGE, name, how, found, list(SECTIONS))
    about = {"date": datetime.now(UTC).date().isoformat(), "machine": machine}
    sys.stdout.write(f"{about['date']}, {about['machine']}\n\n{table(figures)}\n")
    save(figures, RESULTS, about)
    missed = [figure.name for figure in figures if not figure.holds]
    if missed:
        sys.stdout.write(f"\nBelow the bar: {'; '.join(missed)}\n")
    if failed:
        sys.stdout.write(f"\nFailed: {', '.join(failed)}\n")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
