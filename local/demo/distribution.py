"""Five hosts, one file, forty requests across two windows: two Jobs, two transfers, forty deliveries."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from time import sleep

from local.demo.guide import Guide, expect
from tidegate_client.models import Job, Submitted

HOSTS = [f"host-{number}" for number in range(1, 6)]
# Each host receives for itself and for three containers: twenty targets a window.
CONTAINERS = ["", "web", "worker", "cache"]
TERMINAL = {"Success", "Failed", "Timeout"}


def distribute(guide: Guide) -> str:
    content = os.urandom(1024 * 1024)
    source = guide.home / "release.bin"
    source.write_bytes(content)
    guide.client.files.put(source, biz_id=2, app_id=3, file_path="/releases/release.bin")
    signature = hashlib.sha256(content).hexdigest()
    commands = [(agent_words(guide.home, host), guide.key("agent", agent_id=host)) for host in HOSTS]
    with guide.commands(commands):
        guide.tell(f"{len(HOSTS)} agents are waiting: {', '.join(HOSTS)}")
        first = submit_window(guide, 1, signature)
        wait_for(first[0]["window_closes_at"])
        second = submit_window(guide, 2, signature)
        jobs = [follow(guide, name) for name in job_ids(first + second)]
    expect({job["status"] for job in jobs} == {"Success"}, f"the Jobs ended {[job['status'] for job in jobs]}")
    arrived = verify(guide.home, signature)
    expect(arrived == 40, f"{arrived} of 40 files arrived whole")
    transfers = {job.get("transfer_id") for job in jobs}
    return f"40 requests, {len(jobs)} Jobs, {len(transfers)} transfers, {arrived} files whole in their places"


def agent_words(home: Path, host: str) -> list[str]:
    root = home / host
    (root / "containers").mkdir(parents=True, exist_ok=True)
    for container in filter(None, CONTAINERS):
        (root / "containers" / container).mkdir(exist_ok=True)
    words = ["agent", "--agent-id", host, "--root", str(root), "--container-root", str(root / "containers")]
    return [*words, "--state-dir", str(home / f"{host}.state"), "--wait", "10"]


def submit_window(guide: Guide, window: int, signature: str) -> list[Submitted]:
    def submit(target: tuple[str, str]) -> Submitted:
        return guide.client.downloads.submit(
            biz_id=2,
            app_id=3,
            file_path="/releases/release.bin",
            file_name="release.bin",
            target_agent_id=target[0],
            target_container_id=target[1],
            target_user="root",
            target_file_dir=f"/releases/{window}",
            file_signature=signature,
        )

    targets = [(host, container) for host in HOSTS for container in CONTAINERS]
    with ThreadPoolExecutor(4) as pool:
        tasks = list(pool.map(submit, targets))
    jobs = Counter(task["job_id"].rpartition(":")[2] for task in tasks)
    shown = ", ".join(f"{count} in bucket {bucket}" for bucket, count in jobs.items())
    guide.tell(f"window {window}: {len(tasks)} requests accepted ({shown}), the gate opens {closing(tasks[-1])}")
    return tasks


def closing(task: Submitted) -> str:
    return f"at {task['window_closes_at'][11:19]}"


def wait_for(moment: str) -> None:
    left = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    sleep(max(0.0, left) + 0.2)


def job_ids(tasks: list[Submitted]) -> list[str]:
    return sorted({task["job_id"] for task in tasks}, key=lambda name: name.rpartition(":")[2])


def follow(guide: Guide, job_id: str) -> Job:
    seen = ""

    def read() -> Job:
        nonlocal seen
        job = guide.client.jobs.get(job_id)
        counts = job["counts"]
        line = f"Job {job_id.rpartition(':')[2]}: {job['status']}, {counts['success']}/{counts['total']} delivered"
        if line != seen:
            seen = line
            guide.tell(line)
        return job

    return guide.until(read, lambda job: job["status"] in TERMINAL, f"the end of {job_id}", seconds=120)


def verify(home: Path, signature: str) -> int:
    files = [path for host in HOSTS for path in (home / host).rglob("release.bin")]
    return sum(hashlib.sha256(path.read_bytes()).hexdigest() == signature for path in files)
