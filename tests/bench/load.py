"""Measures rate and latency of frequent routes on MiniStack, compared with an empty Lambda behind the same API."""

from __future__ import annotations

import hashlib
import io
import statistics
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.bench.figures import Figure, few
from tests.support.deployed import Deployed, DeployedProject
from tests.support.moto.cloud import Answer

SECTION = "Load on MiniStack, two cores shared with the clients"
_NOTHING = b"""
def handler(event, context):
    print("nothing")
    return {"statusCode": 202, "headers": {"content-type": "application/json"}, "body": "{}"}
"""
_BAR = 2.0
CONTENT = b"load" * 1000
SHA = hashlib.sha256(CONTENT).hexdigest()


@dataclass(frozen=True)
class Run:
    rate: float
    p50: float
    p95: float
    p99: float


def _drive(call: Callable[[int], Answer], clients: int, total: int) -> Run:
    """Sends `total` requests from `clients` threads, each of which waits for its answer before the next."""
    times: list[float] = []
    numbers = iter(range(total))
    lock = threading.Lock()

    def client() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            began = time.perf_counter()
            answer = call(number)
            taken = time.perf_counter() - began
            assert answer.status < 300, answer.body
            with lock:
                times.append(taken)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    spent = time.perf_counter() - began
    cuts = statistics.quantiles(times, n=100)
    return Run(total / spent, cuts[49] * 1000, cuts[94] * 1000, cuts[98] * 1000)


@contextmanager
def nothing(cloud: Deployed) -> Iterator[None]:
    """Adds POST /nothing for a while: the same API and authorizer, with a handler that only answers."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("app.py", _NOTHING)
    functions, gateway = cloud.client("lambda"), cloud.client("apigatewayv2")
    submit = next(
        entry for entry in functions.list_functions()["Functions"] if "SubmitFunction" in entry["FunctionName"]
    )
    function = functions.create_function(
        FunctionName="nothing",
        Runtime="python3.13",
        Handler="app.handler",
        Role=submit["Role"],
        Code={"ZipFile": packed.getvalue()},
    )
    api = gateway.get_apis()["Items"]
    api_id = next(entry["ApiId"] for entry in api if entry["ProtocolType"] == "HTTP")
    authorizer = gateway.get_authorizers(ApiId=api_id)["Items"][0]["AuthorizerId"]
    integration = gateway.create_integration(
        ApiId=api_id,
        IntegrationType="AWS_PROXY",
        IntegrationUri=function["FunctionArn"],
        PayloadFormatVersion="2.0",
    )
    route = gateway.create_route(
        ApiId=api_id,
        RouteKey="POST /nothing",
        Target=f"integrations/{integration['IntegrationId']}",
        AuthorizationType="CUSTOM",
        AuthorizerId=authorizer,
    )
    try:
        yield
    finally:
        gateway.delete_route(ApiId=api_id, RouteId=route["RouteId"])
        functions.delete_function(FunctionName="nothing")


def _submit(project: DeployedProject, number: int) -> Answer:
    body: dict[str, Any] = {"biz_id": 2, "app_id": 3, "file_path": "/load/file", "file_name": "file"}
    body |= {"target_agent_id": f"agent-{number}", "target_user": "root", "target_file_dir": "/tmp/load"}
    return project.http("POST", "/v1/downloads", json=body | {"file_signature": SHA})


def measure(cloud: Deployed, quick: bool) -> Iterator[Figure]:
    project = cloud.project()
    cloud.store(project, "/load/file", CONTENT, SHA)
    with nothing(cloud):
        yield from _measure(project, quick)


def _measure(project: DeployedProject, quick: bool) -> Iterator[Figure]:
    task = str(_submit(project, 0).json()["task_id"]).rsplit(":", 1)[-1]
    calls: dict[str, Callable[[int], Answer]] = {
        "do nothing": lambda _: project.http("POST", "/nothing", json={}),
        "POST /v1/downloads": lambda number: _submit(project, number),
        "GET /v1/downloads/{task}": lambda _: project.http("GET", f"/v1/downloads/{task}"),
    }
    # Starting 32 functions for each route takes half a minute here.
    for clients in (1, 8)[: few(100)] if quick else (1, 8, 32):
        total = max(clients * 4, few(40 if quick else 320))
        for call in calls.values():
            _drive(call, clients, 4 * clients)
        runs = {name: _drive(call, clients, total) for name, call in calls.items()}
        for name, run in runs.items():
            ratio = run.p50 / runs["do nothing"].p50
            note = f"{run.rate:.0f}/s; p50 {run.p50:.0f}, p95 {run.p95:.0f}, p99 {run.p99:.0f} ms"
            bar = _BAR if name.startswith("POST") else None
            yield Figure(SECTION, f"{name}, {clients} clients: p50 against nothing", ratio, "×", bar, note=note)
