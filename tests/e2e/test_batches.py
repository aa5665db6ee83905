"""Batches on the deployed stack, over several slices, channels and schedules."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from standardwebhooks import Webhook

from tests.support.deployed import Deployed, DeployedProject, until
from tests.support.http_servers import Handler, serve
from tests.support.patience import idle_clock
from tests.support.product import product_on
from tidegate.aws import keys
from tidegate.aws.table import update

pytestmark = pytest.mark.e2e


class Business:
    def __init__(self, secret: str) -> None:
        self.port = 0
        self.calls: list[tuple[float, int]] = []
        self.notices: list[dict[str, Any]] = []
        self._webhook = Webhook(secret)
        self._lock = threading.Lock()
        # While it is cleared, no call is answered.
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, request: Handler) -> None:
        body = request.body()
        self.answers.wait(60)
        self._webhook.verify(body, dict(request.headers.items()))
        content = json.loads(body)
        with self._lock:
            if request.path == "/stopped":
                self.notices.append(content)
            elif "index" in content:
                self.calls.append((idle_clock(), content["index"]))
        gone = request.path == "/abandoned-at-3" and content.get("index") == 3
        request.answer(200, b'{"result": "abandon", "msg": "gone"}' if gone else b'{"result": "ok"}')

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@pytest.fixture
def business(project: DeployedProject) -> Iterator[Business]:
    new_business = Business(project.callback_secret)
    with serve(new_business) as new_business.port:
        yield new_business


def shown(project: DeployedProject, batch_id: str) -> dict[str, Any]:
    answer = project.http("GET", f"/v1/batches/{batch_id}")
    assert answer.status == 200, answer.body
    return dict(answer.json())


def test_batch_is_created_stopped_restarted_and_finished(project: DeployedProject, business: Business) -> None:
    entry = {"name": "loyalty", "process_url": business.url("/item"), "process_stop_url": business.url("/stopped")}
    biz_id = project.http("POST", "/v1/biz", json=entry).json()["biz_id"]
    order = {"biz_id": biz_id, "name": "points", "total": 400, "rate": 40}
    created = project.http("POST", "/v1/batches", json=order)
    assert (created.status, created.json()["status"]) == (201, "created")
    batch_id = created.json()["batch_id"]

    assert project.http("POST", f"/v1/batches/{batch_id}/start").status == 202
    until(lambda: len(business.calls), lambda calls: calls > 60)
    assert project.http("POST", f"/v1/batches/{batch_id}/stop").status == 202
    asked_at = idle_clock()
    stopped = until(lambda: shown(project, batch_id), lambda batch: batch["status"] == "stopped", 20)
    assert max(at for at, _ in business.calls) < asked_at + 3
    assert stopped["progress"]["processed"] == len(business.calls)
    assert stopped["stop_reason"] == "stopped on request"

    assert project.http("POST", f"/v1/batches/{batch_id}/start").status == 202
    finished = until(lambda: shown(project, batch_id), lambda batch: batch["status"] == "finished", 60)
    assert finished["progress"]["processed"] == 400
    moments = [at for at, _ in business.calls[stopped["progress"]["processed"] :]]
    assert max(later - earlier for earlier, later in pairwise(moments)) < 2, "slices hand over without a pause"
    counted = Counter(index for _, index in business.calls)
    assert (sorted(counted), max(counted.values())) == (list(range(400)), 1)
    notices = until(lambda: list(business.notices), lambda found: len(found) >= 2, 20)
    assert [notice["data"]["status"] for notice in notices] == ["stopped", "finished"]
    assert {notice["data"]["batch_id"] for notice in notices} == {batch_id}


def test_batches_use_both_channels_and_store_outcomes(
    deployed: Deployed, project: DeployedProject, business: Business
) -> None:
    stats = deployed.http("GET", "/v1/queue/stats", key=deployed.admin_key).json()["channels"]
    assert stats["batch_b"]["capacity"] == 3
    entry = {"name": "loyalty", "process_url": business.url("/abandoned-at-3")}
    biz_id = project.http("POST", "/v1/biz", json=entry).json()["biz_id"]
    order = {"biz_id": biz_id, "name": "points", "total": 5, "rate": 50}
    # Batches of other tests count as well, and one that has ended does not.
    business.answers.clear()
    channels: dict[str, str] = {}
    while len(channels) < 6 and set(channels.values()) != {"batch", "batch_b"}:
        batch_id = project.http("POST", "/v1/batches", json=order).json()["batch_id"]
        channels[batch_id] = project.http("POST", f"/v1/batches/{batch_id}/start").json()["channel"]
    business.answers.set()
    assert set(channels.values()) == {"batch", "batch_b"}
    for batch_id in channels:
        ended = until(partial(shown, project, batch_id), lambda batch: batch["status"] == "finished", 60)
        assert (ended["progress"]["succeeded"], ended["progress"]["abandoned"]) == (4, 1)
        (item,) = project.http("GET", f"/v1/batches/{batch_id}/items").json()["items"]
        assert (item["index"], item["state"], item["answer"]["msg"]) == (3, "abandoned", "gone")
        link = project.http("GET", f"/v1/batches/{batch_id}/results").json()["url"]
        with urllib.request.urlopen(link, timeout=10) as answer:
            assert [json.loads(line)["index"] for line in answer] == [3]


def test_schedule_starts_batch_with_permissions_of_its_function(
    deployed: Deployed, project: DeployedProject, business: Business
) -> None:
    entry = {"name": "loyalty", "process_url": business.url("/item"), "before_create_url": business.url("/asked")}
    biz_id = project.http("POST", "/v1/biz", json=entry).json()["biz_id"]
    order = {"biz_id": biz_id, "name": "nightly", "total": 5, "rate": 50}
    created = project.http("POST", "/v1/batch-schedules", json={"schedule": "rate(1 day)", "batch": order})
    assert created.status == 201, created.body
    schedule_id = created.json()["schedule_id"]
    key = keys.BATCH_SCHEDULES.record(project.id, schedule_id)
    product_on(deployed).table.write(update(key, keys.BATCH_SCHEDULES.due(time.time() - 1)))
    functions = deployed.client("lambda").list_functions()["Functions"]
    (name,) = [
        function["FunctionName"] for function in functions if "StartScheduledBatches" in function["FunctionName"]
    ]
    # The schedule of the function runs too: whichever is first creates the batch, and the other one finds it.
    deployed.client("lambda").invoke(FunctionName=name, Payload=b"{}")
    path = f"/v1/batch-schedules/{schedule_id}"
    fired = until(lambda: project.http("GET", path).json(), lambda schedule: schedule["last_batch_id"], 90)
    assert fired["last_error"] is None
    until(partial(shown, project, fired["last_batch_id"]), lambda batch: batch["status"] == "finished", 60)
    assert sorted(index for _, index in business.calls) == list(range(5))
    assert len(project.http("GET", "/v1/batches").json()["items"]) == 1
