"""Agents with connections on the deployed stack: told of a Job, they fetch it at once, and nobody polls meanwhile."""

from __future__ import annotations

import hashlib
import os
import pwd
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.test_distribution import job_of
from tests.support.deployed import Deployed, DeployedProject, until
from tidegate.common.ids import digest
from tidegate_client import Client
from tidegate_client.agent.daemon import Agent, AgentOptions
from tidegate_client.resources.agents import Agents

CONTENT = b"pushed by the tide " * 5000
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()
HOSTS = 5


@contextmanager
def connected(project: DeployedProject, home: Path, name: str) -> Iterator[None]:
    root = home / name
    root.mkdir()
    client = Client(project.cloud.api_url, project.agent_key(name))
    options = AgentOptions(name, root, home / f"{name}.state", report_every=0.5, drain_seconds=2, zone="z1")
    agent = Agent(client, options)
    thread = threading.Thread(target=agent.run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        agent.stop()
        agent.stop()
        thread.join(10)


def states(project: DeployedProject) -> dict[str, str]:
    items = project.http("GET", "/v1/agents").json()["items"]
    return {item["agent_id"]: item["state"] for item in items if item["zone"] == "z1"}


def dispatched_at(deployed: Deployed, project: DeployedProject, job_id: str) -> float:
    """When the dispatch had written the transfers: the end of its step, by the execution's own history."""
    machines = deployed.client("stepfunctions")
    (machine,) = (
        found["stateMachineArn"]
        for found in machines.list_state_machines()["stateMachines"]
        if "DownloadJob" in found["name"]
    )
    name = f"{digest(project.id, job_id, length=40)}-0"
    arn = machine.replace(":stateMachine:", ":execution:") + f":{name}"
    events = machines.get_execution_history(executionArn=arn, maxResults=1000)["events"]
    (end,) = (
        event["timestamp"].timestamp()
        for event in events
        if event["type"] == "TaskStateExited" and event["stateExitedEventDetails"]["name"] == "DispatchTransfer"
    )
    return float(end)


def test_connected_hosts_fetch_a_job_because_they_were_told(
    deployed: Deployed, project: DeployedProject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.store(project, "/data/push.bin", CONTENT, SIGNATURE)
    offered: list[float] = []
    took: list[float] = []
    transfers = Agents.transfers

    def noted(self: Agents, agent_id: str, *, wait: int = 0) -> Any:
        began = time.time()
        found = transfers(self, agent_id, wait=wait)
        took.append(time.time() - began)
        offered.extend([time.time()] if found else [])
        return found

    monkeypatch.setattr(Agents, "transfers", noted)
    names = [f"push-{number}" for number in range(HOSTS)]
    with ExitStack() as stack:
        for name in names:
            stack.enter_context(connected(project, tmp_path, name))
        until(lambda: states(project), lambda found: found == dict.fromkeys(names, "online"), 90)
        body = {
            "biz_id": 2,
            "app_id": 3,
            "file_path": "/data/push.bin",
            "file_name": "push.bin",
            "target_user": pwd.getpwuid(os.geteuid()).pw_name,
            "target_file_dir": "/in",
            "file_signature": SIGNATURE,
            "targets": [{"agent_id": name} for name in names],
        }
        made = project.http("POST", "/v1/downloads/batch", json=body)
        assert made.status == 202, made.body
        job_id = made.json()["job_id"]
        until(lambda: job_of(project, job_id), lambda job: job["status"] == "Success", 90)

    # Cold functions included. A busy machine is slower at everything: there, the time of five of its own questions.
    usual, waited = statistics.median(took), min(offered) - dispatched_at(deployed, project, job_id)
    assert waited < max(1.0, 5 * usual), f"a question takes {usual:.2f} s"
    assert all((tmp_path / name / "in" / "push.bin").read_bytes() == CONTENT for name in names)
    assert len(offered) <= 3 * HOSTS, "they asked because they were told, not all the time"
