"""Runs exports on moto step by step, as the state machine does."""

from __future__ import annotations

import csv
import io
from typing import Any

import openpyxl

from tests.support.exports.paged_source import PagedSource
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.queue.retention import MARKER

MACHINE = {
    "pull": "pull_pages",
    "ranges": "render_export",
    "render": "render_export",
    "publish": "publish_export",
}


class ExportWorld:
    def __init__(self, cloud: MotoCloud, project: Project, source: PagedSource) -> None:
        self.cloud, self.project, self.source = cloud, project, source
        # How many objects each worker of the last export in ranges has stored.
        self.stored_by_lane: list[int] = []
        # Waits between retries of a page advance the clock of the test.
        cloud.app.exports.sleep = self._sleep

    def _sleep(self, seconds: float) -> None:
        self.cloud.clock.advance(seconds)

    def post(self, path: str = "/v1/task", **fields: Any) -> Answer:
        if not {"source_url", "source_data", "source"} & set(fields):
            fields["source_url"] = self.source.url
        return self.cloud.http("POST", path, json={"name": "orders", **fields}, key=self.project.key)

    def submit(self, path: str = "/v1/task", **fields: Any) -> str:
        answer = self.post(path, **fields)
        assert answer.status == 202, answer.body
        return str(answer.json()["task_id"])

    def get(self, path: str, **query: Any) -> Answer:
        return self.cloud.http("GET", path, query=query, key=self.project.key)

    def shown(self, task_id: str) -> dict[str, Any]:
        answer = self.get("/v1/task", task_id=task_id)
        assert answer.status == 200, answer.body
        shown: dict[str, Any] = answer.json()
        return shown

    def admit(self, task_id: str) -> dict[str, Any]:
        """Admits the request, even during its back-off, and returns the input of its state machine."""
        self.cloud.clock.advance(301)
        self.cloud.deliver("WakeupsQueue")
        self.cloud.deliver("AdmissionQueue")
        request = self.cloud.app.queue.get(self.project.id, task_id)
        assert request.status == "running", request
        return {"project_id": self.project.id, "request_id": task_id, "attempt": request.attempt}

    def attempt(self, task_id: str) -> dict[str, Any]:
        """Runs one attempt step by step. Returns the task as the API shows it."""
        state = self.admit(task_id)
        step = "pull"
        while step in MACHINE:
            if step == "ranges":
                self.lanes(state)
            state = self.cloud.invoke(MACHINE[step], state)
            step = state["next"]
        return self.shown(task_id)

    def lanes(self, state: dict[str, Any]) -> None:
        """Does what the Map state does, one lane after another."""
        self.stored_by_lane = []
        for lane in state["lanes"]:
            before = len(self.objects())
            answer = self.cloud.invoke("render_ranges", lane)
            while answer["next"] == "ranges":
                answer = self.cloud.invoke("render_ranges", answer)
            self.stored_by_lane.append(len(self.objects()) - before)

    def run(self, task_id: str) -> dict[str, Any]:
        shown = self.shown(task_id)
        while shown["status"] not in ("completed", "failed", "cancelled"):
            shown = self.attempt(task_id)
        return shown

    def export(self, path: str = "/v1/task", **fields: Any) -> tuple[dict[str, Any], bytes]:
        task_id = self.submit(path, **fields)
        shown = self.run(task_id)
        assert shown["status"] == "completed", shown
        return shown, self.file(task_id)

    def file(self, task_id: str) -> bytes:
        result = self.cloud.app.queue.get(self.project.id, task_id).result
        assert result
        answer = self.s3.get_object(Bucket=self.bucket, Key=result["key"])
        return bytes(answer["Body"].read())

    @property
    def bucket(self) -> str:
        return self.cloud.app.settings.files_bucket

    @property
    def s3(self) -> Any:
        return self.cloud.client("s3")

    def objects(self, prefix: str = "") -> list[str]:
        listing = self.s3.list_objects_v2(Bucket=self.bucket, Prefix=prefix)
        return [entry["Key"] for entry in listing.get("Contents", []) if entry["Key"] != MARKER]

    def uploads(self) -> list[Any]:
        return list(self.s3.list_multipart_uploads(Bucket=self.bucket).get("Uploads", []))


def read_csv(data: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def read_sheet(data: bytes, index: int = 0) -> list[tuple[Any, ...]]:
    return list(openpyxl.load_workbook(io.BytesIO(data)).worksheets[index].values)
