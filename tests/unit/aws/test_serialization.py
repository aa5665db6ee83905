from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from boto3.dynamodb.types import TypeSerializer
from hypothesis import given
from hypothesis import strategies as st

from tests.support.fuzz.any_values import TEXT, examples, json_values
from tidegate.aws.table import decode_cursor, encode_cursor, from_wire, to_wire
from tidegate.errors import Invalid


@pytest.mark.parametrize("small", [5e-324, -1.4e-287])
def test_number_too_small_for_dynamodb_is_zero(small: float) -> None:
    assert from_wire(to_wire({"delay": small})) == {"delay": 0}


@pytest.mark.parametrize("large", [1e300, -1e126, float("inf"), float("nan")])
def test_float_too_large_for_dynamodb_is_invalid(large: float) -> None:
    with pytest.raises(Invalid, match="cannot be stored"):
        to_wire({"rate": large})


@examples(200)
@given(TEXT | st.text("AZaz09-_=", max_size=60) | json_values("pk", "S").map(lambda key: encode_cursor(key)))
def test_any_text_is_a_valid_cursor_or_invalid(text: str) -> None:
    try:
        key = decode_cursor(text)
    except Invalid:
        return
    assert all(list(value) in (["S"], ["N"]) and type(*value.values()) is str for value in key.values())


@pytest.mark.parametrize(
    "value",
    [
        "",
        "text",
        "…",
        True,
        False,
        0,
        -7,
        10**38 - 1,
        0.1,
        1e20,
        b"\0",
        {"a": {"b": [1, "x", None]}},
        [],
        {"one"},
    ],
)
def test_value_is_written_as_boto3_writes_it(value: Any) -> None:
    given = Decimal(str(value)) if isinstance(value, float) else value
    assert to_wire({"held": value}) == {"held": TypeSerializer().serialize(given)}
    assert from_wire(to_wire({"held": value})) == {"held": value}


def test_value_without_form_in_dynamodb_is_refused() -> None:
    with pytest.raises(TypeError, match="datetime"):
        to_wire({"at": datetime.now(UTC)})
