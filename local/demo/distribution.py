"""The step that sends one file to five hosts: forty requests in two windows become two Jobs and two transfers."""

from __future__ import annotations

import hashlib
import os
import pwd
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from local.demo.guide import Guide, Unexpected, expect
from tidegate_client.errors import NotFound
from tidegate_client.models import Job, Submitted

HOSTS = [f"host-{number}" for number in range(1, 6)]
# Each host receives for itself and for three containers: twenty targets a window.
CONTAINERS = ["", "web", "worker", "cache"]
TARGETS = [(host, container) for host in HOSTS for container in CONTAINERS]
TERMINAL = {"Success", "Failed", "Timeout"}
USER = pwd.getpwuid(os.getuid()).pw_name
FILE_PATH = "/releases/release.bin"
NOBODYS = "0" * 64


def distribute(guide: Guide) -> str:
    content = os.urandom(1024 * 1024)
    source = guide.home / "release.bin"
    source.write_bytes(content)
    guide.client.files.put(source, biz_id=2, app_id=3, file_path=FILE_PATH)
    signature = hashlib.sha256(content).hexdigest()
    commands = [(agent_words(guide.home, host), guide.key("agent", agent_id=host)) for host in HOSTS]
    with guide.commands(commands):
        guide.tell(f"{len(HOSTS)} agents are waiting: {', '.join(HOSTS)}")
        refuse(guide)
        for window in (1, 2):
            next_window(guide)
            submit_window(guide, window, signature)
        jobs = follow(guide, 2 * len(TARGETS))
    expect({job["status"] for job in jobs} == {"Success"}, f"the Jobs ended {[job['status'] for job in jobs]}")
    arrived = verify(guide.home, signature)
    expect(arrived == 2 * len(TARGETS), f"{arrived} of {2 * len(TARGETS)} files arrived whole")
    transfers = {job.get("transfer_id") for job in jobs}
    return f"40 requests, {len(jobs)} Jobs, {len(transfers)} transfers, {arrived} files whole in their places"


def agent_words(home: Path, host: str) -> list[str]:
    root = home / host
    for container in CONTAINERS[1:]:
        # A container has its own users: here, the one who runs the demo.
        etc = root / "containers" / container / "etc"
        etc.mkdir(parents=True, exist_ok=True)
        (etc / "passwd").write_text(f"{USER}:x:{os.getuid()}:{os.getgid()}::/:/bin/sh\n")
    words = ["agent", "--agent-id", host, "--root", str(root), "--container-root", str(root / "containers")]
    return [*words, "--state-dir", str(home / f"{host}.state"), "--wait", "10"]


def refuse(guide: Guide) -> None:
    """Submits an unknown file four times at once. This also starts the functions that the forty requests need."""

    def is_refused(target: tuple[str, str]) -> bool:
        try:
            submit(guide, target, "/nowhere", NOBODYS)
        except NotFound:
            return True
        return False

    with ThreadPoolExecutor(4) as pool:
        expect(all(pool.map(is_refused, TARGETS[:4])), "a submit of an unknown file was accepted")
    guide.tell("a submit of an unknown file is refused: 404 file_not_found")


def next_window(guide: Guide) -> None:
    length = int(guide.outputs["CollectWindowSeconds"])
    time.sleep(length - time.time() % length)


def submit(guide: Guide, target: tuple[str, str], target_file_dir: str, signature: str) -> Submitted:
    return guide.client.downloads.submit(
        biz_id=2,
        app_id=3,
        file_path=FILE_PATH,
        file_name="release.bin",
        target_agent_id=target[0],
        target_container_id=target[1],
        target_user=USER,
        target_file_dir=target_file_dir,
        file_signature=signature,
    )


def submit_window(guide: Guide, window: int, signature: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        tasks = list(pool.map(lambda target: submit(guide, target, f"/releases/{window}", signature), TARGETS))
    jobs = len({task["job_id"] for task in tasks})
    closes = tasks[-1]["window_closes_at"][11:19]
    guide.tell(
        f"window {window}: {len(tasks)} requests accepted, {jobs} Job{'s' * (jobs > 1)}, the window closes at {closes}"
    )


def follow(guide: Guide, targets: int, seconds: float = 120) -> list[Job]:
    """Prints the state of the Jobs, until the Jobs have all targets and have ended. Returns the Jobs."""
    printed: dict[str, str] = {}
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        jobs = [
            job for job in guide.client.jobs.list(file_path=FILE_PATH, biz_id=2, app_id=3)["items"] if targets_of(job)
        ]
        for job in reversed(jobs):
            name, counts = job["job_id"].rpartition(":")[2], job["counts"]
            line = f"Job …:{name} {job['status']}: {counts['success']} of {counts['total']} delivered"
            if printed.get(job["job_id"]) != line:
                printed[job["job_id"]] = line
                guide.tell(line)
        if sum(map(targets_of, jobs)) == targets and all(job["status"] in TERMINAL for job in jobs):
            return jobs
        time.sleep(0.3)
    found = sum(map(targets_of, jobs))
    raise Unexpected(
        f"after {seconds:.0f} s, {targets} targets are wanted in Jobs that have ended, and {found} are there:"
        f" {list(printed.values())}"
    )


def targets_of(job: Job) -> int:
    """Returns the number of targets; 0 for a Job whose targets all came too late and moved to the next Job."""
    return job.counts.total


def verify(home: Path, signature: str) -> int:
    files = [path for host in HOSTS for path in (home / host).rglob("release.bin")]
    return sum(hashlib.sha256(path.read_bytes()).hexdigest() == signature for path in files)
