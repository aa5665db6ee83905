"""Synchronous exports."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.exports.paged_source import PagedSource, honest, numbered, without_total
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tests.support.moto.cloud import Answer
from tests.support.patience import idle_clock
from tidegate.exports import exports as export_sync


def export_now(world: ExportWorld, path: str = "/v1/download/sync", **fields: Any) -> Answer:
    return world.cloud.http("POST", path, json=fields, key=world.project.key)


def test_post_returns_the_file(world: ExportWorld) -> None:
    answer = export_now(world, type="excel", source_data=[{"a": 1, "b": "乙"}], title="标题", file_name="报表")

    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/vnd.openxmlformats")
    assert "filename*=UTF-8''%E6%8A%A5%E8%A1%A8.xlsx" in answer.headers["content-disposition"]
    assert read_sheet(answer.body) == [("标题", None), ("a", "b"), (1, "乙")]


def test_get_takes_the_same_fields_in_the_query(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    answer = world.get("/v1/download/sync", name="now", source_url=world.source.url, step="100", bom="true")
    assert answer.status == 200
    assert answer.body.startswith(b"\xef\xbb\xbfid,name")
    assert [row["amount"] for row in read_csv(answer.body)][-1] == "62.25"
    assert world.source.pages == {0: 1, 1: 1, 2: 1}

    bad = world.get("/v1/download/sync", name="now", step="7", source_data="[]")
    assert (bad.status, bad.json()["errors"][0]["loc"]) == (422, ["query", "step"])


def test_get_and_post_of_several_tables_return_the_same_file(world: ExportWorld) -> None:
    fields = {"type": "excel", "multi_type": "tab", "source_data": [[{"a": 1}], [{"b": 2}]], "title": ["一", "二"]}
    posted = export_now(world, "/v1/download/sync/multiple", **fields)
    query = {name: value if isinstance(value, str) else json.dumps(value) for name, value in fields.items()}
    got = world.get("/v1/download/sync/multiple", **query)
    assert posted.status == got.status == 200
    assert read_sheet(posted.body, 1) == read_sheet(got.body, 1) == [("二",), ("b",), (2,)]


def test_warnings_are_in_a_header_as_far_as_they_fit(world: ExportWorld) -> None:
    template = [{"name": "a"}, {"name": "编号"}]
    [warning] = json.loads(export_now(world, source_data=[{"a": 1}], template=template).headers["x-warnings"])
    assert warning == "template: no row has 编号, so these columns are empty"
    assert "x-warnings" not in export_now(world, source_data=[{"a": 1}]).headers

    tables = [[{"a": 1}]] * 20
    long = export_now(
        world, "/v1/download/sync/multiple", source_data=tables, template=[{"编" * 150: "x"}] * 20, type="excel"
    )
    assert 1 <= len(json.loads(long.headers["x-warnings"])) < 20
    assert len(long.headers["x-warnings"]) <= 4000


def test_file_over_4_5_mb_redirects_to_a_link(world: ExportWorld) -> None:
    world.source.rows = [{"text": f"{n:08d}" * 16} for n in range(40_000)]
    answer = export_now(world, source_url=world.source.url, step=5000)

    assert answer.status == 303
    key = urlsplit(answer.headers["location"]).path.removeprefix(f"/{world.bucket}/")
    stored = world.s3.get_object(Bucket=world.bucket, Key=key)["Body"].read()
    assert len(read_csv(stored)) == 40_000


def test_over_50_000_rows_is_use_async(world: ExportWorld) -> None:
    def many(source: PagedSource, page: int, size: int) -> Any:
        return {"status": 200, "data": {"data": [{"a": 1}], "total": 50_001}}

    world.source.answer = many
    announced = export_now(world, source_url=world.source.url)
    assert (announced.status, announced.json()["code"], world.source.pages) == (413, "use_async", {0: 1})

    world.source.rows, world.source.answer = [{"a": n} for n in range(60_000)], without_total
    counted = export_now(world, source_url=world.source.url, step=5000)
    assert (counted.status, counted.json()["code"]) == (413, "use_async")
    assert max(world.source.pages) == 10


@pytest.mark.parametrize(
    ("failures", "status", "code"), [([500], 502, "upstream_error"), ([404], 502, "upstream_not_found")]
)
def test_failure_of_the_source_is_returned(world: ExportWorld, failures: list[int], status: int, code: str) -> None:
    world.source.failures = {0: failures}
    answer = export_now(world, source_url=world.source.url)
    assert (answer.status, answer.json()["code"]) == (status, code)


def test_synchronous_export_records_nothing(world: ExportWorld) -> None:
    export_now(world, source_data=[{"a": 1}])
    assert world.get("/v1/tasks").json()["items"] == []
    assert world.objects() == []


def test_all_pages_share_one_deadline(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow_later_pages(source: PagedSource, page: int, size: int) -> Any:
        time.sleep(0.8 * page)
        return honest(source, page, size)

    # Import first, so that imports do not count towards the deadline.
    assert export_now(world, source_data=[]).status == 200
    monkeypatch.setattr(export_sync, "SECONDS", 1.5)
    world.source.rows, world.source.answer = numbered(450), slow_later_pages
    began = idle_clock()
    answer = export_now(world, source_url=world.source.url, step=100)

    assert (answer.status, answer.json()["code"]) == (413, "use_async")
    assert idle_clock() - began < 2.5


def test_export_not_done_within_its_max_exec_time_is_use_async(world: ExportWorld) -> None:
    def slow(source: PagedSource, page: int, size: int) -> Any:
        time.sleep(1.5)
        return honest(source, page, size)

    assert export_now(world, source_data=[]).status == 200
    world.source.rows, world.source.answer = numbered(10), slow
    began = idle_clock()
    answer = export_now(world, source_url=world.source.url, max_exec_time=1)
    assert (answer.status, answer.json()["code"]) == (413, "use_async")
    assert idle_clock() - began < 1.5


def test_requests_keep_to_the_source_rate(world: ExportWorld) -> None:
    at: list[float] = []

    def noted(source: PagedSource, page: int, size: int) -> Any:
        at.append(time.time())
        return honest(source, page, size)

    world.source.rows, world.source.answer = numbered(650), noted
    began = time.monotonic()
    answer = export_now(world, source_url=world.source.url, step=100, source_rate=2)
    assert len(read_csv(answer.body)) == 650
    assert max(sum(begin <= each < begin + 0.9 for each in at) for begin in at) == 2
    # Two of the seven pages are free.
    assert (len(world.source.requests), time.monotonic() - began >= 2.4) == (7, True)


def test_source_rate_too_low_for_the_time_is_use_async(world: ExportWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    assert export_now(world, source_data=[]).status == 200
    monkeypatch.setattr(export_sync, "SECONDS", 1.5)
    world.source.rows = numbered(950)
    answer = export_now(world, source_url=world.source.url, step=100, source_rate=1)
    assert (answer.status, answer.json()["code"]) == (413, "use_async")
