"""Preheat through the deployed stack: agents as processes, one moment at which all of them switch."""

from __future__ import annotations

import hashlib
import os
import pwd
import subprocess
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.shell import Shell
from tidegate_client import Client

USER = pwd.getpwuid(os.getuid()).pw_name
HOSTS = [f"ahead-{number}" for number in range(4)]
OLD, NEW = b"the present release", b"the next release" * 1000
# Seconds that the hosts have to fetch the file; a busy machine needs the longer ones.
AHEAD = (30, 90, 240)


def test_hosts_switch_at_one_moment_and_not_before(
    deployed: Deployed, project: DeployedProject, tmp_path: Path
) -> None:
    client, shell = Client(deployed.api_url, project.key), Shell(tmp_path, deployed.api_url)
    agents: dict[str, subprocess.Popen[str]] = {}

    def start(host: str) -> None:
        words = ["agent", "--agent-id", host, "--root", str(tmp_path / host), "--wait", "5"]
        agents[host] = shell.start(*words, "--state-dir", str(tmp_path / f"{host}.state"), key=project.agent_key(host))

    def files(name: str) -> list[Path]:
        return [tmp_path / host / "in" / name for host in HOSTS]

    for host in HOSTS:
        (tmp_path / host / "in").mkdir(parents=True)
        (tmp_path / host / "in/site").write_bytes(OLD)
        start(host)
    try:
        for name in ("site", "unwanted"):
            (tmp_path / name).write_bytes(NEW)
            client.files.put(tmp_path / name, biz_id=2, app_id=3, file_path=f"/{name}")
        at, kept, cancelled = staged_everywhere(client)
        assert all(file.read_bytes() == OLD for file in files("site"))
        assert client.jobs.get(kept)["status"] == "Running"

        client.jobs.cancel(cancelled)
        agents[HOSTS[0]].kill()
        agents[HOSTS[0]].wait()
        start(HOSTS[0])

        assert until(lambda: client.jobs.get(cancelled)["status"], lambda seen: seen != "Running", 60) == "Cancelled"
        until(lambda: client.jobs.get(kept)["status"], lambda seen: seen != "Running", max(AHEAD) + 60)
        until(lambda: hidden(tmp_path), lambda left: not left, 30)
    finally:
        for process in agents.values():
            process.terminate()
        for process in agents.values():
            process.wait(20)

    ended = client.jobs.get(kept)
    assert (ended["status"], ended["counts"]["success"]) == ("Success", len(HOSTS))
    assert all(file.read_bytes() == NEW for file in files("site"))
    assert not any(file.exists() for file in files("unwanted"))
    # The last change of the inode is the rename, or what is done in the millisecond before it.
    switched = [file.stat().st_ctime - at.timestamp() for file in files("site")]
    assert min(switched) >= -0.01, switched
    assert max(switched) < 2.0, switched


def hidden(home: Path) -> list[Path]:
    return [path for host in HOSTS for path in (home / host / "in").glob(".tidegate-*")]


def staged_everywhere(client: Client) -> tuple[datetime, str, str]:
    """Two Jobs that every host has staged, and their moment, which has not come yet."""
    for seconds in AHEAD:
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        kept, cancelled = submit(client, "site", at), submit(client, "unwanted", at)
        while datetime.now(UTC) < at:
            if all(client.jobs.get(job)["counts"].get("staged") == len(HOSTS) for job in (kept, cancelled)):
                return at, kept, cancelled
            time.sleep(0.2)
        for job in (kept, cancelled):
            client.jobs.cancel(job)
    raise AssertionError("the hosts did not stage two small files in four minutes")


def submit(client: Client, name: str, at: datetime) -> str:
    made = client.downloads.submit_batch(
        biz_id=2,
        app_id=3,
        file_path=f"/{name}",
        file_name=name,
        target_user=USER,
        target_file_dir="/in",
        file_signature=hashlib.sha256(NEW).hexdigest(),
        targets=[{"agent_id": host} for host in HOSTS],
        activate_at=at.isoformat(),
    )
    return str(made["job_id"])
