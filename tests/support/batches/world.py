"""A project, a business on this machine and its batches, through the HTTP API on moto."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from standardwebhooks import Webhook

from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tests.support.patience import idle_clock
from tidegate.batches.slice import step

OVER = ("finished", "stopped")


def _agree(_: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"result": "ok"}


class Business:
    """Answers any path with `ok`, or with the function in `answers`, and records the calls."""

    def __init__(self) -> None:
        self.port = 0
        self.secret: str | None = None
        self.answers: dict[str, Callable[[dict[str, Any]], tuple[int, Any]]] = {}
        self.received: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        body = request.body()
        if self.secret:
            Webhook(self.secret).verify(body, dict(request.headers.items()))
        content = json.loads(body)
        with self._lock:
            self.received.append((request.path, content))
        status, answer = self.answers.get(request.path, _agree)(content)
        request.answer(status, json.dumps(answer).encode())

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def calls(self, path: str = "/process") -> list[dict[str, Any]]:
        with self._lock:
            return [body for called, body in self.received if called == path]


class BatchWorld:
    def __init__(self, cloud: MotoCloud, project: Project, business: Business) -> None:
        self.cloud = cloud
        self.project = project
        self.business = business
        business.secret = cloud.callback_secret(project.id)

    def http(self, method: str, path: str, json: Any = None, **more: Any) -> Answer:
        return self.cloud.http(method, path, json=json, key=self.project.key, **more)

    def register(self, *hooks: str, **more: Any) -> str:
        """Registers a business with these hooks: before_create, before_run, process_stop. Returns its id."""
        paths = {f"{hook}_url": self.business.url("/" + hook.replace("_", "-")) for hook in hooks}
        body = {"name": "loyalty", "process_url": self.business.url("/process"), **paths, **more}
        answer = self.http("POST", "/v1/biz", body)
        assert answer.status == 201, answer.body
        return str(answer.json()["biz_id"])

    def create(self, biz_id: str, **more: Any) -> str:
        answer = self.http("POST", "/v1/batches", {"biz_id": biz_id, "name": "points", "total": 5, "rate": 100, **more})
        assert answer.status == 201, answer.body
        return str(answer.json()["batch_id"])

    def store_file(self, name: str, content: bytes) -> str:
        """Uploads a file to the library. Returns its file_id."""
        announced = {"biz_id": 1, "app_id": 1, "file_path": f"/in/{name}", "size": len(content)}
        file = self.http("POST", "/v1/files", announced).json()
        key = f"content/{self.project.id}/{file['file_id']}"
        self.cloud.client("s3").put_object(Bucket=self.cloud.app.settings.files_bucket, Key=key, Body=content)
        assert self.http("POST", f"/v1/files/{file['file_id']}/complete").status == 200
        return str(file["file_id"])

    def step(self, request_id: str, **more: Any) -> dict[str, Any]:
        """Runs one step of the batch machine for the request's current attempt, as its function would."""
        request = self.cloud.app.queue.get(self.project.id, request_id)
        event = {"project_id": self.project.id, "request_id": request_id, "attempt": request.attempt} | more
        return step(self.cloud.app.batches, event)

    def act(self, batch_id: str, action: str, body: Any = None, expect: int = 202) -> dict[str, Any]:
        answer = self.http("POST", f"/v1/batches/{batch_id}/{action}", body)
        assert answer.status == expect, answer.body
        return dict(answer.json())

    def shown(self, batch_id: str) -> dict[str, Any]:
        answer = self.http("GET", f"/v1/batches/{batch_id}")
        assert answer.status == 200, answer.body
        return dict(answer.json())

    def admit(self) -> None:
        self.cloud.deliver("AdmissionQueue")

    def ended(self, batch_id: str, seconds: float = 60) -> dict[str, Any]:
        """Waits until the batch has ended, and for the executions that end its request and send its notice.

        Needs a cloud that runs state machines."""
        deadline = idle_clock() + seconds
        while (shown := self.shown(batch_id))["status"] not in OVER or self._is_executing():
            assert idle_clock() < deadline, shown
            time.sleep(0.1)
        return shown

    def _is_executing(self) -> bool:
        machine = self.cloud.names.machines["BatchMachine"]
        running = self.cloud.client("stepfunctions").list_executions(stateMachineArn=machine, statusFilter="RUNNING")
        return bool(running["executions"])


@contextmanager
def batch_world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    business = Business()
    with serve(business) as business.port:
        yield BatchWorld(cloud, cloud.project(), business)
