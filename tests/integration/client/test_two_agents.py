"""Two real agent processes with one id, and the real API: a cloned host is refused, and gets and reports no file."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.support.fleet import CONTENT, Fleet
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import until

AGENT = "h-1"


class Bridge:
    """Serves the API over HTTP, one request at a time. Links lead back to it, because S3 is only in this process."""

    def __init__(self, cloud: MotoCloud) -> None:
        self.cloud = cloud
        self.lock = threading.Lock()
        self.url = ""

    def route(self, handler: Handler) -> None:
        parts, body = urlsplit(handler.path), handler.body()
        if parts.path == "/content":
            handler.answer(200, CONTENT)
            return
        headers = {"X-Tidegate-Instance": handler.headers.get("X-Tidegate-Instance", "")}
        with self.lock:
            answer = self.cloud.http(
                handler.command,
                parts.path,
                key=(handler.headers.get("Authorization") or "").removeprefix("Bearer "),
                query=dict(parse_qsl(parts.query)),
                json=json.loads(body) if body else None,
                headers=headers,
            )
        found = answer.json()
        for item in found.get("items", ()) if isinstance(found, dict) else ():
            item["url"] = f"{self.url}/content"
        handler.answer(answer.status, json.dumps(found).encode())


@pytest.fixture
def fleet(cloud: MotoCloud) -> Fleet:
    return Fleet(cloud)


@pytest.fixture
def bridge(fleet: Fleet) -> Iterator[Bridge]:
    bridge = Bridge(fleet.cloud)
    with serve(bridge.route) as port:
        bridge.url = f"http://127.0.0.1:{port}"
        yield bridge


@pytest.fixture
def start(fleet: Fleet, bridge: Bridge, tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    key = fleet.key_of(AGENT)

    def launch(host: str) -> subprocess.Popen[str]:
        root = tmp_path / host
        root.mkdir(exist_ok=True)
        words = ["--agent-id", AGENT, "--root", str(root), "--state-dir", str(state_of(tmp_path, host)), "--no-push"]
        command = [sys.executable, "-m", "tidegate_client", "agent", *words]
        environment = os.environ | {
            "TIDEGATE_API_URL": bridge.url,
            "TIDEGATE_KEY": key,
            "XDG_STATE_HOME": str(tmp_path),
            "XDG_CONFIG_HOME": str(tmp_path),
        }
        started.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield launch
    for process in started:
        process.kill()
        process.communicate()


def state_of(home: Path, host: str) -> Path:
    return home / f"{host}.state"


def shown(fleet: Fleet, bridge: Bridge) -> dict[str, Any]:
    with bridge.lock:
        items = fleet.get("/v1/agents")["items"]
    return dict(items[0]) if items else {}


def instance(fleet: Fleet, bridge: Bridge) -> str | None:
    with bridge.lock:
        found = fleet.cloud.app.distribution.fleet_store.get(fleet.project.id, AGENT)
    return found.instance if found else None


def test_cloned_host_stops_and_the_first_delivers(
    fleet: Fleet, bridge: Bridge, start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    first = start("first")
    until(lambda: instance(fleet, bridge) is not None)
    of_first = instance(fleet, bridge)
    # The image is cloned with the state directory of the running agent.
    shutil.copytree(state_of(tmp_path, "first"), state_of(tmp_path, "clone"))
    clone = start("clone")
    until(lambda: instance(fleet, bridge) != of_first)
    with bridge.lock:
        fleet.cloud.clock.advance(40)

    _, said = clone.communicate(timeout=60)

    assert clone.returncode == 5, said
    assert "agent_duplicate" in said
    assert instance(fleet, bridge) == of_first
    assert shown(fleet, bridge)["duplicate_at"] is not None

    # The clone's service is started again, and is refused at once.
    again = start("clone")
    assert "agent_duplicate" in again.communicate(timeout=60)[1]

    me = pwd.getpwuid(os.geteuid()).pw_name
    with bridge.lock:
        job_id = fleet.submit(AGENT, target_user=me, target_file_dir="/in")["job_id"]
        fleet.run_until_dispatched(job_id)
    placed = tmp_path / "first" / "in" / "app.bin"
    until(placed.exists)

    def ended() -> bool:
        with bridge.lock:
            fleet.step("poll_transfer", job_id)
            return fleet.states(job_id) == {AGENT: "Success"}

    until(ended)
    assert placed.read_bytes() == CONTENT
    assert not any((tmp_path / "clone").iterdir())
    assert first.poll() is None


def test_killed_and_restarted_agent_is_not_refused(
    fleet: Fleet, bridge: Bridge, start: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    before = None
    for _ in range(3):
        process = start("first")
        until(lambda: instance(fleet, bridge) not in (None, before))  # noqa: B023
        before = instance(fleet, bridge)
        process.kill()
        process.wait()
        with bridge.lock:
            fleet.cloud.clock.advance(40)
    last = start("first")
    until(lambda: instance(fleet, bridge) != before)

    assert shown(fleet, bridge)["duplicate_at"] is None
    assert last.poll() is None
