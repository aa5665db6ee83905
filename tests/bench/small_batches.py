"""Measures how fast many small batches are admitted, one by one and in groups.

This runs the real admission on moto, and delays each AWS call by its assumed (not measured) time on AWS. The time of
moto itself is part of both results, so the ratio on AWS is higher.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.bench.figures import Figure, few
from tests.support.moto.cloud import MotoCloud
from tidegate.batches.batches import create, get_business
from tidegate.batches.control import start
from tidegate.batches.model import NewBatch
from tidegate.queue import admission
from tidegate.queue.admission import admit
from tidegate.queue.store import MAX_GROUP

SECTION = "small batches"
MANY = 10_000
# Assumed milliseconds of a call.
ASSUMED = {"GetItem": 4, "Query": 6, "BatchGetItem": 8, "UpdateItem": 6, "TransactWriteItems": 20, "StartExecution": 40}
# Assumed milliseconds for each item of a transaction.
ASSUMED_FOR_AN_ITEM = 0.4


@contextmanager
def as_slow_as_aws(cloud: MotoCloud) -> Iterator[None]:
    def wait(model: Any, params: dict[str, Any], **_: Any) -> None:
        body = params.get("body", b"")
        items = body.count(b'"ConditionExpression"') + body.count(b'"Put"') if isinstance(body, bytes) else 0
        time.sleep((ASSUMED.get(model.name, 0) + items * ASSUMED_FOR_AN_ITEM) / 1000)

    clients = [cloud.app.dynamodb, cloud.app.sfn]
    for client in clients:
        client.meta.events.register("before-call", wait, unique_id="as-slow-as-aws")
    try:
        yield
    finally:
        for client in clients:
            client.meta.events.unregister("before-call", unique_id="as-slow-as-aws")


def _admitted_a_second(cloud: MotoCloud, biz_id: str, project_id: str, count: int, together: int) -> float:
    app = cloud.app
    for number in range(count):
        cloud.clock.advance(0.002)
        business = get_business(app.batches, project_id, biz_id)
        batch = create(app.batches, business, NewBatch(biz_id=biz_id, name=f"b{number}", total=1, rate=1))
        start(app.batches, batch, business, "bench")
    with patch.object(admission, "MAX_GROUP", together), as_slow_as_aws(cloud):
        began = time.perf_counter()
        admitted = 0
        # One run after another, as the channel's messages do.
        while admitted < count:
            more = admit(app.queue, "batch")
            assert more, f"nothing more was admitted after {admitted} of {count}"
            admitted += more
        seconds = time.perf_counter() - began
    assert admitted == count
    return count / seconds


def measure(quick: bool) -> Iterator[Figure]:
    with MotoCloud() as cloud:
        project = cloud.project()
        capacity = cloud.http("POST", "/v1/queue/capacity", json={"batch": MANY}, key=cloud.admin_key)
        assert capacity.status == 200, capacity.body
        # By default a project holds at most 100 slots.
        quotas = cloud.http(
            "PATCH", f"/v1/projects/{project.id}", json={"quotas": {"running": MANY}}, key=cloud.admin_key
        )
        assert quotas.status == 200, quotas.body
        body = {"name": "small", "process_url": "http://127.0.0.1:9/process"}
        biz_id = cloud.http("POST", "/v1/biz", json=body, key=project.key).json()["biz_id"]
        one = _admitted_a_second(cloud, biz_id, project.id, few(24 if quick else 96, 2), 1)
        many = _admitted_a_second(cloud, biz_id, project.id, few(240 if quick else 1200, 20), MAX_GROUP)
    yield Figure(SECTION, "admitted one by one", one, "a second")
    yield Figure(SECTION, f"admitted {MAX_GROUP} together", many, "a second", 100, at_least=True)
    note = f"{MANY:,} ÷ {many:,.0f} a second; one by one {MANY / one:,.0f} s"
    yield Figure(SECTION, f"seconds until {MANY:,} batches run", MANY / many, "s", MANY / 100, note=note)
