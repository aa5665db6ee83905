"""The `tidegate` command as users run it, in processes, against the deployed stack."""

from __future__ import annotations

import getpass
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployed import Deployed
from tests.support.shell import Shell

pytestmark = pytest.mark.e2e

NAME = ["--biz-id", "2", "--app-id", "3"]


@pytest.fixture
def stored(shell: Shell, project_id: str) -> tuple[dict[str, Any], bytes]:
    content = os.urandom(20 * 1024 * 1024)
    (shell.home / "发布.bin").write_bytes(content)
    record = shell.json("file", "put", "发布.bin", *NAME, "--file-path", "/releases/发布.bin")
    return record, content


@pytest.fixture
def agents(shell: Shell, deployed: Deployed, project_id: str) -> Iterator[dict[str, Path]]:
    """Runs two agent processes, each with its own root folder, and ends them by SIGTERM."""
    roots, processes = {}, []
    for agent_id in ("host-1", "host-2"):
        roots[agent_id] = shell.home / agent_id
        roots[agent_id].mkdir()
        key = deployed.make_key(project_id, ["agent"], agent_id)["key"]
        words = ["agent", "--agent-id", agent_id, "--root", str(roots[agent_id]), "--wait", "5"]
        processes.append(shell.start(*words, key=key))
    yield roots
    for process in processes:
        process.send_signal(signal.SIGTERM)
    for process in processes:
        _, err = process.communicate(timeout=30)
        assert process.returncode == 0, err


def test_file_of_20_mb_is_uploaded_and_downloaded(shell: Shell, stored: tuple[dict[str, Any], bytes]) -> None:
    record, content = stored
    assert (record["state"], record["size"]) == ("ready", len(content))

    shell.run("file", "get", record["file_id"], "-o", "back.bin")

    assert (shell.home / "back.bin").read_bytes() == content
    assert [item["file_id"] for item in shell.json("file", "list", *NAME)["items"]] == [record["file_id"]]
    assert shell.json("file", "show", record["file_id"])["file_name"] == "发布.bin"


def test_each_kind_of_error_has_its_exit_code(shell: Shell, project_id: str) -> None:
    shell.run("file", "show", "file-none", expect=4)
    shell.run("project", "list", expect=3)
    shell.run("file", "show", "x", expect=3, key="tg_unknown")
    shell.run("file", "list", "--limit", "1000", expect=2)
    shell.run("file", "ingest", "ftp://x.example/f", *NAME, "--file-path", "/../x", expect=2)


def test_submit_with_watch_delivers_to_two_agents(
    shell: Shell, stored: tuple[dict[str, Any], bytes], agents: dict[str, Path]
) -> None:
    record, content = stored
    targets = [word for agent_id in agents for word in ("--target", agent_id)]
    where = ["--user", getpass.getuser(), "--dir", "/srv/release"]

    words = ["download", "submit", "--file", record["file_id"], *targets, *where, "--watch", "--timeout", "60"]
    _, printed = shell.both(*words)

    assert printed.splitlines()[-1].endswith("2/2  Success 2")
    assert "polling" not in printed, "the WebSocket was used"
    tasks = shell.json("download", "list")["items"]
    assert [task["status"] for task in tasks] == ["Success", "Success"]
    for root in agents.values():
        assert (root / "srv/release/发布.bin").read_bytes() == content
        assert [path.name for path in (root / "srv/release").iterdir()] == ["发布.bin"]
    job = shell.json("job", "show", tasks[0]["job_id"])
    assert (job["status"], job["counts"]["success"], len(job["targets"])) == ("Success", 2, 2)
    assert shell.json("download", "status", tasks[0]["task_id"])["status"] == "Success"


def test_refused_path_fails_the_task_with_its_reason(
    shell: Shell, stored: tuple[dict[str, Any], bytes], agents: dict[str, Path]
) -> None:
    record, _ = stored
    (agents["host-1"] / "srv").symlink_to("/tmp")
    where = ["--user", getpass.getuser(), "--dir", "/srv/release", "--target", "host-1"]

    printed = shell.run("download", "submit", "--file", record["file_id"], *where, "--watch", "--json", expect=1)

    task = json.loads(printed.splitlines()[-1])
    assert (task["status"], task["error_code"]) == ("Failed", 1003)
    assert "outside" in task["error_msg"]
