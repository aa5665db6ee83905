"""Measures the memory of upload, verification and distribution of a large sparse file on the local cloud.

    python -m tests.bench.large_file 2 4        # sizes in GiB; prints the peak of each process for each size

It measures the uploading client, the functions, the agent, and the emulator, which keeps large objects on disk. The
agent's copy takes as much disk space as the file; the emulator's takes none, because zeros are holes in it.
"""

from __future__ import annotations

import getpass
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.deployed import Deployed, deployed_at
from tidegate_client.agent.daemon import Agent
from tidegate_client.agent.options import AgentOptions
from tidegate_client.client import Client

GIBIBYTE = 1024**3
HOST = "host-1"
# Memory must not grow with the file; up to this ratio it is noise of allocators.
MOST_GROWTH = 1.3
_FUNCTION = re.compile(r"ministack-lambda-\w+?-(\w+)Function-")


def main(sizes: list[float]) -> int:
    peaks = {size: measured(size) for size in sizes}
    small, large = peaks[min(sizes)], peaks[max(sizes)]
    for name in sorted(large):
        shown = "  ".join(f"{size:g} GiB: {peak.get(name, 0):6.0f} MB" for size, peak in peaks.items())
        print(f"  {name:18} {shown}")
    grown = [name for name in large if name in small and large[name] > MOST_GROWTH * small[name]]
    print(f"memory grew with the file: {', '.join(grown)}" if grown else "memory is flat")
    return 1 if grown else 0


def measured(size: float) -> dict[str, float]:
    """Delivers a file of this size. Returns the peak memory in MB of each process that handles it."""
    with (
        tempfile.TemporaryDirectory() as home,
        deployed_at(Path(home) / "cloud", JobTimeoutSeconds="7200") as cloud,
        watching() as peaks,
    ):
        whole = int(size * GIBIBYTE)
        source = Path(home) / "large.bin"
        with source.open("wb") as file:
            file.truncate(whole)
        project = cloud.project()
        began = time.monotonic()
        signature = last_line(child("upload", cloud.api_url, project.key, str(source), str(Path(home) / "state")))
        uploaded = time.monotonic()
        root = Path(home) / "root"
        agent = child("agent", cloud.api_url, project.agent_key(HOST), str(root), str(Path(home) / "agent"))
        try:
            _deliver(cloud, project.key, signature)
        finally:
            agent.terminate()
            agent.wait(30)
        delivered = time.monotonic()
        assert (root / "srv" / "large.bin").stat().st_size == whole
        print(f"{size:g} GiB: up and verified in {uploaded - began:.0f} s, delivered in {delivered - uploaded:.0f} s")
    return dict(peaks)


def _deliver(cloud: Deployed, key: str, signature: str) -> None:
    client = Client(cloud.api_url, key)
    submitted = client.downloads.submit(
        biz_id=1,
        app_id=2,
        file_path="/large.bin",
        file_name="large.bin",
        target_agent_id=HOST,
        target_user=getpass.getuser(),
        target_file_dir="/srv",
        file_signature=signature,
    )
    ended = client.wait(submitted["task_id"], timeout=3600)
    assert ended.record["status"] == "Success", ended.record


def child(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.bench.large_file", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def last_line(process: subprocess.Popen[str]) -> str:
    text, _ = process.communicate()
    assert process.returncode == 0, text
    return text.strip().splitlines()[-1]


def upload(api_url: str, key: str, path: str, state: str) -> None:
    os.environ["XDG_STATE_HOME"] = state
    record = Client(api_url, key).files.put(Path(path), biz_id=1, app_id=2, file_path="/large.bin")
    assert record["state"] == "ready", record
    print(record["signature"])


def run_agent(api_url: str, key: str, root: str, state: str) -> None:
    (Path(root) / "srv").mkdir(parents=True)
    Agent(Client(api_url, key), AgentOptions(HOST, Path(root), Path(state), wait=2, report_every=1)).run()


@contextmanager
def watching() -> Iterator[dict[str, float]]:
    peaks: dict[str, float] = defaultdict(float)
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.2):
            for process in Path("/proc").glob("[0-9]*"):
                if (name := _name(process)) and (peak := _peak(process)):
                    peaks[name] = max(peaks[name], peak)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peaks
    finally:
        stop.set()
        thread.join()


def _is_ours(process: Path) -> bool:
    """Whether the process is a descendant of this one."""
    number = process.name
    while number not in {"0", "1"}:
        if number == str(os.getpid()):
            return True
        number = (Path("/proc") / number / "stat").read_text().rpartition(")")[2].split()[1]
    return False


def _name(process: Path) -> str | None:
    try:
        if not _is_ours(process):
            return None
        command = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    if "tests.bench.large_file" in command:
        return next((word for word in command if word in {"upload", "agent"}), None)
    if "local.launcher" in command:
        return "emulator"
    found = _FUNCTION.search(" ".join(command))
    return found[1] if found else None


def _peak(process: Path) -> float:
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())
    except OSError:
        return 0.0
    return int(found[1]) / 1024 if found else 0.0


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["upload", *rest]:
            upload(*rest)
        case ["agent", *rest]:
            run_agent(*rest)
        case sizes:
            sys.exit(main([float(size) for size in sizes] or [2, 4]))
