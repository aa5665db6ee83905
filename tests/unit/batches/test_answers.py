from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tidegate.batches.run.answers import LONGEST_LINE, MOST_LINES, call_body, read_reply
from tidegate.batches.run.values import ItemAnswer
from tidegate.http.model import Reply

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def heard(body: object, status: int = 200, **headers: str) -> tuple[ItemAnswer, tuple[tuple[str, str], ...]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    (read,) = read_reply(Reply(status, headers, raw, "http://b/"), NOW, [0], grouped=False)
    return read.answer, read.lines


@pytest.mark.parametrize("result", ["ok", "error", "abandon"])
@pytest.mark.parametrize("stop", [None, "stop", "finish"])
def test_what_the_contract_allows_is_understood(result: str, stop: str | None) -> None:
    answer, _ = heard({"result": result} | ({"stop": stop} if stop else {}))
    assert (answer.result, answer.stop) == (result, stop)


@pytest.mark.parametrize(
    "body", [b"", b"ok", b"[]", b"{}", {"result": "fine"}, {"result": "ok", "stop": "now"}, b"\xff", b"[" * 100_000]
)
def test_anything_else_is_an_error_and_never_a_success(body: object) -> None:
    assert heard(body)[0].result == "error"


@pytest.mark.parametrize("status", [302, 404, 429, 500, 503])
def test_a_status_outside_2xx_is_an_error_whatever_the_body_says(status: int) -> None:
    answer, _ = heard({"result": "ok"}, status, **{"retry-after": "9"})
    assert answer.result == "error"
    assert answer.retry_after == (9.0 if status in (429, 500, 503) else None)


def test_the_reason_of_a_failure_is_its_msg_or_its_first_line() -> None:
    assert heard({"result": "error", "msg": "no stock"})[0].detail == "no stock"
    assert heard({"result": "abandon", "logs": ["gone"]})[0].detail == "gone"
    assert heard({"result": "ok", "logs": ["fine"]})[0].detail == ""


def test_log_lines_are_taken_as_they_come_but_not_without_end() -> None:
    said = ["a", {"level": "warn", "message": "b"}, {"other": 1}, 7, "\ud800", "x" * 5000, *["more"] * 50]
    _, lines = heard({"result": "ok", "logs": said})
    assert lines[:5] == (("info", "a"), ("warn", "b"), ("info", '{"other": 1}'), ("info", "7"), ("info", "?"))
    assert len(lines[5][1]) == LONGEST_LINE
    assert len(lines) == MOST_LINES
    assert heard({"result": "ok", "logs": "single"})[1] == (("info", "single"),)


def test_an_item_carries_its_data_if_it_has_any() -> None:
    item = {"index": 3, "attempt": 2}
    assert json.loads(call_body("bat-1", [item], grouped=False)) == {"batch_id": "bat-1"} | item
    assert json.loads(call_body("bat-1", [item | {"job_data": "\ud800"}], grouped=False))["job_data"] == "\ud800"
    assert json.loads(call_body("bat-1", [item], grouped=True)) == {"batch_id": "bat-1", "items": [item]}


def group(body: object) -> list[str]:
    reply = Reply(200, {}, json.dumps(body).encode(), "http://b/")
    return [read.answer.result for read in read_reply(reply, NOW, [4, 5], grouped=True)]


def test_results_of_a_group_are_told_by_index_or_by_order() -> None:
    assert group({"results": [{"index": 5, "result": "ok"}, {"index": 4, "result": "abandon"}]}) == ["abandon", "ok"]
    assert group({"results": [{"result": "ok"}, {"result": "abandon"}]}) == ["ok", "abandon"]


def test_an_item_that_the_results_leave_out_has_failed_and_the_others_have_not() -> None:
    assert group({"results": [{"index": 5, "result": "ok"}]}) == ["error", "ok"]
    assert group({"result": "ok"}) == ["error", "error"]
    assert group({"results": [{"result": "ok"}]}) == ["error", "error"]
