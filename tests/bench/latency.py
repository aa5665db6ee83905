"""Measures latencies after a window's end on MiniStack: the URL at an agent, the Job running, the Task done."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from tests.bench.figures import Figure, few
from tests.support.deployed import Deployed, until

SECTION = "Latency on MiniStack, windows of 3 s"
CONTENT = b"late" * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()
_PER_CALL = 1000
_RESULTS_PER_CALL = 500


def _now() -> float:
    return time.time()


def _one(cloud: Deployed, targets: int) -> Iterator[Figure]:
    project = cloud.project()
    path = f"/latency/{targets}"
    cloud.store(project, path, CONTENT, SHA)
    agent_key = project.agent_key("agent")
    body: dict[str, Any] = {"biz_id": 2, "app_id": 3, "file_path": path, "file_name": "file", "target_user": "root"}
    body |= {"target_file_dir": "/tmp/latency", "file_signature": SHA}
    named = [{"agent_id": "agent", "container_id": f"c{number}"} for number in range(targets)]
    submitted = project.http("POST", "/v1/downloads/batch", json=body | {"targets": named[:_PER_CALL]})
    assert submitted.status == 202, submitted.body
    task = submitted.json()["tasks"][-1]["task_id"].rsplit(":", 1)[-1]
    end = datetime.fromisoformat(submitted.json()["window_closes_at"]).timestamp()

    def inbox() -> list[dict[str, Any]]:
        answer = cloud.http("GET", "/v1/agents/agent/transfers?wait=5", key=agent_key).json()
        return list(answer["items"])

    first = until(inbox, bool, every=0.05)
    yield Figure(SECTION, f"window end → first agent has its URL, {targets} targets", _now() - end, "s")
    job = project.http("GET", f"/v1/downloads/{task}").json()["job_id"]
    shown = until(lambda: project.http("GET", "/v1/jobs", query={"file_path": path}).json()["items"], bool)[0]
    running = datetime.fromisoformat(shown["execute_time"]).timestamp() - end
    yield Figure(SECTION, f"window end → Job Running, {targets} targets", running, "s", note=job.rsplit(":", 1)[-1])
    done: set[str] = set()
    items = first
    while len(done) < targets:
        fresh = [item for item in items if item["container_id"] not in done]
        for start in range(0, len(fresh), _RESULTS_PER_CALL):
            part = fresh[start : start + _RESULTS_PER_CALL]
            results = [
                {"transfer_id": item["transfer_id"], "container_id": item["container_id"], "error_code": 0}
                for item in part
            ]
            reported = cloud.http("POST", "/v1/agents/agent/results", json={"items": results}, key=agent_key)
            assert reported.status == 200, reported.body
            done |= {item["container_id"] for item in part}
        items = inbox() if len(done) < targets else []
    ended = _now()
    until(lambda: project.http("GET", f"/v1/downloads/{task}").json()["status"], lambda s: s == "Success", every=0.1)
    yield Figure(SECTION, f"last agent done → Task Success visible, {targets} targets", _now() - ended, "s")


def measure(cloud: Deployed, quick: bool) -> Iterator[Figure]:
    for targets in (1, 100)[: few(100)] if quick else (1, 100, 1000):
        yield from _one(cloud, targets)
