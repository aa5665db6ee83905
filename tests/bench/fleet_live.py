"""A thousand agents in one process, connected by WebSocket to the stack on MiniStack: one Job reaches them all.

MiniStack starts a process for every invocation that runs at once, so the functions that hosts call get a cap here;
hosts that meet it are told to come back, as AWS would tell them at the account's limit.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import resource
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3

from tests.bench.figures import Figure
from tests.support.deployed import Deployed, DeployedProject, deployed_at, until
from tidegate_client import Client
from tidegate_client.agent import daemon
from tidegate_client.agent.daemon import Agent, AgentOptions

SECTION = "A fleet in one process, on MiniStack"
CONTENT = b"to a thousand hosts at once " * 400
SHA = hashlib.sha256(CONTENT).hexdigest()
# Of each function that hosts call, and how many hosts start at a time.
CAP, STARTING = 6, 8
DIRECTORY = "/in"


class Crowd:
    def __init__(self, project: DeployedProject, home: Path, hosts: int) -> None:
        self.names = [f"host-{number:04d}" for number in range(hosts)]
        self._project = project
        self._home = home
        self._pool = urllib3.PoolManager(maxsize=32, block=True, timeout=urllib3.Timeout(60))
        self._threads: list[threading.Thread] = []
        self.agents: list[Agent] = []
        with ThreadPoolExecutor(STARTING) as making:
            self._keys = dict(zip(self.names, making.map(project.agent_key, self.names), strict=True))
        self.calls: Counter[tuple[str, int]] = Counter()

    def start(self) -> None:
        with ThreadPoolExecutor(STARTING) as starting:
            list(starting.map(self._start, self.names))

    def _start(self, name: str) -> None:
        root = self._home / name
        root.mkdir()
        client = Client(self._project.cloud.api_url, self._keys[name], pool=self._pool, attempts=8)
        client.http.on_call = self._called
        options = AgentOptions(name, root, self._home / f"{name}.state", parallel=1, report_every=20, drain_seconds=1)
        agent = Agent(client, options)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        self.agents.append(agent)
        self._threads.append(thread)
        until(lambda: agent.health()["connected"], bool, 120, every=0.1)

    def _called(self, method: str, path: str, status: int, seconds: float, request_id: str) -> None:
        self.calls[path.rsplit("/", 1)[-1].split("?")[0], status] += 1

    def delivered(self) -> int:
        return sum((self._home / name / "in" / "file").is_file() for name in self.names)

    def right(self) -> int:
        return sum((self._home / name / "in" / "file").read_bytes() == CONTENT for name in self.names)

    def stop(self) -> None:
        for agent in self.agents:
            agent.stop()
            agent.stop()
        for thread in self._threads:
            thread.join(20)


@contextmanager
def roomy() -> Iterator[None]:
    """Thousands of threads and sockets in one process: small stacks, and a look around every minute, not second."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    look, stack = daemon.LOOK_EVERY, threading.stack_size(256 * 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    daemon.LOOK_EVERY = 60.0
    try:
        yield
    finally:
        daemon.LOOK_EVERY = look
        threading.stack_size(stack)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _cap(cloud: Deployed) -> None:
    functions = cloud.client("lambda")
    for found in functions.list_functions()["Functions"]:
        if any(f"-{name}Function" in found["FunctionName"] for name in ("Agents", "Api", "Authorizer", "WebSocket")):
            functions.put_function_concurrency(FunctionName=found["FunctionName"], ReservedConcurrentExecutions=CAP)


def _submit(project: DeployedProject, names: list[str]) -> str:
    body: dict[str, Any] = {"biz_id": 2, "app_id": 3, "file_path": "/data/file", "file_name": "file"}
    body |= {"target_user": pwd.getpwuid(os.geteuid()).pw_name, "target_file_dir": DIRECTORY, "file_signature": SHA}
    made = project.http("POST", "/v1/downloads/batch", json=body | {"targets": [{"agent_id": name} for name in names]})
    assert made.status == 202, made.body
    return str(made.json()["job_id"])


def _status(project: DeployedProject, job_id: str) -> str:
    answer = project.http("GET", f"/v1/jobs/{quote(job_id, safe='')}")
    # At its cap the function answers like the hosts' ones.
    return str(answer.json()["status"]) if answer.status == 200 else "Running"


def measure(quick: bool) -> Iterator[Figure]:
    hosts = 50 if quick else 1000
    params = {"JobTimeoutSeconds": "1800", "KeyCacheSeconds": "60"}
    with roomy(), tempfile.TemporaryDirectory() as home, deployed_at(Path(home) / "cloud", **params) as cloud:
        project = cloud.project()
        cloud.store(project, "/data/file", CONTENT, SHA)
        crowd = Crowd(project, Path(home), hosts)
        _cap(cloud)
        began = time.monotonic()
        crowd.start()
        connected = time.monotonic() - began
        try:
            yield from _one_job(project, crowd, connected)
        finally:
            crowd.stop()


def _one_job(project: DeployedProject, crowd: Crowd, connected: float) -> Iterator[Figure]:
    hosts = len(crowd.names)
    crowd.calls.clear()
    job_id = _submit(project, crowd.names)
    until(lambda: crowd.delivered(), lambda count: count > 0, 120, every=0.05)
    first = time.monotonic()
    until(lambda: crowd.delivered(), lambda count: count == hosts, 900, every=1)
    last = time.monotonic()
    status = until(lambda: _status(project, job_id), lambda status: status not in ("Pending", "Running"), 300, every=1)
    ended = time.monotonic()
    took = last - first
    asked = sum(count for (what, _), count in crowd.calls.items() if what == "transfers")
    told = sum(count for (what, _), count in crowd.calls.items() if what == "results")
    turned = sum(count for (_, code), count in crowd.calls.items() if code >= 400)
    yield Figure(SECTION, "hosts connected, of one process", hosts, "", note=f"in {connected:.0f} s")
    yield Figure(SECTION, "delivered, bit for bit", crowd.right(), "", hosts, at_least=True, note=f"Job {status}")
    yield Figure(SECTION, "first file in place to last", took, "s", note=f"{hosts / max(took, 0.001):.0f} hosts/s")
    yield Figure(SECTION, "last file in place to the Job's end", ended - last, "s")
    note = f"{asked} questions, {told} reports; {turned} turned away for a while"
    yield Figure(SECTION, "calls a host", (asked + told) / hosts, "", 4, note=note)


if __name__ == "__main__":
    from tests.bench.figures import table

    print(table(measure(quick="QUICK" in os.environ)))
