"""Hosts in separate processes, with rate limits and every kind of trouble at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from local.launcher import processes_per_core
from tests.support.patience import idle_clock
from tests.support.swarm.fleet import Behaviour, SwarmFleet
from tests.support.swarm.lab import CountingOrigin, random_content
from tidegate.distribution.swarm import PATIENCE

MIB = 1 << 20


@pytest.mark.slow
def test_fleet_with_bad_blocked_and_killed_hosts_gets_the_file(tmp_path: Path) -> None:
    origin = CountingOrigin(random_content(16 * MIB))
    trouble = [Behaviour("dead"), Behaviour("garbage"), Behaviour("stall"), Behaviour("blocked"), Behaviour("blocked")]
    hosts = [*trouble, *(Behaviour() for _ in range(13))]
    # On a busy machine every peer is slow, and hosts go to S3: the lines are as much slower, the hosts more patient.
    busy = min(10.0, processes_per_core())
    fleet = SwarmFleet(
        tmp_path,
        origin,
        hosts,
        rate=2.5e6 / busy,
        spread=2.0 * busy,
        processes=3,
        lead=3.0 * busy,
        patience=PATIENCE * busy,
    )
    try:
        with fleet.started():
            deadline = idle_clock() + 60 * busy
            while fleet.bytes_on_disk("host-07") < 3 * MIB and idle_clock() < deadline:
                time.sleep(0.1)
            kept = fleet.kill_and_restart(1)
            run = fleet.wait(150 * busy)
    finally:
        origin.close()
    assert fleet.wrong_files() == []
    assert origin.egress <= 2.5
    figures = {name: result["figures"] for name, result in run.results.items() if result["figures"]}
    assert any(kept.values())
    # Pieces that were on disk when the hosts were killed are not fetched again.
    assert all(figures[name]["peer_bytes"] <= 16 * MIB - kept[name] for name in kept if name in figures)
    assert {peer for one in figures.values() for peer in one["bad_peers"]} <= {"host-01"}
