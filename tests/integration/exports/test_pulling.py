"""Pages: which are asked for, how failures are met, and what a dishonest source leads to."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook
from werkzeug import Response

from tests.support.exports import ExportWorld, read_csv, read_sheet
from tests.support.paged_source import PagedSource, honest, numbered, without_total


def test_step_100_total_250_asks_for_pages_0_1_2_and_no_other(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    shown, data = world.export(step=100)

    assert world.source.pages == {0: 1, 1: 1, 2: 1}
    assert [int(row["id"]) for row in read_csv(data)] == list(range(250))
    assert shown["progress"] == {"rows": 250, "total": 250, "percent": 100}


def test_no_total_100_100_0_makes_three_requests(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(200), without_total
    _, data = world.export(step=100)

    assert world.source.pages == {0: 1, 1: 1, 2: 1}
    assert len(read_csv(data)) == 200


def test_no_total_a_short_page_is_the_last(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(150), without_total
    world.export(step=100)
    assert world.source.pages == {0: 1, 1: 1}


def test_an_empty_source_makes_a_file_without_rows(world: ExportWorld) -> None:
    shown, data = world.export(type="excel", template={"id": "编号"})
    assert (world.source.pages, shown["progress"]["rows"]) == ({0: 1}, 0)
    assert read_sheet(data) == [("编号",)]


def test_force_continue_overrides_the_stop_rules(world: ExportWorld) -> None:
    def answer(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        rows = [[{"n": 0}], [], [{"n": 1}, {"n": 2}], [{"n": 3}]][page]
        return {"status": 200, "data": {"data": rows, "total": 1, "force_continue": 1 if page < 3 else 0}}

    world.source.answer = answer
    _, data = world.export()
    assert [row["n"] for row in read_csv(data)] == ["0", "1", "2", "3"]
    assert world.source.pages == {0: 1, 1: 1, 2: 1, 3: 1}


def test_requests_carry_page_size_and_task_and_are_signed(world: ExportWorld) -> None:
    world.source.rows = numbered(1)
    world.source.url += "?shop=7"
    task_id = world.submit()
    world.run(task_id)

    (request,) = world.source.asked
    assert dict(request.args) == {"shop": "7", "page": "0", "page_size": "1000", "_task_id": task_id}
    secret = world.cloud.callback_secret(world.project.id)
    moment = datetime.fromtimestamp(int(request.headers["webhook-timestamp"]), UTC)
    assert request.headers["webhook-signature"] == Webhook(secret).sign(request.headers["webhook-id"], moment, "")


def test_at_most_four_pages_are_asked_for_at_a_time(world: ExportWorld) -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def slow(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.05)
        with lock:
            now[0] -= 1
        return honest(source, page, size)

    world.source.rows, world.source.answer = numbered(1500), slow
    _, data = world.export(step=100)
    assert most == [4]
    assert len(read_csv(data)) == 1500


def test_a_flaky_page_loses_and_doubles_no_row(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(950), {3: [500], 5: [503, 429], 7: [500]}
    shown, data = world.export(step=100)

    assert [int(row["id"]) for row in read_csv(data)] == list(range(950))
    assert shown["attempts"] == 1
    assert world.source.pages[3] == 2


def test_a_retry_repeats_a_page_not_the_export(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(950), {4: [500] * 3}
    task_id = world.submit(step=100)
    assert world.attempt(task_id)["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert world.source.pages[0] == 1
    assert world.source.pages[4] == 4
    assert sum(world.source.pages.values()) == 13
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(950))


def test_a_source_that_always_fails_three_attempts_then_failed_with_the_reason(world: ExportWorld) -> None:
    world.source.failures = {0: [500] * 99}
    shown = world.run(world.submit())

    assert (shown["status"], shown["attempts"]) == ("failed", 3)
    assert shown["failed_reason"] == "page 0 of the source: The remote server answered 500"
    assert world.source.pages == {0: 3}


def test_a_source_that_refuses_is_not_asked_again(world: ExportWorld) -> None:
    world.source.failures = {0: [403]}
    shown = world.run(world.submit())
    assert (shown["status"], shown["attempts"]) == ("failed", 1)
    assert "answered 403" in shown["failed_reason"]


LIES: dict[str, tuple[Any, str]] = {
    "larger": (lambda s, p, z: _told(s, p, z, 500), "told a total of 500 rows, its 5 pages hold 150"),
    "smaller": (lambda s, p, z: _told(s, p, z, 120), "told a total of 120 rows, its 2 pages hold 150"),
    "not JSON": (lambda *_: Response("<html>login</html>"), "page 0: the source did not answer JSON"),
}


def _told(source: PagedSource, page: int, size: int, total: int) -> dict[str, Any]:
    answer = honest(source, page, size)
    answer["data"]["total"] = total
    return answer


@pytest.mark.parametrize(("answer", "reason"), LIES.values(), ids=LIES)
def test_a_source_that_lies_ends_in_failed_with_a_reason(world: ExportWorld, answer: Any, reason: str) -> None:
    world.source.rows, world.source.answer = numbered(150), answer
    shown = world.run(world.submit(step=100))

    assert (shown["status"], shown["attempts"]) == ("failed", 1)
    assert reason in shown["failed_reason"]
    assert world.objects("staging") == [f"staging/{world.project.id}/{shown['task_id']}/spec.json"]


def test_a_mended_source_can_be_retried(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(150), lambda s, p, z: _told(s, p, z, 500)
    task_id = world.submit(step=100)
    assert world.run(task_id)["status"] == "failed"

    world.source.answer = honest
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/retry", key=world.project.key).status == 200
    assert world.run(task_id)["status"] == "completed"
    assert len(read_csv(world.file(task_id))) == 150


def test_header_footer_and_template_come_from_the_source(world: ExportWorld) -> None:
    world.source.rows = numbered(2)
    world.source.more = {"header": {"油站": "钓鱼岛"}, "footer": '{"签名": "x"}', "template": {"name": "姓名"}}
    _, data = world.export(type="excel", header={"油站": "asked for"}, template={"id": "编号"})

    assert read_sheet(data) == [("油站：钓鱼岛",), ("姓名",), ("名字0",), ("名字1",), ("签名：x",)]


def test_keys_first_seen_on_a_later_page_are_appended(world: ExportWorld) -> None:
    world.source.rows = [{"a": n} for n in range(100)] + [{"c": 1, "b": 2, "a": 3}] * 100 + [{"d": 4}]
    _, data = world.export(step=100)
    assert data.split(b"\n", 1)[0] == b"a,c,b,d"
    assert read_csv(data)[150] == {"a": "3", "b": "2", "c": "1", "d": ""}


def test_a_private_source_is_refused_unless_the_project_allows_it(world: ExportWorld) -> None:
    stranger = world.cloud.project(allow_private_urls=False)
    answer = world.cloud.http(
        "POST", "/v1/task", json={"name": "orders", "source_url": world.source.url}, key=stranger.key
    )
    assert (answer.status, answer.json()["code"]) == (422, "url_not_allowed")
    assert answer.json()["errors"][0]["loc"] == ["body", "source_url"]
