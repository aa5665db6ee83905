"""Delivers one Job to a thousand agents in one process, connected by WebSocket to the stack on MiniStack.

MiniStack starts a process for every concurrent invocation. So the functions that hosts call get a limit here, and the
hosts share a pool of as many HTTP connections: calls that AWS would run in parallel wait on this machine.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import resource
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import urllib3

from tests.bench.figures import Figure, few
from tests.support.deployed import Deployed, DeployedProject, until
from tidegate.aws.table import Table
from tidegate.common.ids import iso, new_id
from tidegate.projects.keys import ApiKey, format_key, hash_key, new_key
from tidegate_client.agent import daemon
from tidegate_client.agent.daemon import Agent
from tidegate_client.agent.options import AgentOptions
from tidegate_client.client import Client

SECTION = "A fleet in one process, on MiniStack"
CONTENT = b"to a thousand hosts at once " * 400
SHA = hashlib.sha256(CONTENT).hexdigest()
# Concurrent invocations of each function that hosts call, and how many hosts start at a time.
CAP, STARTING = 8, 8
DIRECTORY = "/in"
# Of the stack: a thousand hosts take longer here than the tests' hosts may.
PARAMS = {"JobTimeoutSeconds": "1800", "KeyCacheSeconds": "60"}


class Crowd:
    def __init__(self, project: DeployedProject, home: Path, hosts: int) -> None:
        self.names = [f"host-{number:04d}" for number in range(hosts)]
        self._project = project
        self._home = home
        self._pool = urllib3.PoolManager(maxsize=CAP, block=True, timeout=urllib3.Timeout(60))
        self._threads: list[threading.Thread] = []
        self.agents: list[Agent] = []
        self._keys = _agent_keys(project, self.names)
        self.calls: Counter[tuple[str, int]] = Counter()

    def start(self) -> None:
        with ThreadPoolExecutor(STARTING) as starting:
            for number, _ in enumerate(starting.map(self._start, self.names), 1):
                if number % 100 == 0:
                    _say(f"{number} of {len(self.names)} hosts are connected")

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
        until(lambda: agent.health()["connected"], bool, 300, every=0.2)

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


def _say(text: str) -> None:
    """Prints progress: the run takes minutes."""
    print(f"  {text}", file=sys.stderr, flush=True)


def _agent_keys(project: DeployedProject, names: list[str]) -> dict[str, str]:
    """Writes keys directly into the table, as the API would: creating them is not measured. Returns them."""
    table = Table(project.cloud.client("dynamodb"), project.cloud.outputs["TableName"])
    agent_keys: dict[str, str] = {}
    for name in names:
        now = datetime.now(UTC)
        key_id = new_id("key", now).replace("-", "")
        agent_keys[name] = format_key(key_id, secrets.token_hex(20))
        key = ApiKey(key_id, project.id, ("agent",), name, hash_key(agent_keys[name]), iso(now))
        table.transact(new_key(key))
    return agent_keys


@contextmanager
def roomy() -> Iterator[None]:
    """Allows thousands of threads and sockets: small stacks, more open files, and a health check every minute only."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    health_every, stack = daemon.HEALTH_EVERY, threading.stack_size(256 * 1024)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    daemon.HEALTH_EVERY = 60.0
    try:
        yield
    finally:
        daemon.HEALTH_EVERY = health_every
        threading.stack_size(stack)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _cap(cloud: Deployed) -> None:
    functions = cloud.client("lambda")
    for function in functions.list_functions()["Functions"]:
        if any(f"-{name}Function" in function["FunctionName"] for name in ("Agents", "Api", "Authorizer", "WebSocket")):
            functions.put_function_concurrency(FunctionName=function["FunctionName"], ReservedConcurrentExecutions=CAP)


def _submit(project: DeployedProject, names: list[str]) -> str:
    body: dict[str, Any] = {"biz_id": 2, "app_id": 3, "file_path": "/data/file", "file_name": "file"}
    body |= {"target_user": pwd.getpwuid(os.geteuid()).pw_name, "target_file_dir": DIRECTORY, "file_signature": SHA}
    answer = project.http(
        "POST", "/v1/downloads/batch", json=body | {"targets": [{"agent_id": name} for name in names]}
    )
    assert answer.status == 202, answer.body
    return str(answer.json()["job_id"])


def _status(project: DeployedProject, job_id: str) -> str:
    answer = project.http("GET", f"/v1/jobs/{quote(job_id, safe='')}")
    # At its limit, the function refuses this call as it does those of hosts.
    return str(answer.json()["status"]) if answer.status == 200 else "Running"


def measure(cloud: Deployed, quick: bool) -> Iterator[Figure]:
    hosts = few(50 if quick else 1000, 3)
    with roomy(), tempfile.TemporaryDirectory() as home:
        project = cloud.project()
        cloud.store(project, "/data/file", CONTENT, SHA)
        crowd = Crowd(project, Path(home), hosts)
        if hosts > CAP:
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
    _say("the first file is in place")
    until(lambda: crowd.delivered(), lambda count: count == hosts, 900, every=1)
    last = time.monotonic()
    _say("the last file is in place")
    status = until(lambda: _status(project, job_id), lambda status: status not in ("Pending", "Running"), 300, every=1)
    ended = time.monotonic()
    took = last - first
    polls = sum(count for (what, _), count in crowd.calls.items() if what == "transfers")
    reports = sum(count for (what, _), count in crowd.calls.items() if what == "results")
    refused = sum(count for (_, code), count in crowd.calls.items() if code >= 400)
    yield Figure(SECTION, "hosts connected, of one process", hosts, "", note=f"in {connected:.0f} s")
    yield Figure(SECTION, "delivered, bit for bit", crowd.right(), "", hosts, at_least=True, note=f"Job {status}")
    yield Figure(SECTION, "first file in place to last", took, "s", note=f"{hosts / max(took, 0.001):.0f} hosts/s")
    yield Figure(SECTION, "last file in place to the Job's end", ended - last, "s")
    note = f"{polls} polls, {reports} reports; {refused} refused and repeated"
    yield Figure(SECTION, "calls a host", (polls + reports) / hosts, "", 4, note=note)
    used = resource.getrusage(resource.RUSAGE_SELF)
    note = f"{used.ru_utime + used.ru_stime:.0f} s of processor time, {threading.active_count()} threads"
    yield Figure(SECTION, "memory of an agent in it", used.ru_maxrss / 1024 / hosts, "MB", note=note)
