"""Measures swarms with real sockets, processes and TLS on this machine; the agents' own limits set the rates.

`python -m tests.bench.swarm [name …]` runs single scenarios.
"""

from __future__ import annotations

import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.bench import bittorrent, figures
from tests.bench.figures import Figure, few, skipped, table
from tests.support.swarm.dispatch import PlannedJob
from tests.support.swarm.fleet import Behaviour, FleetRun, SwarmFleet
from tests.support.swarm.lab import CountingOrigin, next_release, random_content

SECTION = "Swarm: hosts of a Job feed each other (this machine, TLS, real processes)"
MIB = 1 << 20
MBIT = 125_000.0
# Seconds for the processes to start.
LEAD = 3.0


@dataclass(frozen=True)
class Scale:
    hosts: int
    size: int
    rate: float
    spread: float = 5.0

    @property
    def alone(self) -> float:
        return self.size / self.rate


FULL = Scale(50, 64 * MIB, 20 * MBIT)
QUICK = Scale(20, 32 * MIB, 20 * MBIT, 3.0)


def p99(values: list[float]) -> float:
    return values[math.ceil(0.99 * len(values)) - 1] if values else math.inf


def median(values: list[float]) -> float:
    return values[len(values) // 2] if values else math.inf


def run_fleet(
    scale: Scale,
    behaviours: list[Behaviour] | None = None,
    *,
    origin_rate: float | None = None,
    direct: bool = False,
    processes: int = 5,
    during: Callable[[SwarmFleet], None] | None = None,
    content: bytes | None = None,
    old: bytes | None = None,
) -> tuple[FleetRun, list[str]]:
    with tempfile.TemporaryDirectory() as home:
        origin = CountingOrigin(content or random_content(scale.size), origin_rate)
        host_behaviours = behaviours or [Behaviour() for _ in range(scale.hosts)]
        processes = 1 if figures.smallest else processes
        fleet = SwarmFleet(
            Path(home),
            origin,
            host_behaviours,
            rate=scale.rate or None,
            spread=scale.spread,
            processes=processes,
            direct=direct,
            old=old,
            lead=_lead(),
        )
        try:
            with fleet.started():
                if during is not None:
                    during(fleet)
                fleet.wait(20 * scale.alone + 60 if scale.rate else 120)
        finally:
            origin.close()
        return fleet.run, fleet.wrong_files()


def _lead() -> float:
    return 0.0 if figures.smallest else LEAD


_FAULTS = "1 dead, 1 garbage, 1 stalling, 1 at 1/20 of the rate, 5 unreachable: origin"


def cpu(scale: Scale) -> Iterator[Figure]:
    """Four hosts, each in its own process, without rate limits: another host serves every byte received."""
    fast = Scale(4, 4 * scale.size, 0.0, 0.0)
    run, wrong = run_fleet(fast, processes=4)
    used = sum(result["cpu"] for result in run.results.values())
    name = "an agent's CPU for each GB received and served"
    yield Figure(SECTION, name, used / (run.received / 1e9), "s", 5.0, note="TLS, SHA-256 and the disk; aim 3.5")
    yield Figure(SECTION, "as fast as they can: wrong or missing files", len(wrong), "", 0)


def plain(scale: Scale) -> Iterator[Figure]:
    """Ours, and BitTorrent with the same file, rates and starts."""
    content = random_content(scale.size)
    run, wrong = run_fleet(scale, content=content)
    what = f"{scale.hosts} hosts, {scale.size // MIB} MiB"
    slowest = 2 * scale.alone + 5
    note = f"one host alone {scale.alone:.1f} s"
    cpu = bittorrent.cpu_of(list(run.results.values())) / (run.received / 1e9)
    yield Figure(SECTION, f"{what}: sent by the origin", run.egress, "file sizes", 2.0, note="aim 1.3")
    yield Figure(SECTION, f"{what}: median from a host's own start", median(run.seconds), "s", note=note)
    yield Figure(SECTION, f"{what}: p99 from a host's own start", p99(run.seconds), "s", slowest)
    yield Figure(SECTION, f"{what}: CPU for each GB received", cpu, "s", note="at the limit of the rates; with TLS")
    yield Figure(SECTION, f"{what}: wrong or missing files", len(wrong), "", 0)
    if reason := bittorrent.missing():
        yield skipped(SECTION, f"{what}, BitTorrent", reason)
        return
    starts = bittorrent.same_starts(scale.hosts, _lead(), scale.spread)
    for super_seeding in (False, True)[: few(100)]:
        theirs = bittorrent.run_torrent(content, starts, scale.rate, processes=few(5), super_seeding=super_seeding)
        name = f"{what}, BitTorrent{', super-seeding' if super_seeding else ''}"
        note = f"median {median(theirs.seconds):.1f} s, p99 {p99(theirs.seconds):.1f} s; CPU {theirs.cpu:.1f} s a GB"
        yield Figure(SECTION, f"{name}: sent by the seed", theirs.sent, "file sizes", note=note)
        yield Figure(SECTION, f"{name}: wrong or missing files", theirs.wrong, "", 0)
        # A tenth more is within what two runs of one of them differ by.
        yield Figure(SECTION, "ours to that: sent by the origin", run.egress / theirs.sent, "×", 1.1)
        yield Figure(SECTION, "ours to that: median", median(run.seconds) / median(theirs.seconds), "×", 1.1)
        note = "ours encrypts, and its digests are SHA-256"
        yield Figure(SECTION, "ours to that: CPU for each GB", cpu / theirs.cpu, "×", note=note)


def capped(scale: Scale) -> Iterator[Figure]:
    """The origin gives what five hosts can take."""
    run, wrong = run_fleet(scale, origin_rate=5 * scale.rate)
    direct = scale.hosts * scale.size / (5 * scale.rate)
    all_done = max(run.seconds, default=math.inf)
    note = f"{all_done:.0f} s; direct would take {direct:.0f} s"
    yield Figure(SECTION, "origin capped at 5 hosts' rate: time over direct's", all_done / direct, "", 1 / 3, note=note)
    yield Figure(SECTION, "origin capped: wrong or missing files", len(wrong), "", 0)


def faults(scale: Scale) -> Iterator[Figure]:
    # A smaller file, because a host at 1/20 of the others' rate needs twenty times as long in any case.
    smaller = replace(scale, size=3 * scale.size // 8)
    bad = [Behaviour("dead"), Behaviour("garbage"), Behaviour("stall"), Behaviour(slow=1 / 20)]
    blocked = [Behaviour("blocked") for _ in range(few(5))]
    honest = [Behaviour() for _ in range(scale.hosts - len(bad) - len(blocked))]
    run, wrong = run_fleet(smaller, bad + blocked + honest)
    reported = [result["figures"] for result in run.results.values() if result["figures"]]
    note = f"{sum(figure['bad_pieces'] for figure in reported)} bad pieces came and were thrown away"
    yield Figure(SECTION, _FAULTS, run.egress, "file sizes", 2.5, note="aim 1.6")
    yield Figure(SECTION, "the same: wrong or missing files", len(wrong), "", 0, note=note)


def killed(scale: Scale) -> Iterator[Figure]:
    """A fifth of the hosts are killed half-way and start again with what is on their disks."""

    def kill(fleet: SwarmFleet) -> None:
        time.sleep(_lead() + scale.spread + scale.alone / 2)
        fleet.kill_and_restart(0)

    run, wrong = run_fleet(scale, during=kill)
    yield Figure(SECTION, "a fifth killed half-way and restarted: origin", run.egress, "file sizes", 2.5)
    yield Figure(SECTION, "the same: wrong or missing files", len(wrong), "", 0)


def blocked(scale: Scale) -> Iterator[Figure]:
    """No peer is reachable: everything comes from the origin, a few seconds later."""
    hosts = min(8, scale.hosts)
    smaller = Scale(hosts, scale.size // 2, scale.rate, 1.0)
    run, wrong = run_fleet(smaller, [Behaviour("blocked") for _ in range(hosts)])
    direct, _ = run_fleet(smaller, direct=True)
    later = max(run.seconds, default=math.inf) - max(direct.seconds, default=0.0)
    yield Figure(SECTION, "all peer ports blocked: later than direct by", later, "s", 5.0, note="aim 3.5")
    yield Figure(SECTION, "all peer ports blocked: wrong or missing files", len(wrong), "", 0)


def delta(scale: Scale) -> Iterator[Figure]:
    """Every host has the previous release; three per cent of it are replaced by files of another length."""
    hosts = min(20, scale.hosts)
    smaller = replace(scale, hosts=hosts)
    before = random_content(scale.size)
    release = next_release(before, changed=0.03)
    run, wrong = run_fleet(smaller, content=release, old=before)
    reported = [result["figures"] for result in run.results.values() if result["figures"]]
    moved = sum(figure["origin_bytes"] + figure["peer_bytes"] for figure in reported) / (
        len(release) * max(1, len(reported))
    )
    what = f"{hosts} hosts with the release before, 3 % of it new"
    slowest = max(run.seconds, default=math.inf)
    note = f"slowest host {slowest:.1f} s; alone and without the old one {smaller.alone:.1f} s"
    yield Figure(SECTION, f"{what}: moved to each host", moved, "file sizes", 0.1, note=note)
    yield Figure(SECTION, f"{what}: sent by the origin", run.egress, "file sizes", 0.2)
    yield Figure(SECTION, f"{what}: wrong or missing files", len(wrong), "", 0)


def calls(_: Scale) -> Iterator[Figure]:
    """Counts the calls of the product's planner over a table in memory."""
    hosts = few(10_000)
    planned = PlannedJob(hosts)
    name = "AWS calls to plan a Job of 10,000 hosts, for each host"
    yield Figure(SECTION, name, planned.calls.total() / hosts, "", 0.05, note="aim 0.012")


SCENARIOS = {
    "plain": plain,
    "cpu": cpu,
    "capped": capped,
    "faults": faults,
    "killed": killed,
    "blocked": blocked,
    "delta": delta,
    "calls": calls,
}


def measure(quick: bool) -> Iterator[Figure]:
    scale = QUICK if quick else FULL
    if figures.smallest:
        scale = Scale(7, MIB // 4, 20 * MBIT, 0.0)
    for name, scenario in SCENARIOS.items():
        if not quick or name in ("plain", "cpu", "faults", "delta", "calls"):
            yield from scenario(scale)


def main() -> int:
    wanted = sys.argv[1:] or list(SCENARIOS)
    scale = QUICK if "quick" in wanted else FULL
    figures = [figure for name in wanted if name in SCENARIOS for figure in SCENARIOS[name](scale)]
    sys.stdout.write(table(figures) + "\n")
    return int(any(not figure.holds for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
