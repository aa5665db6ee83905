"""Runs whole exports and batches on moto with their state machines, metered from the request to the end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import cache
from urllib.parse import parse_qs, urlsplit

from tests.bench.meter import Meter, metered, transitions
from tests.support.exports.samples import mixed_rows
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud

ROWS_A_PAGE = 1000
_PATIENCE_SECONDS = 300


def _pages(pages: int) -> Callable[[Handler], None]:
    """Returns a source with prepared pages, so that its own time does not count."""
    rows = list(mixed_rows(ROWS_A_PAGE))
    body = json.dumps({"status": 200, "msg": "", "data": {"data": rows, "total": pages * ROWS_A_PAGE}}).encode()

    def route(request: Handler) -> None:
        number = int(parse_qs(urlsplit(request.path).query)["page"][0])
        assert number < pages, f"page {number} was requested, but there are {pages}"
        request.answer(200, body, Content_Type="application/json")

    return route


def _agree(request: Handler) -> None:
    request.body()
    request.answer(200, b'{"result": "ok"}', Content_Type="application/json")


def _run_to_end(cloud: MotoCloud) -> None:
    """Admits the request and waits until its execution, which runs in a thread, has ended."""
    sfn, deadline = cloud.client("stepfunctions"), time.monotonic() + _PATIENCE_SECONDS
    cloud.deliver("AdmissionQueue")
    for machine in cloud.names.machines.values():
        while sfn.list_executions(stateMachineArn=machine, statusFilter="RUNNING")["executions"]:
            assert time.monotonic() < deadline, "an execution does not end"
            time.sleep(0.02)
    cloud.deliver("AdmissionQueue")


@cache
def export(pages: int, kind: str = "excel") -> Meter:
    """Returns the meter of an export. Cached, because several sections use the same export."""
    with serve(_pages(pages)) as port, MotoCloud(machines_run=True) as cloud:
        project = cloud.project()
        body = {"name": "rows", "source_url": f"http://127.0.0.1:{port}/rows", "step": ROWS_A_PAGE, "type": kind}
        with metered(cloud) as meter:
            answer = cloud.http("POST", "/v1/task", json=body, key=project.key)
            assert answer.status == 202, answer.body
            _run_to_end(cloud)
        ended = cloud.http("GET", "/v1/task", query={"task_id": answer.json()["task_id"]}, key=project.key).json()
        assert ended["status"] == "completed", ended
        meter.add("HTTP_API_REQUEST", 1)
        meter.add("STEP_FUNCTIONS_TRANSITION", transitions(cloud))
        return meter


def batch(items: int, rate: float) -> Meter:
    """Returns the meter of a batch. `rate` sets its duration, and so how often its progress is saved."""
    with serve(_agree) as port, MotoCloud(machines_run=True) as cloud:
        project = cloud.project()
        biz = {"name": "biz", "process_url": f"http://127.0.0.1:{port}/"}
        biz_id = cloud.http("POST", "/v1/biz", json=biz, key=project.key).json()["biz_id"]
        body = {"biz_id": biz_id, "name": "batch", "total": items, "rate": rate}
        with metered(cloud) as meter:
            batch_id = cloud.http("POST", "/v1/batches", json=body, key=project.key).json()["batch_id"]
            started = cloud.http("POST", f"/v1/batches/{batch_id}/start", json={}, key=project.key)
            assert started.status == 202, started.body
            _run_to_end(cloud)
        ended = cloud.http("GET", f"/v1/batches/{batch_id}", key=project.key).json()
        assert (ended["status"], ended["progress"]["processed"]) == ("finished", items), ended
        meter.add("HTTP_API_REQUEST", 2)
        meter.add("STEP_FUNCTIONS_TRANSITION", transitions(cloud))
        return meter
