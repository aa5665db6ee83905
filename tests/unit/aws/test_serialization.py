from __future__ import annotations

import pytest
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
