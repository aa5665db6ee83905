"""Follows one download, export, ingest and batch through the product, from the request to the notice of its end.

Prints how many files each of them runs through, how often the execution enters another file, and its AWS calls. These
figures say how much a reader has to hold in the head; CONTRIBUTING.md has the bars.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys

ROOT = Path(__file__).resolve().parents[2]
_PRODUCT = (str(ROOT / "layers/core/tidegate") + "/", str(ROOT / "functions") + "/")
_PATIENCE_SECONDS = 120
_PAGE = json.dumps({"status": 200, "msg": "", "data": {"data": [{"a": 1}, {"a": 2}], "total": 2}}).encode()
_JSON = {"Content_Type": "application/json"}


@dataclass
class Walk:
    """What one journey ran through."""

    files: Counter[str] = field(default_factory=Counter)
    pairs: Counter[tuple[str, str]] = field(default_factory=Counter)
    aws_calls: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, file: str, former: str | None) -> None:
        with self._lock:
            self.files[file] += 1
            if former is not None and former != file:
                self.pairs[min(former, file), max(former, file)] += 1

    @property
    def changes(self) -> int:
        """How often the execution went from one file to another."""
        return self.pairs.total()


@contextmanager
def traced(walk: Walk) -> Iterator[None]:
    """Records every product function that begins in any thread. Imports are not steps of a journey."""
    threads = threading.local()

    def profile(frame: FrameType, event: str, _argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(_PRODUCT) or code.co_name == "<module>":
            return
        walk.step(code.co_filename, getattr(threads, "file", None))
        threads.file = code.co_filename

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _answer_all(request: Handler) -> None:
    """The world outside: a file, a page of rows, and a business."""
    request.body()
    if request.path.startswith("/file"):
        request.answer(200, b"tide " * 2000)
    elif request.path.startswith("/rows"):
        request.answer(200, _PAGE, **_JSON)
    else:
        request.answer(200, b'{"result": "ok"}', **_JSON)


class World:
    def __init__(self, cloud: MotoCloud, port: int) -> None:
        self.cloud = cloud
        self.project = cloud.project()
        self.base = f"http://127.0.0.1:{port}"
        self.biz_id = self.post("/v1/biz", {"name": "biz", "process_url": self.base})["biz_id"]
        self.fleet = Fleet(cloud, self.project)
        self._inbox = keys.inbox(self.project.id, "a-1")
        cloud.while_waiting += [self.fleet.collect, self._report]
        self._numbers = count()

    def next_number(self) -> int:
        return next(self._numbers)

    def _report(self) -> None:
        if self._is_woken():
            self.fleet.report("a-1", 0, items=self.fleet.inbox("a-1"))

    def _is_woken(self) -> bool:
        """A host asks when it is woken. If it asked at every wait, the figures would depend on the machine's load."""
        found = self.cloud.client("dynamodb").query(
            TableName=self.cloud.app.table.name,
            IndexName="gsi1",
            KeyConditionExpression="gsi1pk = :inbox",
            ExpressionAttributeValues={":inbox": {"S": self._inbox}},
        )
        return bool(found["Items"])

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.cloud.http("POST", path, json=body, key=self.project.key)
        assert answer.status < 300, answer.body
        result: dict[str, Any] = answer.json()
        return result

    def until_over(self) -> None:
        """Runs what was submitted to its end, when its notice is on the topic."""
        self.cloud.deliver("AdmissionQueue")
        client, deadline = self.cloud.client("stepfunctions"), time.monotonic() + _PATIENCE_SECONDS
        for machine in self.cloud.names.machines.values():
            while client.list_executions(stateMachineArn=machine, statusFilter="RUNNING")["executions"]:
                assert time.monotonic() < deadline, "an execution does not end"
                time.sleep(0.02)
        self.cloud.deliver("AdmissionQueue")


def _download(world: World) -> None:
    world.fleet.to_window_start()
    world.post("/v1/downloads", world.fleet.body(target_agent_id="a-1"))
    world.until_over()


def _export(world: World) -> None:
    world.post("/v1/task", {"name": "rows", "source_url": f"{world.base}/rows", "type": "csv"})
    world.until_over()


def _ingest(world: World) -> None:
    path = f"/file-{world.next_number()}"
    world.post("/v1/files", {"biz_id": 1, "app_id": 1, "file_path": path, "source_url": world.base + path})
    world.until_over()


def _batch(world: World) -> None:
    body = {"biz_id": world.biz_id, "name": "batch", "total": 5, "rate": 100}
    batch_id = world.post("/v1/batches", body)["batch_id"]
    world.post(f"/v1/batches/{batch_id}/start", {})
    world.until_over()


JOURNEYS: dict[str, Callable[[World], None]] = {
    "download": _download,
    "export": _export,
    "ingest": _ingest,
    "batch": _batch,
}


def walk(name: str) -> Walk:
    """Runs a journey twice, and follows the second: the first imports modules and builds what warm functions keep."""
    followed = Walk()
    with serve(_answer_all) as port, MotoCloud(machines_run=True) as cloud:
        world = World(cloud, port)
        JOURNEYS[name](world)
        with count_calls(cloud.app) as calls, traced(followed):
            JOURNEYS[name](world)
        followed.aws_calls = sum(calls.values())
    return followed
