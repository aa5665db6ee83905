"""Pulling pages: which are requested, how failures are handled, and sources that break the contract."""

from __future__ import annotations

import io
import json
import threading
import time
import zipfile
from datetime import UTC, datetime
from typing import Any

import pytest
from standardwebhooks import Webhook
from werkzeug import Response

from tests.support.exports.paged_source import PagedSource, honest, numbered, without_total
from tests.support.exports.running import ExportWorld, read_csv, read_sheet
from tidegate.exports import steps
from tidegate.exports.source import SourcePage, TablePages
from tidegate.http.model import Limits
from tidegate.queue.retention import clean


def test_step_100_and_total_250_request_three_pages(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    shown, data = world.export(step=100)

    assert world.source.pages == {0: 1, 1: 1, 2: 1}
    assert [int(row["id"]) for row in read_csv(data)] == list(range(250))
    assert shown["progress"] == {"rows": 250, "total": 250, "percent": 100}


def test_without_total_an_empty_page_is_the_end(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(200), without_total
    _, data = world.export(step=100)

    assert world.source.pages == {0: 1, 1: 1, 2: 1}
    assert len(read_csv(data)) == 200


def test_without_total_a_short_page_is_the_last(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(150), without_total
    world.export(step=100)
    assert world.source.pages == {0: 1, 1: 1}


@pytest.mark.parametrize("how", ["staged", "sync"])
def test_empty_page_among_full_ones_is_the_end(world: ExportWorld, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages after it were requested at the same time; no page is requested again and again."""
    recorded, record_page = list[int](), TablePages.record

    def recorded_once(pages: TablePages, number: int, page: SourcePage) -> None:
        assert number not in recorded
        recorded.append(number)
        record_page(pages, number, page)

    def answer(source: PagedSource, page: int, size: int) -> Any:
        return honest(source, page, size) if page != 2 else {"status": 200, "data": {"data": [], "total": 1500}}

    monkeypatch.setattr(TablePages, "record", recorded_once)
    world.source.rows, world.source.answer = numbered(1500), answer
    if how == "sync":
        shown = world.post("/v1/download/sync", step=100, parallel=8)
        warnings, rows = shown.headers["x-warnings"], len(read_csv(shown.body))
    else:
        exported, data = world.export(step=100, parallel=8)
        warnings, rows = exported["warnings"][0], len(read_csv(data))
    assert "the source announced a total of 1500 rows" in warnings
    assert 400 <= rows < 1400


def test_empty_source_makes_a_file_without_rows(world: ExportWorld) -> None:
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


def test_requests_have_page_size_and_task_and_are_signed(world: ExportWorld) -> None:
    world.source.rows = numbered(1)
    world.source.url += "?shop=7"
    task_id = world.submit()
    world.run(task_id)

    (request,) = world.source.requests
    assert dict(request.args) == {"shop": "7", "page": "0", "page_size": "1000", "_task_id": task_id}
    secret = world.cloud.callback_secret(world.project.id)
    sent_at = datetime.fromtimestamp(int(request.headers["webhook-timestamp"]), UTC)
    message_id, url = request.headers["webhook-id"], request.url
    own = world.cloud.origin_secret(world.project.id, world.source.url)
    assert request.headers["webhook-signature"].split() == [
        Webhook(secret).sign(message_id, sent_at, ""),
        Webhook(own).sign(message_id, sent_at, f"GET {url}"),
    ]


@pytest.mark.parametrize(("wanted", "in_one"), [(None, 4), (1, 1), (2, 2), (8, 4)])
@pytest.mark.parametrize("how", ["ranges", "staged", "sync"])
def test_no_more_requests_than_wanted_are_in_flight(
    world: ExportWorld, how: str, wanted: int | None, in_one: int
) -> None:
    """A function sends four requests at a time; here the workers for ranges run one after another."""
    lock, in_flight, most = threading.Lock(), [0], [0]

    def slow(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        with lock:
            in_flight[0] += 1
            most[0] = max(most[0], in_flight[0])
        time.sleep(0.05)
        with lock:
            in_flight[0] -= 1
        return honest(source, page, size)

    world.source.rows, world.source.answer = numbered(2500), slow
    fields: dict[str, Any] = {"step": 100} | ({"parallel": wanted} if wanted else {})
    if how == "sync":
        data = world.post("/v1/download/sync", **fields).body
    else:
        if how == "staged":
            world.cloud.app.exports.most_lanes = 0
        _, data = world.export(**fields)
    assert most == [in_one]
    assert len(read_csv(data)) == 2500


def test_flaky_page_loses_and_duplicates_no_row(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(950), {3: [500], 5: [503, 429], 7: [500]}
    shown, data = world.export(step=100)

    assert [int(row["id"]) for row in read_csv(data)] == list(range(950))
    assert shown["attempts"] == 1
    assert world.source.pages[3] == 2


def test_retry_requests_only_the_failed_page(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(950), {4: [500] * 3}
    task_id = world.submit(step=100)
    assert world.attempt(task_id)["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert world.source.pages[0] == 1
    assert world.source.pages[4] == 4
    assert sum(world.source.pages.values()) == 13
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(950))


def test_source_that_always_fails_ends_after_three_attempts(world: ExportWorld) -> None:
    world.source.failures = {0: [500] * 99}
    shown = world.run(world.submit())

    assert (shown["status"], shown["attempts"]) == ("failed", 3)
    assert shown["failed_reason"] == "page 0 of the source: The remote server answered 500"
    assert world.source.pages == {0: 3}


def test_refusal_of_a_source_is_not_retried(world: ExportWorld) -> None:
    world.source.failures = {0: [403]}
    shown = world.run(world.submit())
    assert (shown["status"], shown["attempts"]) == ("failed", 1)
    assert "answered 403" in shown["failed_reason"]


def _with_total(source: PagedSource, page: int, size: int, total: int) -> dict[str, Any]:
    answer = honest(source, page, size)
    answer["data"]["total"] = total
    return answer


@pytest.mark.parametrize("total", [0, 100, 120, 500, 10**15])
def test_wrong_total_is_a_warning_and_loses_no_row(world: ExportWorld, total: int) -> None:
    world.source.rows, world.source.answer = numbered(150), lambda s, p, z: _with_total(s, p, z, total)
    shown, data = world.export(step=100)

    assert [int(row["id"]) for row in read_csv(data)] == list(range(150))
    assert f"announced a total of {total} rows" in shown["warnings"][0]
    assert shown["warnings"][0].endswith("pages have 150")
    assert max(world.source.pages) < 8


def test_row_added_with_every_request_is_a_warning(world: ExportWorld) -> None:
    def growing(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        source.rows.append({"id": len(source.rows), "name": "new", "amount": 0})
        return honest(source, page, size)

    world.source.rows, world.source.answer = numbered(950), growing
    shown, data = world.export(step=100)
    assert [int(row["id"]) for row in read_csv(data)][:950] == list(range(950))
    assert "announced a total of 951 rows" in shown["warnings"][0]
    assert "total changed from 951" in shown["warnings"][1]


def test_row_removed_meanwhile_is_a_warning(world: ExportWorld) -> None:
    def shrinking(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        answer = honest(source, page, size)
        del source.rows[-1]
        return answer

    world.source.rows, world.source.answer = numbered(950), shrinking
    shown, _ = world.export(step=100)
    assert shown["status"] == "completed"
    assert "total changed from 950" in shown["warnings"][1]


def test_source_that_caps_the_page_size_is_read_completely(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(950), lambda s, p, z: honest(s, p, min(z, 80))
    shown, data = world.export(step=1000)
    assert [int(row["id"]) for row in read_csv(data)] == list(range(950))
    assert not shown["warnings"]


@pytest.mark.parametrize("status", [404, 400, 500])
def test_refused_page_past_the_last_is_the_end(world: ExportWorld, status: int) -> None:
    world.source.rows, world.source.failures = numbered(200), {2: [status] * 9}
    shown, data = world.export(step=100)
    assert (len(read_csv(data)), shown["attempts"], shown["warnings"]) == (200, 1, None)


def test_row_inserted_between_attempts_is_a_warning(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(950), {4: [500] * 3}
    task_id = world.submit(step=100)
    assert world.attempt(task_id)["status"] == "pending"
    world.source.rows.insert(0, {"id": -1, "name": "first", "amount": 0})
    shown = world.attempt(task_id)

    assert shown["status"] == "completed"
    assert any("total changed from 950 to 951" in line for line in shown["warnings"])


def by_cursor(source: PagedSource, page: int, size: int) -> dict[str, Any]:
    """Returns the rows after the id in the cursor, so that changes before it do not matter."""
    query = source.requests[-1].args
    after = int(query.get("cursor", -1))
    rows = [row for row in source.rows if row["id"] > after][:size]
    cursor = rows[-1]["id"] if rows and rows[-1]["id"] < source.rows[-1]["id"] else None
    return {"status": 200, "data": {"data": rows, "next": None if cursor is None else str(cursor), "snapshot": "s1"}}


def test_cursor_source_gets_cursor_and_snapshot_in_sequence(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(250), by_cursor
    shown, data = world.export(step=100)

    assert [int(row["id"]) for row in read_csv(data)] == list(range(250))
    sent = [(request.args.get("cursor"), request.args.get("snapshot")) for request in world.source.requests]
    assert sent == [(None, None), ("99", "s1"), ("199", "s1")]
    assert not shown["warnings"]


def test_cursor_source_duplicates_no_row_over_two_attempts(world: ExportWorld) -> None:
    world.source.rows, world.source.answer, world.source.failures = numbered(450), by_cursor, {2: [500] * 3}
    task_id = world.submit(step=100)
    assert world.attempt(task_id)["status"] == "pending"
    world.source.rows.insert(0, {"id": -5, "name": "first", "amount": 0})
    world.attempt(task_id)

    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(450))
    assert world.source.pages[0] == world.source.pages[1] == 1


def test_response_that_is_not_json_fails_with_the_reason(world: ExportWorld) -> None:
    world.source.answer = lambda *_: Response("id;name")
    shown = world.run(world.submit(step=100))

    assert (shown["status"], shown["attempts"]) == ("failed", 1)
    assert "page 0: the response is not JSON" in shown["failed_reason"]
    assert world.objects("staging") == [f"staging/{world.project.id}/{shown['task_id']}/spec.json"]


def busy(status: int | str = 503) -> dict[str, Any]:
    return {"status": status, "msg": "busy"}


CUT = '{"status": 200, "data": {"total": 2050, "data": [{"id": 100, "na'
OUTAGES = [busy(), busy("500"), busy(429), Response("<html>502 Bad Gateway</html>"), Response(""), Response(CUT)]


@pytest.mark.parametrize("outage", OUTAGES, ids=["503", "500", "429", "html", "empty", "cut"])
@pytest.mark.parametrize("how", ["ranges", "staged"])
def test_outage_in_the_body_is_retried_like_http_503(world: ExportWorld, how: str, outage: Any) -> None:
    def answer(source: PagedSource, page: int, size: int) -> Any:
        return outage if page in (3, 7) and source.pages[page] < 3 else honest(source, page, size)

    world.source.rows, world.source.answer = numbered(2050), answer
    if how == "staged":
        world.cloud.app.exports.most_lanes = 0
    began = world.cloud.clock()
    shown, data = world.export(step=100)
    assert (shown["attempts"], world.source.pages[3], len(read_csv(data))) == (1, 3, 2050)
    assert (world.cloud.clock() - began).total_seconds() >= 2 * (2 + 4)


@pytest.mark.parametrize("how", ["ranges", "staged"])
@pytest.mark.parametrize("outage", [busy(), busy(403), Response("<html>login</html>")], ids=["503", "403", "html"])
def test_manual_retry_goes_on_at_the_failed_page(world: ExportWorld, how: str, outage: Any) -> None:
    def answer(source: PagedSource, page: int, size: int) -> Any:
        return outage if page == 15 else honest(source, page, size)

    world.source.rows, world.source.answer = numbered(2050), answer
    if how == "staged":
        world.cloud.app.exports.most_lanes = 0
    task_id = world.submit(step=100, parallel=1)
    shown = world.run(task_id)
    assert (shown["status"], shown["attempts"]) == ("failed", 1 if outage == busy(403) else 3)
    world.cloud.invoke("clean_up", {})
    world.source.requests.clear()
    world.source.answer = honest

    assert world.cloud.http("POST", f"/v1/requests/{task_id}/retry", key=world.project.key).status == 200
    assert world.run(task_id)["status"] == "completed"
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(2050))
    assert min(world.source.pages) == 15


def test_pages_of_a_failed_export_go_with_its_record(world: ExportWorld) -> None:
    world.source.rows, world.source.failures = numbered(950), {4: [500] * 99}
    task_id = world.submit(step=100)
    assert world.run(task_id)["status"] == "failed"
    assert len(world.objects(f"staging/{world.project.id}/{task_id}/pages/")) >= 9
    world.cloud.clock.advance(30 * 86400 + 1)
    clean(world.cloud.app.queue)
    assert world.objects("staging") == []


def test_retry_after_contradicting_pages_pulls_all_again(world: ExportWorld) -> None:
    """What the source sent before it was repaired must not be in the file."""
    world.source.rows = numbered(950)
    world.source.answer = lambda source, _, size: without_total(source, 0, size)
    task_id = world.submit(step=100)
    assert "seems to ignore" in world.run(task_id)["failed_reason"]

    world.source.answer = honest
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/retry", key=world.project.key).status == 200
    assert world.run(task_id)["status"] == "completed"
    assert [int(row["id"]) for row in read_csv(world.file(task_id))] == list(range(950))


@pytest.mark.parametrize("how", ["ranges", "staged", "sync"])
def test_page_slower_than_source_timeout_fails(world: ExportWorld, how: str) -> None:
    def slow(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        if page == 3:
            time.sleep(1.6)
        return honest(source, page, size)

    world.source.rows, world.source.answer = numbered(2050), slow
    fields: dict[str, Any] = {"step": 100, "source_url": world.source.url}
    if how == "sync":
        assert world.post("/v1/download/sync", **fields, source_timeout=1).json()["code"] == "fetch_timeout"
        assert len(read_csv(world.post("/v1/download/sync", **fields, source_timeout=3).body)) == 2050
        return
    if how == "staged":
        world.cloud.app.exports.most_lanes = 0
    shown = world.run(world.submit(**fields, source_timeout=1))
    assert (shown["status"], "page 3 of the source: " in shown["failed_reason"]) == ("failed", True)
    _, data = world.export(**fields, source_timeout=3)
    assert len(read_csv(data)) == 2050


@pytest.mark.parametrize("how", ["ranges", "staged"])
def test_default_page_limits_give_way_to_source_timeout(
    world: ExportWorld, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        if page == 3:
            time.sleep(0.8)
        return honest(source, page, size)

    monkeypatch.setattr("tidegate.exports.source.PAGE_LIMITS", Limits(read=0.4, total=0.5))
    world.source.rows, world.source.answer = numbered(2050), slow
    if how == "staged":
        world.cloud.app.exports.most_lanes = 0
    assert world.run(world.submit(step=100))["status"] == "failed"
    assert world.export(step=100, source_timeout=5)[0]["status"] == "completed"


@pytest.mark.parametrize("wanted", [0, 601, -1, "long"])
def test_source_timeout_out_of_bounds_is_refused(world: ExportWorld, wanted: object) -> None:
    assert world.post(source_timeout=wanted).status == 422


@pytest.mark.parametrize("timeout", [30, 600])
def test_no_page_is_requested_that_could_outlast_the_function(world: ExportWorld, timeout: int) -> None:
    """An invocation has 900 s, of which 50 are for what follows the last page."""
    world.source.rows = numbered(950)
    state = world.admit(world.submit(step=100, source_timeout=timeout))
    exports = world.cloud.app.exports
    assert steps.pull(exports, state, seconds_left=timeout + 51)["next"] == "render"
    state = world.admit(world.submit(step=100, source_timeout=timeout))
    assert steps.pull(exports, state, seconds_left=timeout + 49)["next"] == "pull"


@pytest.mark.parametrize(
    ("charset", "encoding"), [("gbk", "gbk"), ("GB2312", "gbk"), ("iso-8859-1", "utf-8"), ("gbk", "gb18030")]
)
def test_charset_of_the_source_is_read(world: ExportWorld, charset: str, encoding: str) -> None:
    text = "名字€" if encoding == "gb18030" else "名字"

    def answer(source: PagedSource, page: int, size: int) -> Response:
        body = json.dumps(honest(source, page, size), ensure_ascii=False).encode(encoding)
        return Response(body, content_type=f"application/json; charset={charset}")

    world.source.rows, world.source.answer = [{"name": text}], answer
    assert world.export()[1].decode() == f"name\n{text}\n"


def test_page_over_16_mib_says_to_lower_step(world: ExportWorld) -> None:
    world.source.answer = lambda *_: Response(b" " * (16 * 1024 * 1024 + 1))
    shown = world.run(world.submit(step=5000))
    assert "Lower `step`, which is 5000" in shown["failed_reason"]


def test_repaired_source_can_be_retried(world: ExportWorld) -> None:
    world.source.rows, world.source.answer = numbered(150), lambda *_: {"status": 500, "msg": "closed"}
    task_id = world.submit(step=100)
    assert world.run(task_id)["status"] == "failed"

    world.source.answer = honest
    assert world.cloud.http("POST", f"/v1/requests/{task_id}/retry", key=world.project.key).status == 200
    assert world.run(task_id)["status"] == "completed"
    assert len(read_csv(world.file(task_id))) == 150


@pytest.mark.parametrize("more", [{"header": [1]}, {"footer": {"a": {}}}, {"template": "{col"}, {"template": 5}])
def test_bad_header_footer_or_template_fails_with_the_field(world: ExportWorld, more: Any) -> None:
    world.source.rows, world.source.more = numbered(2), more
    shown = world.run(world.submit(type="excel"))
    assert shown["status"] == "failed"
    assert f"page 0: data.{next(iter(more))}" in shown["failed_reason"]

    fields = {"source_url": world.source.url, "type": "excel"}
    answer = world.cloud.http("POST", "/v1/download/sync", json=fields, key=world.project.key)
    assert (answer.status, answer.json()["code"]) == (502, "source_broken")


def test_decimals_keep_their_digits(world: ExportWorld) -> None:
    body = b'{"status":200,"data":{"total":1,"data":[{"a":12345678901234567.89,"b":100.00,"c":NaN,"d":1e400,"e":0.1}]}}'
    world.source.answer = lambda *_: Response(body, content_type="application/json")
    _, data = world.export()
    assert data == b"a,b,c,d,e\n12345678901234567.89,100.00,NaN,1e400,0.1\n"
    _, book = world.export(type="excel")
    assert read_sheet(book)[1] == ("12345678901234567.89", 100, "NaN", "1e400", 0.1)
    assert b"<v>100.00</v>" in zipfile.ZipFile(io.BytesIO(book)).read("xl/worksheets/sheet1.xml")


def test_header_footer_and_template_come_from_the_source(world: ExportWorld) -> None:
    world.source.rows = numbered(2)
    world.source.more = {"header": {"油站": "钓鱼岛"}, "footer": '{"签名": "x"}', "template": {"name": "姓名"}}
    _, data = world.export(type="excel", header={"油站": "asked for"}, template={"id": "编号"})

    assert read_sheet(data) == [("油站：钓鱼岛",), ("姓名",), ("名字0",), ("名字1",), ("签名：x",)]


def test_keys_of_later_pages_are_appended(world: ExportWorld) -> None:
    world.source.rows = [{"a": n} for n in range(100)] + [{"c": 1, "b": 2, "a": 3}] * 100 + [{"d": 4}]
    _, data = world.export(step=100)
    assert data.split(b"\n", 1)[0] == b"a,c,b,d"
    assert read_csv(data)[150] == {"a": "3", "b": "2", "c": "1", "d": ""}


def test_private_source_is_refused_unless_the_project_allows_it(world: ExportWorld) -> None:
    stranger = world.cloud.project(allow_private_urls=False)
    answer = world.cloud.http(
        "POST", "/v1/task", json={"name": "orders", "source_url": world.source.url}, key=stranger.key
    )
    assert (answer.status, answer.json()["code"]) == (422, "url_not_allowed")
    assert answer.json()["errors"][0]["loc"] == ["body", "source_url"]


def test_sample_returns_the_first_rows_and_queues_nothing(world: ExportWorld) -> None:
    world.source.rows = numbered(250)

    answer = world.cloud.http("POST", "/v1/task/sample", json={"source_url": world.source.url}, key=world.project.key)

    assert answer.status == 200, answer.body
    assert [row["id"] for row in answer.json()["rows"]] == list(range(20))
    assert answer.json()["total"] == 250
    assert world.source.pages == {0: 1}
    assert world.cloud.http("GET", "/v1/tasks", key=world.project.key).json()["items"] == []


def test_sample_shows_numbers_that_javascript_would_change_as_text(world: ExportWorld) -> None:
    numbers = '{"a": 0.25, "b": 100.00, "c": 12345678901234567, "d": 1e400, "e": [1.10, 7], "f": -12345678901234567.5}'
    world.source.answer = lambda *_: Response(f'{{"status": 200, "data": {{"data": [{numbers}], "total": 1}}}}')
    [row] = world.cloud.http(
        "POST", "/v1/task/sample", json={"source_url": world.source.url}, key=world.project.key
    ).json()["rows"]
    assert row == {
        "a": 0.25,
        "b": "100.00",
        "c": "12345678901234567",
        "d": "1e400",
        "e": ["1.10", 7],
        "f": "-12345678901234567.5",
    }
