"""Answers stay below the 6 MB that a Lambda function can return."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.batches import Batches, batches
from tidegate.batches.items import Outcomes
from tidegate.exports import exports
from tidegate.exports.exports import Sample

SOURCE = "https://source.invalid/x"
# The longest row of a file, with quotes that are escaped twice: in the answer, and in the event that carries it.
ROW = '"' * 500_000


@pytest.fixture
def batch_id(cloud: MotoCloud, project: Project) -> str:
    biz_id = cloud.http("POST", "/v1/biz", key=project.key, json={"name": "b", "process_url": SOURCE}).json()["biz_id"]
    batch = {"biz_id": biz_id, "name": "n", "total": 12, "rate": 1}
    return str(cloud.http("POST", "/v1/batches", key=project.key, json=batch).json()["batch_id"])


def test_large_items_are_spread_over_pages(
    cloud: MotoCloud, project: Project, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        {"index": index, "state": "failed", "attempts": 1, "answer": {"result": "error"}, "job_data": ROW}
        for index in range(12)
    ]
    monkeypatch.setattr(Outcomes, "_lines", lambda *_: iter(lines))
    indexes: list[int] = []
    query: dict[str, str] = {"limit": "100"}
    while True:
        # An answer counts as one request for each 32 KiB, and the project has the default rate.
        cloud.clock.advance(60)
        answer = cloud.http("GET", f"/v1/batches/{batch_id}/items", query=query, key=project.key)
        assert answer.status == 200, answer.body[:1000]
        page = answer.json()
        indexes += [item["index"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]

    assert indexes == list(range(12))


def test_small_items_fill_a_page(
    cloud: MotoCloud, project: Project, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"index": index, "state": "failed", "attempts": 1, "answer": {}} for index in range(12)]
    monkeypatch.setattr(Outcomes, "_lines", lambda *_: iter(lines))
    page = cloud.http("GET", f"/v1/batches/{batch_id}/items", query={"limit": "10"}, key=project.key).json()

    assert (len(page["items"]), page["next_cursor"]) == (10, "9")


def test_dry_run_of_large_items_leaves_out_some_data(
    cloud: MotoCloud, project: Project, batch_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(_: Batches, __: Any, count: int) -> list[dict[str, Any]]:
        return [{"index": index, "answer": {"result": "ok"}, "job_data": ROW} for index in range(count)]

    monkeypatch.setattr(batches, "dry_run", run)
    answer = cloud.http("POST", f"/v1/batches/{batch_id}/dry-run", json={"items": 10}, key=project.key)

    assert (answer.status, len(answer.json()["items"])) == (200, 10)
    assert answer.json()["items"][0]["job_data"] == ROW
    assert answer.json()["items"][-1].get("job_data") is None


def post_sample(cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch, sample: Sample) -> Answer:
    monkeypatch.setattr(exports, "take_sample", lambda *_: sample)
    return cloud.http("POST", "/v1/task/sample", json={"source_url": SOURCE}, key=project.key)


def test_sample_of_large_rows_returns_those_that_fit(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = post_sample(cloud, project, monkeypatch, Sample([{"a": ROW}] * 20, 20, {}))

    assert (answer.status, 0 < len(answer.json()["rows"]) < 20) == (200, True)


@pytest.mark.parametrize(
    "sample", [Sample([{"a": ROW * 4}], 1, {}), Sample([], 0, {"header": {"a": ROW * 4}})], ids=["row", "header"]
)
def test_sample_too_large_to_return_is_502(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch, sample: Sample
) -> None:
    answer = post_sample(cloud, project, monkeypatch, sample)

    assert (answer.status, answer.json()["code"]) == (502, "content_too_large")
