"""The stack deployed on the tests' own MiniStack, called over HTTP like a real deployment."""

from __future__ import annotations

import json as jsonlib
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import urllib3

from local.cloud import Up, cloud_up
from local.place import Place
from local.progress import silence
from tests.support.http_servers import free_port
from tests.support.moto.cloud import Answer
from tests.support.patience import idle_clock

T = TypeVar("T")
# Short windows and deadlines, so that tests take seconds where the defaults would take minutes.
SOON_AGAIN = {"RequestPolicies": '{"download": {"delay": 2}, "export": {"delay": 2}}'}
SHORT = {
    # Fuzzing sends wrong keys by the hundred.
    "StrangersRate": "1000",
    "KeyCacheSeconds": "3",
    "CollectWindowSeconds": "3",
    "BatchSliceSeconds": "4",
    "BatchChannels": "batch,batch_b",
    "ChannelCapacities": '{"batch_b": 3}',
    "BatchLeaseSeconds": "5",
    "SourceBucket": "tidegate-e2e-source-*",
    "SourceTable": "tidegate-e2e-source-*",
    **SOON_AGAIN,
}


@dataclass(frozen=True)
class DeployedProject:
    id: str
    key: str
    callback_secret: str
    cloud: Deployed = field(repr=False)

    def agent_key(self, agent_id: str) -> str:
        return str(self.cloud.make_key(self.id, ["agent"], agent_id)["key"])

    def http(self, method: str, path: str, **options: Any) -> Answer:
        return self.cloud.http(method, path, key=self.key, **options)


class Deployed:
    def __init__(self, up: Up) -> None:
        self.up = up
        self.api_url = up.cloud.api_url
        self.ws_url = up.cloud.ws_url
        self.admin_key = up.cloud.admin_key
        self.outputs = up.outputs
        self.pool = urllib3.PoolManager(maxsize=32, timeout=urllib3.Timeout(60), retries=False)

    def client(self, service: str, **options: Any) -> Any:
        """Returns a boto3 client with full rights on the emulator."""
        return self.up.emulator.client(service, **options)

    def http(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        key: str | None = None,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> Answer:
        sent_headers = dict(headers or {})
        if key:
            sent_headers["authorization"] = f"Bearer {key}"
        if json is not None:
            body = jsonlib.dumps(json).encode()
            sent_headers.setdefault("content-type", "application/json")
        url = self.api_url + path + (f"?{urlencode(query)}" if query else "")
        answer = self.pool.request(method, url, body=body, headers=sent_headers, redirect=False)
        return Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.data)

    def project(self, name: str | None = None, *, allow_private_urls: bool = True) -> DeployedProject:
        body = {"name": name or f"p-{uuid.uuid4().hex[:8]}", "allow_private_urls": allow_private_urls}
        answer = self.http("POST", "/v1/projects", json=body, key=self.admin_key)
        assert answer.status == 201, answer.body
        project_id = answer.json()["project_id"]
        key = self.make_key(project_id, ["read", "write"])
        return DeployedProject(project_id, key["key"], key["callback_secret"], self)

    def make_key(self, project_id: str, scopes: list[str], agent_id: str | None = None) -> Any:
        body = {"scopes": scopes} | ({"agent_id": agent_id} if agent_id else {})
        answer = self.http("POST", f"/v1/projects/{project_id}/keys", json=body, key=self.admin_key)
        assert answer.status == 201, answer.body
        return answer.json()

    def store(self, project: DeployedProject, file_path: str, content: bytes, signature: str) -> str:
        """Uploads a file into the library and returns its id."""
        announced = {"biz_id": 2, "app_id": 3, "file_path": file_path, "signature": signature, "size": len(content)}
        file = project.http("POST", "/v1/files", json=announced).json()
        put = self.pool.request("PUT", file["upload_url"], body=content, headers=file["upload_headers"])
        assert put.status == 200, put.data
        completed = project.http("POST", f"/v1/files/{file['file_id']}/complete")
        assert completed.status == 200, completed.body
        return str(file["file_id"])


def until(read: Callable[[], T], holds: Callable[[T], bool], seconds: float = 60, every: float = 0.25) -> T:
    """Calls `read` until `holds` accepts its value, and returns that value. A failure shows the last value."""
    deadline = idle_clock() + seconds
    while not holds(value := read()):
        assert idle_clock() < deadline, f"condition not met after {seconds} s: {value}"
        time.sleep(every)
    return value


@contextmanager
def deployed_at(home: Path, **params: str) -> Iterator[Deployed]:
    with cloud_up(Place(home=home, port=free_port(), params={**SHORT, **params}), silence) as up:
        yield Deployed(up)
