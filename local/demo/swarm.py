"""The step with one large file for eight hosts: S3 sends it about once, and the hosts send it to each other."""

from __future__ import annotations

import hashlib
import os
import pwd
import socket
import time
from contextlib import ExitStack
from pathlib import Path

from local.demo.distribution import next_window
from local.demo.guide import Guide, Unexpected, expect
from tidegate_client.models import Job

HOSTS = [f"swarm-{number}" for number in range(1, 9)]
SIZE = 24 * 1024 * 1024
USER = pwd.getpwuid(os.getuid()).pw_name
FILE_PATH = "/releases/large.bin"


def swarm(guide: Guide) -> str:
    content = os.urandom(SIZE)
    source = guide.home / "large.bin"
    source.write_bytes(content)
    guide.client.files.put(source, biz_id=2, app_id=3, file_path=FILE_PATH)
    signature = hashlib.sha256(content).hexdigest()
    # By default peers must be at private addresses; these are all on this machine.
    guide.admin.projects.set_swarm(guide.project_id, peer_networks=["127.0.0.0/8"])
    ports = free_ports(len(HOSTS))
    commands = [
        (agent_words(guide.home, host, port), guide.key("agent", agent_id=host))
        for host, port in zip(HOSTS, ports, strict=True)
    ]
    with guide.commands(commands):
        # Long enough for all agents to announce their addresses.
        time.sleep(4.0)
        guide.tell(f"{len(HOSTS)} agents have announced their addresses to peers")
        next_window(guide)
        submitted = guide.client.downloads.submit_batch(
            biz_id=2,
            app_id=3,
            file_path=FILE_PATH,
            file_name="large.bin",
            target_user=USER,
            target_file_dir="/releases",
            file_signature=signature,
            targets=[{"agent_id": host} for host in HOSTS],
        )
        job = guide.until(
            lambda: guide.client.jobs.get(submitted["job_id"]),
            lambda shown: shown["status"] not in ("Pending", "Running"),
            "the end of the Job",
            120,
        )
    expect(job["status"] == "Success", f"the Job ended {job['status']}")
    right = [host for host in HOSTS if digest_of(guide.home / host / "releases/large.bin") == signature]
    expect(right == HOSTS, f"only {right} have the right file")
    return summary(guide, job)


def summary(guide: Guide, job: Job) -> str:
    figures = job.get("swarm")
    if not figures:
        raise Unexpected("the Job shows no figures of a swarm")
    origin, peers = figures["origin_bytes"], figures["peer_bytes"]
    total = origin + peers
    for name, count in (("from S3", origin), ("from peers", peers)):
        guide.tell(
            f"{name:<11} {'█' * round(40 * count / total):<40} {count / 1e6:6.1f} MB, {count / SIZE:.2f} × the file"
        )
    expect(origin < 3 * SIZE, f"S3 sent {origin / SIZE:.1f} times the file")
    saved = 100 * (1 - origin / (len(HOSTS) * SIZE))
    return (
        f"{len(HOSTS)} hosts have the file; S3 sent {origin / SIZE:.2f} file sizes instead of {len(HOSTS)}: "
        f"{saved:.0f} % less egress"
    )


def agent_words(home: Path, host: str, port: int) -> list[str]:
    root = home / host
    root.mkdir()
    words = ["agent", "--agent-id", host, "--root", str(root), "--state-dir", str(home / f"{host}.state")]
    return [*words, "--peer-listen", f"127.0.0.1:{port}", "--site", "demo", "--wait", "5"]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def digest_of(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
