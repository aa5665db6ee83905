"""Releases with real agents on the deployed stack. `make bench SECTIONS=releases_live` plays the same with twenty."""

from __future__ import annotations

from pathlib import Path

from tests.bench.figures import table
from tests.bench.releases import figures_of, reconnecting
from tests.support.deployed import Deployed, DeployedProject
from tests.support.release_lab import THIRD, lab, play

HOSTS = 4


def test_hosts_converge_return_join_and_take_a_bad_revision_back(
    deployed: Deployed, project: DeployedProject, tmp_path: Path
) -> None:
    with lab(deployed, project, tmp_path, HOSTS) as world:
        took = play(world)
        assert table(figures_of(took, HOSTS)).count("real agents") == len(took)
        assert world.calls_a_host <= 5, world.calls
        assert [world.content(name) for name in world.names] == [THIRD] * HOSTS
        failed = project.http("GET", f"/v1/agents/{world.sick}/files").json()["items"]
        assert [(file["path"], file["revision"]) for file in failed] == [
            ("/etc/app/app.conf", world.shown()["revision"])
        ]
        assert failed[0]["checked_at"]
        assert "functions at once" in table(reconnecting(world))
