"""Extreme values of each type, as careless or hostile clients send them; each has caused a 5xx or may do so."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

LONE_SURROGATE = "\ud800"
# Limits: DynamoDB keys of 2,048 and 1,024 bytes, DynamoDB numbers of 38 digits, Python integers of 4,300 digits.
NUMBERS: tuple[int, ...] = (10**15, 10**38 - 1, 10**38, 10**40, -(10**40), 10**4000)
DIGITS: tuple[str, ...] = ("9" * 16, "9" * 40, "9" * 5000, "²", "٣", "-0", "1e400")
MOMENTS: tuple[str, ...] = (
    "0001-01-01T00:00:00+14:00",
    "9999-12-31T23:59:59-14:00",
    "0001-01-01",
    "0999-06-01T00:00:00Z",
    "9999-12-31",
)
TEXTS: tuple[str, ...] = (
    "x" * 1025,
    "x" * 2049,
    "长" * 700,
    f"a{LONE_SURROGATE}b",
    "\x00",
    "a\nb",
    "",
    "👩‍🚀" * 200,
)
OTHERS: tuple[Any, ...] = (None, True, 1.5, [], {}, [LONE_SURROGATE], {LONE_SURROGATE: 1})
ODD: tuple[Any, ...] = (*NUMBERS, *DIGITS, *MOMENTS, *TEXTS, *OTHERS)

_powers = st.builds(lambda digits, sign: sign * 10**digits, st.integers(0, 4200), st.sampled_from((1, -1)))
_any_text = st.text(st.characters(exclude_categories=()), max_size=40)
numbers = st.sampled_from(NUMBERS) | _powers
digits = st.sampled_from(DIGITS) | st.integers(1, 6000).map("9".__mul__)
moments = st.sampled_from(MOMENTS) | st.datetimes().map(lambda moment: moment.isoformat() + "+14:00")
texts = st.sampled_from(TEXTS) | st.integers(1, 5000).map("x".__mul__) | _any_text
values = numbers | digits | moments | texts | st.sampled_from(OTHERS)
