"""Preheat on the deployed stack: agent processes that all switch at one moment."""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.shell import Shell
from tidegate_client.client import Client

USER = pwd.getpwuid(os.getuid()).pw_name
HOSTS = [f"ahead-{number}" for number in range(3)]
OLD, NEW = b"the present release", b"the next release" * 1000
# Seconds that the hosts have to download the file; the later values are for a busy machine.
AHEAD = (30, 90, 300)
ENDED = ("Success", "Failed", "Timeout", "Cancelled")


@pytest.mark.timeout(900)
def test_hosts_activate_the_file_together_at_activate_at(
    deployed: Deployed, project: DeployedProject, tmp_path: Path
) -> None:
    client, shell = Client(deployed.api_url, project.key), Shell(tmp_path, deployed.api_url)
    agents: dict[str, subprocess.Popen[str]] = {}

    def start(host: str) -> None:
        words = ["agent", "--agent-id", host, "--root", str(tmp_path / host), "--wait", "5"]
        agents[host] = shell.start(*words, "--state-dir", str(tmp_path / f"{host}.state"), key=project.agent_key(host))

    def files(directory: str) -> list[Path]:
        return [tmp_path / host / directory[1:] / "site" for host in HOSTS]

    for host in HOSTS:
        for attempt in range(len(AHEAD)):
            (tmp_path / host / f"in{attempt}").mkdir(parents=True)
            (tmp_path / host / f"in{attempt}/site").write_bytes(OLD)
        start(host)
    try:
        (tmp_path / "site").write_bytes(NEW)
        client.files.put(tmp_path / "site", biz_id=2, app_id=3, file_path="/site")
        unwanted = submit(client, "/unwanted", datetime.now(UTC) + timedelta(hours=1))
        at, wanted, directory = staged_everywhere(client)
        assert all(file.read_bytes() == OLD for file in files(directory))
        assert client.jobs.get(wanted)["status"] == "Running"
        agents[HOSTS[0]].kill()
        agents[HOSTS[0]].wait()
        start(HOSTS[0])

        assert until(lambda: client.jobs.get(wanted)["status"], lambda seen: seen in ENDED, 400) == "Success"
        until(lambda: client.jobs.get(unwanted)["counts"].get("staged"), lambda count: count == len(HOSTS), 60)
        client.jobs.cancel(unwanted)
        assert until(lambda: client.jobs.get(unwanted)["status"], lambda seen: seen in ENDED, 60) == "Cancelled"
        until(lambda: hidden(tmp_path), lambda left: not left, 60)
    finally:
        for process in agents.values():
            process.terminate()
        for process in agents.values():
            process.wait(20)

    assert client.jobs.get(wanted)["counts"]["success"] == len(HOSTS)
    assert all(file.read_bytes() == NEW for file in files(directory))
    assert not any(file.exists() for file in files("/unwanted"))
    # The last change of the inode is the rename, or a step in the millisecond before it.
    switched = [file.stat().st_ctime - at.timestamp() for file in files(directory)]
    print("seconds after the moment:", [round(seconds, 3) for seconds in switched])
    assert min(switched) >= -0.01, switched
    # The restarted host may start after the moment.
    assert max(switched[1:]) < 2.0, switched


def hidden(home: Path) -> list[Path]:
    return [path for host in HOSTS for path in (home / host).glob("*/.tidegate-*")]


def staged_everywhere(client: Client) -> tuple[datetime, str, str]:
    """Submits a file until every host has staged it in time. Returns the moment, the Job and the directory."""
    for attempt, seconds in enumerate(AHEAD):
        at, where = datetime.now(UTC) + timedelta(seconds=seconds), f"/in{attempt}"
        job = submit(client, where, at)
        while datetime.now(UTC) < at:
            if client.jobs.get(job)["counts"].get("staged") == len(HOSTS):
                return at, job, where
            time.sleep(0.2)
    raise AssertionError(f"the hosts did not stage a small file within {AHEAD[-1]} s")


def submit(client: Client, where: str, at: datetime) -> str:
    submitted = client.downloads.submit_batch(
        biz_id=2,
        app_id=3,
        file_path="/site",
        file_name="site",
        target_user=USER,
        target_file_dir=where,
        file_signature=hashlib.sha256(NEW).hexdigest(),
        targets=[{"agent_id": host} for host in HOSTS],
        activate_at=at.isoformat(),
    )
    return str(submitted["job_id"])
