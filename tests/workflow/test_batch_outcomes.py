"""Outcomes of items through the HTTP API, with the state machine on moto: listed, downloaded, redriven."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import idle_clock


@pytest.fixture
def world(running_cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(running_cloud) as batches:
        yield batches


def run(world: BatchWorld, batch_id: str) -> dict[str, Any]:
    world.act(batch_id, "start")
    world.admit()
    return world.ended(batch_id)


def downloaded(world: BatchWorld, batch_id: str) -> list[dict[str, Any]]:
    link = world.http("GET", f"/v1/batches/{batch_id}/results").json()["url"]
    key = unquote(urlsplit(link).path).split("/", 2)[2]
    stored = world.cloud.client("s3").get_object(Bucket=world.cloud.app.settings.files_bucket, Key=key)
    return [json.loads(line) for line in stored["Body"].read().splitlines()]


def test_failed_items_are_listed_downloaded_and_redriven(world: BatchWorld) -> None:
    broken, fails_once = {3, 7, 11}, {5}

    def process(item: dict[str, Any]) -> tuple[int, Any]:
        if item["index"] in broken:
            return 200, {"result": "error", "msg": f"no stock of {item['job_data']['sku']}"}
        if item["index"] in fails_once:
            fails_once.clear()
            return 500, {}
        return 200, {"result": "abandon", "msg": "gone"} if item["index"] == 9 else {"result": "ok"}

    world.business.answers["/process"] = process
    data = [{"sku": f"s{number}"} for number in range(14)]
    batch_id = world.create(
        world.register(), total=14, job_data=data, retries=2, retry_delay=0, on_item_failure="skip", concurrency=4
    )
    shown = run(world, batch_id)
    figures = {name: shown["progress"][name] for name in ("processed", "succeeded", "failed", "abandoned", "errors")}
    assert figures == {"processed": 14, "succeeded": 10, "failed": 3, "abandoned": 1, "errors": 4}
    page = world.http("GET", f"/v1/batches/{batch_id}/items?state=failed&limit=2").json()
    rest = world.http("GET", f"/v1/batches/{batch_id}/items?state=failed&limit=2&cursor={page['next_cursor']}").json()
    failed = page["items"] + rest["items"]
    assert [(item["index"], item["attempts"], item["job_data"]) for item in failed] == [
        (index, 2, {"sku": f"s{index}"}) for index in (3, 7, 11)
    ]
    assert failed[0]["answer"] == {"result": "error", "msg": "no stock of s3"}
    assert [(line["index"], line["state"]) for line in downloaded(world, batch_id)] == [
        (3, "failed"),
        (5, "recovered"),
        (7, "failed"),
        (9, "abandoned"),
        (11, "failed"),
    ]
    broken.clear()
    redriven = world.act(batch_id, "redrive", expect=201)
    assert (redriven["status"], redriven["total"], redriven["redrive_of"]) == ("created", 3, batch_id)
    before = len(world.business.calls())
    assert run(world, redriven["batch_id"])["status"] == "finished"
    repeated = sorted(world.business.calls()[before:], key=lambda item: item["index"])
    assert [(item["index"], item["job_data"], item["redrive_of"]) for item in repeated] == [
        (index, {"sku": f"s{index}"}, batch_id) for index in (3, 7, 11)
    ]
    refused = world.http("POST", f"/v1/batches/{redriven['batch_id']}/redrive")
    assert (refused.status, refused.json()["detail"]) == (
        409,
        "no item of the batch is failed: there is nothing to redrive",
    )


def test_item_that_stopped_the_batch_is_recovered_by_a_later_run(world: BatchWorld) -> None:
    broken = {2}
    world.business.answers["/process"] = lambda item: (200, {"result": "error" if item["index"] in broken else "ok"})
    batch_id = world.create(world.register(), total=4, retries=1)
    assert run(world, batch_id)["status"] == "stopped"
    (failed,) = world.http("GET", f"/v1/batches/{batch_id}/items").json()["items"]
    assert (failed["index"], failed["state"]) == (2, "failed")
    broken.clear()
    assert run(world, batch_id)["status"] == "finished"
    (recovered,) = world.http("GET", f"/v1/batches/{batch_id}/items").json()["items"]
    assert (recovered["index"], recovered["state"]) == (2, "recovered")


def test_stopped_batch_continues_after_change_to_skip(world: BatchWorld) -> None:
    world.business.answers["/process"] = lambda item: (200, {"result": "error" if item["index"] == 4 else "ok"})
    batch_id = world.create(world.register(), total=5, retries=1)
    stopped = run(world, batch_id)
    assert "set on_item_failure to skip" in stopped["stop_reason"]
    assert world.http("PATCH", f"/v1/batches/{batch_id}", {"on_item_failure": "skip"}).status == 202
    shown = run(world, batch_id)
    assert (shown["status"], shown["progress"]["failed"], shown["progress"]["succeeded"]) == ("finished", 1, 4)


def test_rows_are_sent_with_the_data_of_the_batch(world: BatchWorld) -> None:
    file_id = world.store_file("people.csv", b"id\n1\n2\n")
    body = {
        "biz_id": world.register(),
        "name": "rows",
        "rate": 50,
        "source": {"file_id": file_id},
        "job_data": {"c": 9},
    }
    batch_id = world.http("POST", "/v1/batches", body).json()["batch_id"]
    assert run(world, batch_id)["status"] == "finished"
    assert sorted((item["job_data"]["id"], item["batch_data"]["c"]) for item in world.business.calls()) == [
        ("1", 9),
        ("2", 9),
    ]


def test_early_and_repeated_results_count_once_and_others_are_refused(world: BatchWorld) -> None:
    def result(batch_id: str, index: int, **fields: Any) -> int:
        body = {"result": "ok"} | fields
        return world.http("POST", f"/v1/batches/{batch_id}/items/{index}/result", body).status

    def process(item: dict[str, Any]) -> tuple[int, Any]:
        if item["index"] == 0:
            assert result(item["batch_id"], 0) == 202
        return 202, {}

    world.business.answers["/process"] = process
    batch_id = world.create(world.register(), total=4, rate=20, ack="async", item_timeout=60)
    assert result(batch_id, 0) == 409
    world.act(batch_id, "start")
    world.admit()
    deadline = idle_clock() + 60
    while len(world.business.calls()) < 4:
        assert idle_clock() < deadline
        time.sleep(0.05)
    assert result(batch_id, 1) == 202
    assert result(batch_id, 1) == 202
    assert result(batch_id, 1, result="error") == 409
    assert result(batch_id, 3, attempt=2) == 409
    assert result(batch_id, 2, result="abandon", msg="gone") == 202
    assert result(batch_id, 3) == 202
    assert result(batch_id, 4) == 404
    shown = world.ended(batch_id)
    assert (shown["status"], shown["progress"]["succeeded"], shown["progress"]["abandoned"]) == ("finished", 3, 1)
    # The answer to the first one may have been lost.
    assert result(batch_id, 3) == 202
    assert result(batch_id, 3, result="error") == 409
    assert len(world.business.calls()) == 4
    (item,) = world.http("GET", f"/v1/batches/{batch_id}/items").json()["items"]
    assert (item["index"], item["answer"]) == (2, {"result": "abandon", "msg": "gone"})


def test_result_for_synchronous_batch_is_refused(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    assert world.http("POST", f"/v1/batches/{batch_id}/items/0/result", {"result": "ok"}).status == 409
    body = {"biz_id": world.register(), "name": "n", "total": 1, "rate": 1, "item_timeout": 700}
    assert world.http("POST", "/v1/batches", body).status == 422
    assert world.http("POST", "/v1/batches", body | {"ack": "async"}).status == 201


def test_redriven_batch_takes_results_of_its_own_items_only(world: BatchWorld) -> None:
    def result(batch_id: str, index: int) -> int:
        return world.http("POST", f"/v1/batches/{batch_id}/items/{index}/result", {"result": "ok"}).status

    world.business.answers["/process"] = lambda item: (200, {"result": "error" if item["index"] % 2 else "ok"})
    options = {"ack": "async", "item_timeout": 60, "retries": 1, "on_item_failure": "skip"}
    batch_id = world.create(world.register(), total=6, **options)
    # Answers other than 202 are results, too.
    assert run(world, batch_id)["progress"]["failed"] == 3
    assert result(batch_id, 1) == 409
    redriven = world.act(batch_id, "redrive", expect=201)["batch_id"]
    taken: list[int] = []

    def process(item: dict[str, Any]) -> tuple[int, Any]:
        assert result(redriven, 2) == 404
        taken.append(result(redriven, item["index"]))
        return 202, {}

    world.business.answers["/process"] = process
    shown = run(world, redriven)
    assert (shown["status"], shown["progress"]["succeeded"], taken) == ("finished", 3, [202] * 3)
