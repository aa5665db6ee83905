from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tidegate.batches.items import LONGEST_LINE, MOST_LINES
from tidegate.batches.model import ItemResult
from tidegate.batches.workers import call_body, read_reply
from tidegate.http.model import Reply

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def parsed(body: object, status: int = 200, **headers: str) -> tuple[ItemResult, tuple[tuple[str, str], ...]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    (read,) = read_reply(Reply(status, headers, raw, "http://b/"), NOW, [0], grouped=False)
    return read.answer, read.lines


@pytest.mark.parametrize("result", ["ok", "error", "abandon"])
@pytest.mark.parametrize("stop", [None, "stop", "finish"])
def test_valid_answer_is_parsed(result: str, stop: str | None) -> None:
    answer, _ = parsed({"result": result} | ({"stop": stop} if stop else {}))
    assert (answer.result, answer.stop) == (result, stop)


@pytest.mark.parametrize(
    "body", [b"", b"ok", b"[]", b"{}", {"result": "fine"}, {"result": "ok", "stop": "now"}, b"\xff", b"[" * 100_000]
)
def test_invalid_answer_is_an_error(body: object) -> None:
    assert parsed(body)[0].result == "error"


@pytest.mark.parametrize("status", [302, 404, 429, 500, 503])
def test_status_outside_2xx_is_an_error_whatever_the_body(status: int) -> None:
    answer, _ = parsed({"result": "ok"}, status, **{"retry-after": "9"})
    assert answer.result == "error"
    assert answer.retry_after == (9.0 if status in (429, 500, 503) else None)


def test_retry_after_of_more_than_a_day_is_taken_for_a_mistake() -> None:
    assert parsed(b"", 429, **{"retry-after": str(30 * 86400)})[0].retry_after == 86400
    assert parsed(b"", 503, **{"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"})[0].retry_after == 86400


def test_reason_of_failure_is_msg_or_first_log_line() -> None:
    assert parsed({"result": "error", "msg": "no stock"})[0].detail == "no stock"
    assert parsed({"result": "abandon", "logs": ["gone"]})[0].detail == "gone"
    assert parsed({"result": "ok", "logs": ["fine"]})[0].detail == ""


def test_log_lines_of_any_kind_are_accepted_up_to_limits() -> None:
    logs = ["a", {"level": "warn", "message": "b"}, {"other": 1}, 7, "\ud800", "x" * 5000, *["more"] * 50]
    _, lines = parsed({"result": "ok", "logs": logs})
    assert lines[:5] == (("info", "a"), ("warn", "b"), ("info", '{"other": 1}'), ("info", "7"), ("info", "?"))
    assert len(lines[5][1]) == LONGEST_LINE
    assert len(lines) == MOST_LINES
    assert parsed({"result": "ok", "logs": "single"})[1] == (("info", "single"),)


def test_call_body_has_the_data_of_the_item() -> None:
    item = {"index": 3, "attempt": 2}
    assert json.loads(call_body("bat-1", [item], grouped=False)) == {"batch_id": "bat-1"} | item
    assert json.loads(call_body("bat-1", [item | {"job_data": "\ud800"}], grouped=False))["job_data"] == "\ud800"
    assert json.loads(call_body("bat-1", [item], grouped=True)) == {"batch_id": "bat-1", "items": [item]}


def group(body: object) -> list[str]:
    reply = Reply(200, {}, json.dumps(body).encode(), "http://b/")
    return [read.answer.result for read in read_reply(reply, NOW, [4, 5], grouped=True)]


def test_results_of_group_are_matched_by_index_or_order() -> None:
    assert group({"results": [{"index": 5, "result": "ok"}, {"index": 4, "result": "abandon"}]}) == ["abandon", "ok"]
    assert group({"results": [{"result": "ok"}, {"result": "abandon"}]}) == ["ok", "abandon"]


def test_only_items_missing_from_results_fail() -> None:
    assert group({"results": [{"index": 5, "result": "ok"}]}) == ["error", "ok"]
    assert group({"result": "ok"}) == ["error", "error"]
    assert group({"results": [{"result": "ok"}]}) == ["error", "error"]
