"""Requests files for the library, runs their ingest on moto, and reads the results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.files.model import content_object
from tidegate.ingest.steps import work
from tidegate.queue.retention import MARKER

BIZ = {"biz_id": 1, "app_id": 2}


@dataclass(frozen=True)
class Library:
    cloud: MotoCloud
    project: Project

    def ask(self, url: str, **more: Any) -> dict[str, Any]:
        """POST /v1/files with a source. Returns `{file_id, request_id}`."""
        body = {**BIZ, "file_path": "/in/file.bin", "source_url": url, **more}
        answer = self.cloud.http("POST", "/v1/files", json=body, key=self.project.key)
        assert answer.status == 202, answer.body
        return dict(answer.json())

    def submit(self, kind: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
        body = {"type": kind, "payload": payload, **more}
        answer = self.cloud.http("POST", "/v1/requests", json=body, key=self.project.key)
        assert answer.status == 202, answer.body
        return dict(answer.json())

    def run(self, seconds_left: float = 800.0) -> None:
        """Admits waiting requests and runs their steps here, as the state machine would, until none is left."""
        ran: set[str] = set()
        while self.cloud.deliver("AdmissionQueue"):
            for name, arn in self._executions():
                if name not in ran:
                    ran.add(name)
                    self._run(arn, seconds_left)

    def _executions(self) -> list[tuple[str, str]]:
        machine = self.cloud.names.machines["IngestMachine"]
        listed = self.cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
        return [(entry["name"], entry["executionArn"]) for entry in listed]

    def _run(self, arn: str, seconds_left: float) -> None:
        import json

        described = self.cloud.client("stepfunctions").describe_execution(executionArn=arn)
        event = json.loads(described["input"]) | {"more": True}
        while event["more"]:
            event = json.loads(json.dumps(work(self.cloud.app.ingest, event, seconds_left)))

    def file(self, file_id: str) -> dict[str, Any]:
        return dict(self.cloud.http("GET", f"/v1/files/{file_id}", key=self.project.key).json())

    def request(self, request_id: str) -> dict[str, Any]:
        return dict(self.cloud.http("GET", f"/v1/requests/{request_id}", key=self.project.key).json())

    def objects(self) -> dict[str, bytes]:
        s3, bucket = self.cloud.client("s3"), self.cloud.app.files.bucket.name
        keys = [entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
        keys = [key for key in keys if key != MARKER]
        return {self._name(key): s3.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys}

    def _name(self, key: str) -> str:
        """Returns the key by the content's signature for an object that an ingest named after its run."""
        if not key.rsplit("/", 1)[-1].startswith("req-"):
            return key
        contents = self.cloud.client("dynamodb").scan(
            TableName=self.cloud.names.refs["Table"],
            FilterExpression="#object = :key",
            ExpressionAttributeNames={"#object": "object"},
            ExpressionAttributeValues={":key": {"S": key}},
        )["Items"]
        return content_object(self.project.id, contents[0]["signature"]["S"]) if contents else key

    def uploads(self) -> list[Any]:
        listing = self.cloud.client("s3").list_multipart_uploads(Bucket=self.cloud.app.files.bucket.name)
        return list(listing.get("Uploads", []))
