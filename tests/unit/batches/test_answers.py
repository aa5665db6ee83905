from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from tidegate.batches.answers import LONGEST_LINE, MOST_LINES, NOTHING, item_body, read_reply
from tidegate.batches.run_state import ItemAnswer, ItemCall
from tidegate.http.model import Reply

NOW = datetime(2026, 11, 16, tzinfo=UTC)


def heard(body: object, status: int = 200, **headers: str) -> tuple[ItemAnswer, tuple[tuple[str, str], ...]]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    read = read_reply(Reply(status, headers, raw, "http://b/"), NOW)
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
    assert json.loads(item_body("bat-1", ItemCall(3, 2), NOTHING)) == {"batch_id": "bat-1", "index": 3, "attempt": 2}
    assert json.loads(item_body("bat-1", ItemCall(3, 2), None))["job_data"] is None
    assert json.loads(item_body("bat-1", ItemCall(3, 2), "\ud800"))["job_data"] == "\ud800"
