"""A swarm on the deployed stack: eight agent processes, one Job, least privilege enforced."""

from __future__ import annotations

import hashlib
import os
import pwd
import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from local.demo.swarm import free_ports
from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.product import product_on
from tests.support.shell import Shell
from tests.support.swarm.lab import next_release
from tidegate_client.client import Client
from tidegate_client.models import Job

USER = pwd.getpwuid(os.getuid()).pw_name
HOSTS = [f"peer-{number}" for number in range(8)]
CONTENT = random.Random(8).randbytes(16 << 20)


def test_eight_agents_fetch_a_file_once_and_then_only_changes(
    deployed: Deployed, project: DeployedProject, tmp_path: Path
) -> None:
    admin = Client(deployed.api_url, deployed.admin_key)
    admin.projects.set_swarm(project.id, peer_networks=["127.0.0.0/8"])
    client = Client(deployed.api_url, project.key)
    source = tmp_path / "large.bin"
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
        until(lambda: presences.get_many(project.id, HOSTS, time.time()), lambda found: len(found) == len(HOSTS), 120)
        job, content = one_window(client, source, lambda attempt: (CONTENT, f"/in/{attempt}"))
        directory = job["target_file_dir"]
        assert has_all(tmp_path, directory, content)
        # The next release replaces the one that the hosts have.
        newer, release = one_window(client, source, lambda attempt: (next_release(CONTENT, seed=attempt), directory))
        assert has_all(tmp_path, directory, release)
    delta_figures = newer.get("swarm")
    assert delta_figures is not None
    assert delta_figures["reused_bytes"] >= 0.8 * 8 * len(CONTENT)
    assert delta_figures["origin_bytes"] + delta_figures["peer_bytes"] <= 0.2 * 8 * len(CONTENT)
    figures = job.get("swarm")
    assert figures is not None
    assert figures["hosts"] == 8
    assert figures["origin_bytes"] <= 2 * len(CONTENT)
    assert figures["origin_bytes"] + figures["peer_bytes"] >= 8 * len(CONTENT)
    assert figures["bad_pieces"] == 0


def has_all(home: Path, where: str, content: bytes) -> bool:
    return all((home / host / where[1:] / "large.bin").read_bytes() == content for host in HOSTS)


def one_window(client: Client, source: Path, content_for: Callable[[int], tuple[bytes, str]]) -> tuple[Job, bytes]:
    """Returns a successful Job with all eight targets, and its content. Retries if a busy machine was too slow.

    `content_for` returns content and directory of each attempt, so that no host has the file already.
    """
    for attempt in range(4):
        content, where = content_for(attempt)
        source.write_bytes(content)
        client.files.put(source, biz_id=2, app_id=3, file_path="/large.bin")
        submitted = client.downloads.submit_batch(
            biz_id=2,
            app_id=3,
            file_path="/large.bin",
            file_name="large.bin",
            target_user=USER,
            target_file_dir=where,
            file_signature=hashlib.sha256(content).hexdigest(),
            targets=[{"agent_id": host} for host in HOSTS],
        )
        job = wait_until_ended(client, submitted["job_id"])
        if job["status"] == "Success" and job["counts"]["total"] == len(HOSTS):
            return job, content
    raise AssertionError("no window took all eight targets")


def wait_until_ended(client: Client, job_id: str) -> Job:
    return until(lambda: client.jobs.get(job_id), lambda seen: seen["status"] in ("Success", "Failed", "Timeout"), 120)
