"""Releases with real agents on the deployed stack. `make bench SECTIONS=releases_live` plays the same with twenty."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from local.demo import releases as demo
from local.demo.tour import guided
from tests.bench.figures import table
from tests.bench.releases import figures_of, reconnecting
from tests.support.deployed import Deployed, DeployedProject
from tests.support.patience import idle_clock
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


def test_demo_shows_a_bad_release_that_takes_itself_back(deployed: Deployed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step of `make demo` as people run it: its own hosts, hook and texts."""
    told: list[str] = []
    monkeypatch.setattr("local.demo.guide.say", told.append)
    # Its limits are for people who wait, not for a machine that does much else.
    monkeypatch.setattr("local.demo.guide.time", SimpleNamespace(monotonic=idle_clock, sleep=time.sleep))
    with guided(deployed.up) as guide:
        outcome = demo.release(guide)
        shown = guide.client.releases.get("app")
    assert (shown["status"], shown["withdrawn"], shown["revision"]) == ("rolled_back", [2], 3)
    assert shown["counts"]["current"] == len(demo.HOSTS)
    assert outcome == "a bad revision took itself back: 4 hosts have the good one, as revision 3"
    assert "bad port" in "\n".join(told), told
