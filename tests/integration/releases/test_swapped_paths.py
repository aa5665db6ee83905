"""Releases that took each other's paths while a host was down: the API allows it, and the host's agent converges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_disk import Disk
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tests.support.releases import Host, ReleaseWorld
from tests.unit.client.fakes import ME

CONTENTS = {"app": (b"app one" * 99, b"app two" * 99, b"app three" * 99), "web": (b"web one" * 99, b"web two" * 99)}


class ApiDisk(Disk):
    """The real agent's releases on one host, which ask the API; contents come without their transfers."""

    def __init__(self, home: Path, world: ReleaseWorld, host: Host) -> None:
        super().__init__(home)
        self.world, self.host = world, host

    def round(self, *brought: tuple[bytes, str]) -> None:
        with self.life() as host:
            for content, name in brought:
                self.bring(host, content, name)
            host.client.agents.ask = self._ask  # type: ignore[assignment, method-assign]
            host._round()

    def _ask(self, agent: str, sent: list[dict[str, Any]], has: list[str]) -> list[dict[str, Any]]:
        body = {"releases": sent, "has": has}
        answer = self.world.cloud.http("PUT", f"/v1/agents/{self.host.name}/releases", key=self.host.key, json=body)
        assert answer.status == 200, answer.body
        return list(answer.json()["items"])


@pytest.fixture
def world(cloud: MotoCloud) -> ReleaseWorld:
    return ReleaseWorld(Fleet(cloud))


def put(world: ReleaseWorld, release: str, content: bytes, name: str) -> int:
    signature = world.fleet.store(content)
    file = {"file_path": f"/conf/{name}", "signature": signature, "target_file_dir": "/data", "target_user": ME}
    body = {"files": [file], "targets": {"groups": ["web"]}}
    return world.cloud.http("PUT", f"/v1/releases/{release}", key=world.fleet.project.key, json=body).status


def converged(world: ReleaseWorld, up: Host, release: str) -> None:
    for _ in range(5):
        world.round(up, name=release)
        if world.show(release)["status"] == "converged":
            return
    raise AssertionError(world.show(release))


def test_host_that_was_down_while_releases_swapped_converges(world: ReleaseWorld, tmp_path: Path) -> None:
    up, down = world.add_hosts("up", "down")
    disk = ApiDisk(tmp_path, world, down)
    (one, two, three), (web_one, web_two) = CONTENTS["app"], CONTENTS["web"]
    assert put(world, "app", one, "a") == put(world, "web", web_one, "b") == 201
    disk.round((one, "a"), (web_one, "b"))
    for release in ("app", "web"):
        converged(world, up, release)
    assert disk.contents() == [one, web_one]

    # It goes down. The others give up one path, and then take each other's.
    world.cloud.clock.advance(1200)
    world.poll(up)
    assert put(world, "web", web_two, "a") == 409, "a path that another release has now"
    assert put(world, "app", two, "c") == 201
    converged(world, up, "app")
    assert put(world, "web", web_two, "a") == 201
    converged(world, up, "web")
    assert put(world, "app", three, "b") == 201
    converged(world, up, "app")

    disk.round((three, "b"), (web_two, "a"))
    assert disk.contents() == [web_two, three]
    for release in ("app", "web"):
        shown = world.shown_hosts(release)["down"]
        assert (shown["state"], shown["revision"]) == ("current", world.show(release)["revision"])
