"""A swarm through the deployed stack: eight agents as processes, one Job, least privilege enforced."""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import time
from contextlib import ExitStack
from pathlib import Path

from local.demo.swarm import free_ports
from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.product import product_on
from tests.support.shell import Shell
from tidegate_client import Client
from tidegate_client.models import Job

USER = pwd.getpwuid(os.getuid()).pw_name
HOSTS = [f"peer-{number}" for number in range(8)]
CONTENT = random.Random(8).randbytes(16 << 20)


def test_eight_agents_take_a_file_from_the_store_about_once(
    deployed: Deployed, project: DeployedProject, tmp_path: Path
) -> None:
    admin = Client(deployed.api_url, deployed.admin_key)
    admin.projects.set_swarm(project.id, peer_networks=["127.0.0.0/8"])
    client = Client(deployed.api_url, project.key)
    source = tmp_path / "large.bin"
    source.write_bytes(CONTENT)
    client.files.put(source, biz_id=2, app_id=3, file_path="/large.bin")
    shell = Shell(tmp_path, deployed.api_url)
    with ExitStack() as stack:
        for host, port in zip(HOSTS, free_ports(8), strict=True):
            (tmp_path / host).mkdir()
            words = ["agent", "--agent-id", host, "--root", str(tmp_path / host), "--wait", "5"]
            words += ["--state-dir", str(tmp_path / f"{host}.state")]
            words += ["--peer-listen", f"127.0.0.1:{port}", "--site", "here"]
            process = shell.start(*words, key=project.agent_key(host))
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
        presences = product_on(deployed).distribution.presence_store
        until(lambda: presences.get_many(project.id, HOSTS, time.time()), lambda told: len(told) == len(HOSTS))
        job = one_window(client)
    assert all((tmp_path / host / job["target_file_dir"][1:] / "large.bin").read_bytes() == CONTENT for host in HOSTS)
    figures = job.get("swarm")
    assert figures is not None
    assert figures["hosts"] == 8
    assert figures["origin_bytes"] <= 2 * len(CONTENT)
    assert figures["origin_bytes"] + figures["peer_bytes"] >= 8 * len(CONTENT)
    assert figures["bad_pieces"] == 0


def one_window(client: Client) -> Job:
    """The Job of all eight. On a busy machine some come too late for their window, or all for the Job: again."""
    for attempt in range(4):
        made = client.downloads.submit_batch(
            biz_id=2,
            app_id=3,
            file_path="/large.bin",
            file_name="large.bin",
            target_user=USER,
            target_file_dir=f"/in/{attempt}",
            file_signature=hashlib.sha256(CONTENT).hexdigest(),
            targets=[{"agent_id": host} for host in HOSTS],
        )
        job = ended(client, made["job_id"])
        if job["status"] == "Success" and job["counts"]["total"] == len(HOSTS):
            return job
    raise AssertionError("no window took all eight targets")


def ended(client: Client, job_id: str) -> Job:
    return until(lambda: client.jobs.get(job_id), lambda seen: seen["status"] in ("Success", "Failed", "Timeout"), 120)
