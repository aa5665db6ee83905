"""Whole exports and batches on moto, their machines running, metered from the request to the end."""

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
    """A source whose pages are ready, so that its own time does not count."""
    rows = list(mixed_rows(ROWS_A_PAGE))
    body = json.dumps({"status": 200, "msg": "", "data": {"data": rows, "total": pages * ROWS_A_PAGE}}).encode()

    def route(request: Handler) -> None:
        number = int(parse_qs(urlsplit(request.path).query)["page"][0])
        assert number < pages, f"page {number} of {pages} was asked for"
        request.answer(200, body, Content_Type="application/json")

    return route


def _agree(request: Handler) -> None:
    request.body()
    request.answer(200, b'{"result": "ok"}', Content_Type="application/json")


def _through(cloud: MotoCloud) -> None:
    """Admitted and run to the end: the mapping's work is done here, the machine runs in a thread of its own."""
    sfn, deadline = cloud.client("stepfunctions"), time.monotonic() + _PATIENCE_SECONDS
    cloud.deliver("AdmissionQueue")
    for machine in cloud.names.machines.values():
        while sfn.list_executions(stateMachineArn=machine, statusFilter="RUNNING")["executions"]:
            assert time.monotonic() < deadline, "an execution does not end"
            time.sleep(0.02)
    cloud.deliver("AdmissionQueue")


@cache
def export(pages: int, kind: str = "excel") -> Meter:
    """Several sections want the same one."""
    with serve(_pages(pages)) as port, MotoCloud(machines_run=True) as cloud:
        project = cloud.project()
        body = {"name": "rows", "source_url": f"http://127.0.0.1:{port}/rows", "step": ROWS_A_PAGE, "type": kind}
        with metered(cloud) as meter:
            made = cloud.http("POST", "/v1/task", json=body, key=project.key)
            assert made.status == 202, made.body
            _through(cloud)
        ended = cloud.http("GET", "/v1/task", query={"task_id": made.json()["task_id"]}, key=project.key).json()
        assert ended["status"] == "completed", ended
        meter.add("HTTP_API_REQUEST", 1)
        meter.add("STEP_FUNCTIONS_TRANSITION", transitions(cloud))
        return meter


def batch(items: int, rate: float) -> Meter:
    """`rate` sets how long it takes, and so how often its progress is saved."""
    with serve(_agree) as port, MotoCloud(machines_run=True) as cloud:
        project = cloud.project()
        biz = {"name": "biz", "process_url": f"http://127.0.0.1:{port}/"}
        biz_id = cloud.http("POST", "/v1/biz", json=biz, key=project.key).json()["biz_id"]
        body = {"biz_id": biz_id, "name": "batch", "total": items, "rate": rate}
        with metered(cloud) as meter:
            batch_id = cloud.http("POST", "/v1/batches", json=body, key=project.key).json()["batch_id"]
            started = cloud.http("POST", f"/v1/batches/{batch_id}/start", json={}, key=project.key)
            assert started.status == 202, started.body
            _through(cloud)
        ended = cloud.http("GET", f"/v1/batches/{batch_id}", key=project.key).json()
        assert (ended["status"], ended["progress"]["processed"]) == ("finished", items), ended
        meter.add("HTTP_API_REQUEST", 2)
        meter.add("STEP_FUNCTIONS_TRANSITION", transitions(cloud))
        return meter
