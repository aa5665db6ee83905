"""Hosts in processes of their own, with limits on their lines and every kind of trouble at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.swarm.fleet import Behaviour, SwarmFleet
from tests.support.swarm.lab import CountingOrigin, made_up_content

MIB = 1 << 20


@pytest.mark.slow
def test_fleet_with_dead_lying_stalling_unreachable_and_killed_hosts_gets_the_file(tmp_path: Path) -> None:
    origin = CountingOrigin(made_up_content(16 * MIB))
    trouble = [Behaviour("dead"), Behaviour("garbage"), Behaviour("stall"), Behaviour("blocked"), Behaviour("blocked")]
    fleet = SwarmFleet(
        tmp_path, origin, [*trouble, *(Behaviour() for _ in range(13))], rate=2.5e6, spread=2.0, processes=3
    )
    try:
        with fleet.started():
            time.sleep(8.0)
            restarted = fleet.kill_and_restart(1)
            run = fleet.wait(150)
    finally:
        origin.close()
    assert fleet.wrong_files() == []
    assert origin.egress <= 2.5
    told = {name: result["figures"] for name, result in run.results.items() if result["figures"]}
    # What they had before they were killed they fetch no second time.
    assert restarted
    assert all(told[name]["peer_bytes"] < 16 * MIB for name in restarted if name in told)
    assert {peer for one in told.values() for peer in one["bad_peers"]} <= {"host-01"}
