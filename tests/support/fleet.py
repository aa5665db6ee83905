"""A fleet for tests of distribution: stores a file, submits, delivers messages and acts as the agents."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from tests.support.moto.cloud import Answer, MotoCloud, Project, _sqs_record
from tidegate.aws import keys
from tidegate.aws.table import put
from tidegate.distribution.model import bucket_of, job_key, window_end
from tidegate.files.model import content_object

CONTENT = b"tide " * 2000


class Fleet:
    """One project with one stored file. Tests call the steps of a Job themselves, in any order and repeatedly."""

    def __init__(self, cloud: MotoCloud, project: Project | None = None) -> None:
        self.cloud = cloud
        self.project = project or cloud.project()
        self.signature = self.store(CONTENT)
        self._keys: dict[str, str] = {}

    def store(self, content: bytes) -> str:
        """Stores content as `complete` or an ingest does."""
        signature = hashlib.sha256(content).hexdigest()
        app = self.cloud.app
        self.cloud.client("s3").put_object(
            Bucket=app.files.bucket.name, Key=content_object(self.project.id, signature), Body=content
        )
        self.content(signature, "ready", len(content))
        return signature

    def content(self, signature: str, state: str, size: int = 0) -> None:
        item = keys.content(self.project.id, signature) | {"signature": signature, "state": state, "size": size}
        brought = {"bringing": {"fil-1"}} if state == "coming" else {}
        self.cloud.app.table.write(put(item | brought))

    # --- callers

    def body(self, **more: Any) -> dict[str, Any]:
        return {
            "biz_id": 1,
            "app_id": 2,
            "file_path": "/data/app.bin",
            "file_name": "app.bin",
            "target_user": "root",
            "target_file_dir": "/opt/app",
            "file_signature": self.signature,
            **more,
        }

    def post(self, path: str, body: dict[str, Any], **options: Any) -> Answer:
        return self.cloud.http("POST", path, json=body, key=self.project.key, **options)

    def submit(self, agent_id: str = "a-1", **more: Any) -> dict[str, Any]:
        # A wait takes no time, so the window would otherwise close before the targets of this submit are in it.
        with self.cloud.windows_stay_open():
            answer = self.post("/v1/downloads", self.body(target_agent_id=agent_id, **more))
        assert answer.status == 202, answer.body
        return dict(answer.json())

    def submit_many(self, agent_ids: Iterable[str], **more: Any) -> dict[str, Any]:
        targets = [{"agent_id": agent_id} for agent_id in agent_ids]
        with self.cloud.windows_stay_open():
            answer = self.post("/v1/downloads/batch", self.body(targets=targets, **more))
        assert answer.status == 202, answer.body
        return dict(answer.json())

    def get(self, path: str, **query: Any) -> Any:
        answer = self.cloud.http("GET", path, key=self.project.key, query=query)
        assert answer.status == 200, answer.body
        return answer.json()

    def task(self, task_id: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/downloads/{task_id.rsplit(':', 1)[-1]}"))

    def job(self, job_id: str) -> dict[str, Any]:
        return dict(self.get(f"/v1/jobs/{job_key(job_id)}"))

    def states(self, job_id: str) -> dict[str, str]:
        """Status by agent, of all targets."""
        found: dict[str, str] = {}
        cursor = None
        while True:
            page = self.get(
                f"/v1/jobs/{self.job(job_id)['key']}/targets", limit=100, **({"cursor": cursor} if cursor else {})
            )
            found |= {item["agent_id"]: item["status"] for item in page["items"]}
            cursor = page["next_cursor"]
            if cursor is None:
                return found

    def tasks_of(self, job_id: str, **query: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        more: dict[str, Any] = {}
        while True:
            page = self.get("/v1/downloads", job_id=job_id, limit=100, **query, **more)
            found += page["items"]
            if page["next_cursor"] is None:
                return found
            more = {"cursor": page["next_cursor"]}

    # --- the window and the steps

    def collect(self) -> None:
        self.cloud.deliver("TargetsQueue")

    def to_window_start(self) -> None:
        """Moves the clock to the start of a window, so that the next calls fall into one window."""
        seconds = self.cloud.app.distribution.windows.seconds
        now = self.cloud.clock()
        self.cloud.clock.move_to(window_end(bucket_of(now, seconds), seconds) + timedelta(milliseconds=1))

    def pass_window(self) -> None:
        self.cloud.clock.advance(
            self.cloud.app.distribution.windows.seconds + self.cloud.app.distribution.windows.grace
        )

    def step(self, name: str, job_id: str, **more: Any) -> Any:
        """Invokes a function of the state machine; `close_window` again for as long as it waits for targets."""
        event = {"project_id": self.project.id, "job_key": job_key(job_id), **more}
        while (answer := self.cloud.invoke(name, event)) and name == "close_window" and answer["status"] == "Pending":
            self.cloud.clock.advance(5)
        return answer

    def run_until_dispatched(self, job_id: str) -> None:
        self.collect()
        self.pass_window()
        self.step("close_window", job_id)
        assert self.step("prepare_file", job_id)["state"] == "ready"
        assert self.step("dispatch_transfer", job_id)["state"] == "dispatched"

    # --- agents

    def key_of(self, agent_id: str) -> str:
        if agent_id not in self._keys:
            self._keys[agent_id] = self.project.agent_key(agent_id)
        return self._keys[agent_id]

    def inbox(self, agent_id: str, *, can: str = "stage", **query: Any) -> list[dict[str, Any]]:
        path, headers = f"/v1/agents/{agent_id}/transfers", {"X-Tidegate-Can": can}
        answer = self.cloud.http("GET", path, key=self.key_of(agent_id), query=query, headers=headers)
        assert answer.status == 200, answer.body
        return list(answer.json()["items"])

    def report(self, agent_id: str, code: int, *, items: list[dict[str, Any]] | None = None, **more: Any) -> Answer:
        """Reports this code for all entries of the agent's inbox, or for the given items."""
        results = [
            {"transfer_id": item["transfer_id"], "container_id": item["container_id"], "error_code": code, **more}
            for item in (self.inbox(agent_id) if items is None else items)
        ]
        assert results, f"nothing for {agent_id} to report"
        path = f"/v1/agents/{agent_id}/results"
        return self.cloud.http("POST", path, json={"items": results}, key=self.key_of(agent_id))

    def deliver_all(self, job_id: str, code: int = 0) -> list[str]:
        """Writes the reports of all agents directly, for large fleets. Returns their ids."""
        table, job = self.cloud.app.table, self.cloud.app.distribution.jobs.get(self.project.id, job_key(job_id))
        assert job is not None
        reported = [
            {name: value for name, value in item.items() if not name.startswith("gsi1")} | {"code": code}
            for shard in range(job.shard_count or 0)
            for item in table.query_all(keys.job_inbox_entries(self.project.id, job.key, shard))
        ]
        table.batch_put(reported)
        return [item["agent_id"] for item in reported]


def messages(fleet: Fleet) -> list[Any]:
    """Receives all messages of this project from the targets queue, as records of a Lambda event."""
    received = fleet.cloud._receive("TargetsQueue", 10_000)
    fleet.cloud._settle("TargetsQueue", received, failed=set())
    records = [_sqs_record(message) for message in received]
    return [record for record in records if json.loads(record["body"])["project_id"] == fleet.project.id]


def collect(fleet: Fleet, records: list[Any]) -> None:
    assert fleet.cloud.invoke("collect_targets", {"Records": records}) == {"batchItemFailures": []}


def due(fleet: Fleet) -> list[dict[str, Any]]:
    """The project's Jobs in the due index."""
    table = fleet.cloud.app.table
    found = (
        item for shard in range(keys.DUE_SHARDS) for item in table.query_all(keys.due_partition(shard), index="due")
    )
    return [item for item in found if item["due_kind"] == "job" and item["project_id"] == fleet.project.id]
