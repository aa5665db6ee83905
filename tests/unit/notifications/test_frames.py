"""No WebSocket message is larger than a frame of API Gateway, however long ids and records are."""

from __future__ import annotations

import json

import pytest

from tidegate.notifications.websocket import LARGEST_FRAME, LONGEST_ID, MOST_IDS, id_messages, message


@pytest.mark.parametrize("letter", ["a", "é", "\N{GRINNING FACE}", '"'])
def test_ids_are_split_by_bytes_and_all_are_sent(letter: str) -> None:
    ids = [f"{number:03}{letter * (LONGEST_ID - 3)}" for number in range(MOST_IDS)]

    told = id_messages("watching", ids)

    assert all(len(text.encode()) <= LARGEST_FRAME for text in told)
    assert [one for text in told for one in json.loads(text)["data"]["task_ids"]] == ids


def test_short_ids_share_one_message() -> None:
    assert len(id_messages("watching", [f"AsyncDownloadTask:{number}" for number in range(MOST_IDS)])) == 1


def test_large_record_is_sent_without_its_largest_fields() -> None:
    record = {"rows": ["é" * 100] * 400, "task_id": "exp-1", "status": "completed", "note": "short"}

    told = message("export.ended", record)

    assert len(told.encode()) <= LARGEST_FRAME
    assert json.loads(told)["data"] == {"truncated": True, "task_id": "exp-1", "status": "completed", "note": "short"}


def test_record_that_fits_is_sent_whole() -> None:
    record = {"rows": ["x" * 100] * 300, "status": "completed"}
    assert json.loads(message("export.ended", record))["data"] == record
