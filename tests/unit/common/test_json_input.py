from __future__ import annotations

import pytest

from tidegate.common.json_input import read_json
from tidegate.http.model import Reply

ENDLESS = "[" * 200_000


@pytest.mark.parametrize("text", ["{", "nope", "", b"\xff", ENDLESS])
def test_unreadable_json_is_a_value_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        read_json(text)


@pytest.mark.parametrize("text", ["NaN", '{"a": -Infinity}', "[1e999]", "-1e999"])
def test_exact_refuses_numbers_that_json_cannot_represent(text: str) -> None:
    read_json(text)
    with pytest.raises(ValueError):
        read_json(text, exact=True)


def test_exact_keeps_all_others() -> None:
    assert read_json('[1, -2.5, 1e300, "NaN"]', exact=True) == [1, -2.5, 1e300, "NaN"]


def test_deeply_nested_reply_is_not_json() -> None:
    with pytest.raises(ValueError):
        Reply(200, {}, ENDLESS.encode(), "http://x/").json()
