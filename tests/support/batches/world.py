"""A project, a business on this machine and its batches, over the HTTP API on moto."""

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

OVER = ("finished", "stopped")


def _agree(_: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"result": "ok"}


class Business:
    """Answers /process, /before-create, /before-run and /stopped; `answers` holds what is not simply ok."""

    def __init__(self) -> None:
        self.port = 0
        self.secret: str | None = None
        self.answers: dict[str, Callable[[dict[str, Any]], tuple[int, Any]]] = {}
        self.heard: list[tuple[str, dict[str, Any]]] = []
        self._lock = threading.Lock()

    def __call__(self, request: Handler) -> None:
        body = request.body()
        if self.secret:
            Webhook(self.secret).verify(body, dict(request.headers.items()))
        said = json.loads(body)
        with self._lock:
            self.heard.append((request.path, said))
        status, answer = self.answers.get(request.path, _agree)(said)
        request.answer(status, json.dumps(answer).encode())

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def calls(self, path: str = "/process") -> list[dict[str, Any]]:
        with self._lock:
            return [said for where, said in self.heard if where == path]


class BatchWorld:
    def __init__(self, cloud: MotoCloud, project: Project, business: Business) -> None:
        self.cloud = cloud
        self.project = project
        self.business = business
        business.secret = cloud.callback_secret(project.id)

    def http(self, method: str, path: str, json: Any = None, **more: Any) -> Answer:
        return self.cloud.http(method, path, json=json, key=self.project.key, **more)

    def register(self, *hooks: str, **more: Any) -> str:
        """A business with these callbacks: before_create, before_run, process_stop."""
        paths = {f"{hook}_url": self.business.url("/" + hook.replace("_", "-")) for hook in hooks}
        body = {"name": "loyalty", "process_url": self.business.url("/process"), **paths, **more}
        made = self.http("POST", "/v1/biz", body)
        assert made.status == 201, made.body
        return str(made.json()["biz_id"])

    def create(self, biz_id: str, **more: Any) -> str:
        made = self.http("POST", "/v1/batches", {"biz_id": biz_id, "name": "points", "total": 5, "rate": 100, **more})
        assert made.status == 201, made.body
        return str(made.json()["batch_id"])

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

    def ended(self, batch_id: str, seconds: float = 20) -> dict[str, Any]:
        """Needs a cloud whose machines run."""
        deadline = time.monotonic() + seconds
        while (shown := self.shown(batch_id))["status"] not in OVER:
            assert time.monotonic() < deadline, shown
            time.sleep(0.1)
        return shown


@contextmanager
def batch_world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    business = Business()
    with serve(business) as business.port:
        yield BatchWorld(cloud, cloud.project(), business)
