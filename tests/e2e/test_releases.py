"""Releases with real agents on the deployed stack: hosts that are up, that were down, and a revision that fails."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.shell import Shell

V1, V2, BAD = b"port = 80\n", b"port = 81\n", b"port = bad\n"


@contextmanager
def agent(deployed: Deployed, key: str, home: Path, agent_id: str) -> Iterator[None]:
    """A real agent on a host that is a folder. Its hook refuses files with the word `bad`."""
    (home / "etc").mkdir(parents=True, exist_ok=True)
    hook = home / "reload"
    hook.write_text(f"#!/bin/sh\n! grep bad {home}/etc/app/app.conf\n")
    hook.chmod(0o755)
    words = ("agent", "--agent-id", agent_id, "--root", str(home), "--allow-dir", "/etc")
    process = Shell(home, deployed.api_url).start(*words, "--allow-hook", f"reload={hook}", key=key)
    try:
        yield
    finally:
        process.terminate()
        process.communicate(timeout=60)


def put(project: DeployedProject, content: bytes) -> int:
    file = {
        "file_path": "/conf/app.conf",
        "signature": hashlib.sha256(content).hexdigest(),
        "target_file_dir": "/etc/app",
        "target_user": "root",
    }
    body = {"files": [file], "targets": {"agents": ["r-1", "r-2"]}, "hook": "reload"}
    answer = project.http("PUT", "/v1/releases/app", json=body)
    assert answer.status == 201, answer.body
    return int(answer.json()["revision"])


def release(project: DeployedProject) -> dict[str, Any]:
    return dict(project.http("GET", "/v1/releases/app").json())


def test_hosts_converge_return_and_take_a_bad_revision_back(
    deployed: Deployed, project: DeployedProject, tmp_path: Path
) -> None:
    for stored in (V1, V2, BAD):
        deployed.store(project, "/conf/app.conf", stored, hashlib.sha256(stored).hexdigest())
    homes = {name: tmp_path / name for name in ("r-1", "r-2")}
    keys = {name: project.agent_key(name) for name in homes}

    def content(name: str) -> bytes | None:
        path = homes[name] / "etc/app/app.conf"
        return path.read_bytes() if path.exists() else None

    with agent(deployed, keys["r-1"], homes["r-1"], "r-1"):
        with agent(deployed, keys["r-2"], homes["r-2"], "r-2"):
            put(project, V1)
            until(lambda: [content(name) for name in homes], lambda found: found == [V1, V1], 90)
            until(lambda: release(project), lambda shown: shown["status"] == "converged", 60)

        # r-2 is down while the second revision comes.
        put(project, V2)
        until(lambda: content("r-1"), lambda found: found == V2, 90)
        assert content("r-2") == V1
        with agent(deployed, keys["r-2"], homes["r-2"], "r-2"):
            until(lambda: content("r-2"), lambda found: found == V2, 90)
            until(lambda: release(project), lambda shown: shown["stable"] == 2, 60)

            put(project, BAD)
            shown = until(lambda: release(project), lambda shown: shown["status"] == "rolled_back", 90)
            assert (shown["revision"], shown["withdrawn"]) == (4, [3])
            until(lambda: release(project), lambda shown: shown["counts"]["current"] == 2, 90)
            assert [content(name) for name in homes] == [V2, V2]
            [listed] = project.http("GET", "/v1/agents/r-2/files").json()["items"]
            assert listed["checked_at"]
            expected = {"path": "/etc/app/app.conf", "sha256": hashlib.sha256(V2).hexdigest(), "release": "app"}
            assert listed.items() >= (expected | {"revision": 4}).items()
