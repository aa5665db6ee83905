"""Distribution on the deployed stack: callers and agents over HTTP, short windows, least privilege enforced."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3

from tests.support.deployed import Deployed, DeployedProject, deployed_at, until

CONTENT = b"the tide comes in " * 5000
SIGNATURE = hashlib.sha256(CONTENT).hexdigest()
ENDED = {"Success", "Failed", "Timeout"}


def body(**more: Any) -> dict[str, Any]:
    return {
        "biz_id": 2,
        "app_id": 3,
        "file_path": "/data/fleet.bin",
        "file_name": "fleet.bin",
        "target_user": "root",
        "target_file_dir": "/opt/fleet",
        "file_signature": SIGNATURE,
        **more,
    }


class Agents:
    """Acts as the agents, with the admin key: each requests its transfers, fetches the file and reports."""

    def __init__(self, deployed: Deployed, project: DeployedProject, code: Callable[[str], int] = lambda _: 0) -> None:
        self._deployed = deployed
        self._headers = {"x-project-id": project.id}
        self._code = code
        self._lock = threading.Lock()
        self.fetched: list[tuple[str, str]] = []

    def serve(self, agent_id: str, seconds: int = 20) -> None:
        path = f"/v1/agents/{agent_id}/transfers"
        items: list[dict[str, Any]] = []
        for _ in range(max(1, seconds // 5)):
            answer = self._deployed.http(
                "GET", path, key=self._deployed.admin_key, headers=self._headers, query={"wait": 5}
            )
            assert answer.status == 200, answer.body
            items = answer.json()["items"]
            if items:
                break
        for item in items:
            content = urllib3.request("GET", item["url"]).data
            assert hashlib.sha256(content).hexdigest() == item["signature"]
            with self._lock:
                self.fetched.append((agent_id, item["transfer_id"]))
        result = {"error_code": self._code(agent_id), "error_msg": "as the test wants it"}
        results = [{"transfer_id": i["transfer_id"], "container_id": i["container_id"], **result} for i in items]
        if results:
            answer = self._deployed.http(
                "POST",
                f"/v1/agents/{agent_id}/results",
                key=self._deployed.admin_key,
                headers=self._headers,
                json={"items": results},
            )
            assert answer.status == 200, answer.body


@pytest.fixture
def stocked(deployed: Deployed, project: DeployedProject) -> DeployedProject:
    deployed.store(project, "/data/fleet.bin", CONTENT, SIGNATURE)
    return project


def job_of(project: DeployedProject, job_id: str) -> dict[str, Any]:
    answer = project.http("GET", f"/v1/jobs/{quote(job_id, safe='')}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_200_targets_in_one_window_share_one_job_and_transfer(deployed: Deployed, stocked: DeployedProject) -> None:
    names = [f"host-{n:03d}" for n in range(40)]
    targets = [{"agent_id": name, "container_id": container} for name in names for container in "abcde"]
    submitted = stocked.http("POST", "/v1/downloads/batch", json=body(targets=targets))
    assert submitted.status == 202, submitted.body
    job_id = submitted.json()["job_id"]
    until(lambda: job_of(stocked, job_id), lambda job: job["transfer_id"] is not None, 30)

    agents = Agents(deployed, stocked)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(agents.serve, names))

    job = until(lambda: job_of(stocked, job_id), lambda job: job["status"] in ENDED, 60)
    assert (job["status"], job["counts"]["success"]) == ("Success", 200)
    assert len({transfer for _, transfer in agents.fetched}) == 1
    assert sorted(name for name, _ in agents.fetched) == sorted(names * 5)
    assert len(stocked.http("GET", "/v1/jobs").json()["items"]) == 1
    uuid = submitted.json()["tasks"][77]["task_id"].rsplit(":", 1)[1]
    assert stocked.http("GET", f"/v1/downloads/{uuid}").json()["status"] == "Success"
    page = stocked.http("GET", "/v1/downloads", query={"job_id": job_id, "status": "Success", "limit": 100}).json()
    assert len(page["items"]) == 100
    assert page["next_cursor"]


def test_two_windows_are_two_jobs_and_agents_see_only_their_own(deployed: Deployed, stocked: DeployedProject) -> None:
    first = stocked.http("POST", "/v1/downloads", json=body(target_agent_id="host-a")).json()
    until(lambda: job_of(stocked, first["job_id"]), lambda job: job["transfer_id"] is not None, 30)
    second = stocked.http("POST", "/v1/downloads", json=body(target_agent_id="host-a")).json()
    assert first["job_id"] != second["job_id"]

    key = stocked.agent_key("host-a")
    answer = deployed.http("GET", "/v1/agents/host-a/transfers", key=key, query={"wait": 5})
    (item,) = answer.json()["items"]
    assert deployed.http("GET", "/v1/agents/host-b/transfers", key=key).status == 403
    report = {"items": [{"transfer_id": item["transfer_id"], "container_id": "", "error_code": 7, "error_msg": "full"}]}
    assert deployed.http("POST", "/v1/agents/host-a/results", key=key, json=report).status == 200

    def task(task_id: str) -> dict[str, Any]:
        return dict(stocked.http("GET", f"/v1/downloads/{quote(task_id, safe='')}").json())

    failed = until(lambda: task(first["task_id"]), lambda shown: shown["status"] in ENDED, 40)
    assert (failed["status"], failed["error_code"], failed["error_msg"]) == ("Failed", 7, "full")
    Agents(deployed, stocked).serve("host-a")
    assert until(lambda: task(second["task_id"]), lambda shown: shown["status"] in ENDED, 40)["status"] == "Success"


def test_target_that_never_answers_times_out(tmp_path: Path) -> None:
    # On a cloud of its own: with a time-out this short, the Jobs of other tests would end on a busy machine.
    with deployed_at(tmp_path, JobTimeoutSeconds="8") as cloud:
        project = cloud.project()
        cloud.store(project, "/data/fleet.bin", CONTENT, SIGNATURE)
        submitted = project.http("POST", "/v1/downloads", json=body(target_agent_id="host-gone")).json()
        job = until(lambda: job_of(project, submitted["job_id"]), lambda job: job["status"] in ENDED, 90)
        assert (job["status"], job["counts"]["timeout"]) == ("Timeout", 1)
        assert (
            cloud.http(
                "GET",
                "/v1/agents/host-gone/transfers",
                key=cloud.admin_key,
                headers={"x-project-id": project.id},
            ).json()["items"]
            == []
        )


def test_unknown_signature_is_404(stocked: DeployedProject) -> None:
    answer = stocked.http("POST", "/v1/downloads", json=body(target_agent_id="host-a", file_signature="f" * 64))
    assert (answer.status, answer.json()["code"]) == (404, "file_not_found")
