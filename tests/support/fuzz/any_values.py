"""Hypothesis strategies for values of any kind, for properties that must hold for every input."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Any characters, also half a surrogate pair, which JSON can carry as an escape; or special characters only.
TEXT = st.text(st.characters(exclude_categories=()), max_size=20) | st.text(
    "\x00\x0b\r\n\t\ufffe\u2028=+-@<&_x0,' \"", max_size=8
)
NUMBERS = st.integers(-(10**40), 10**40) | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT


def examples(count: int) -> settings:
    """Returns settings that try the same examples every time; FUZZ_EXAMPLES sets another number."""
    return settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", count)),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def json_values(*words: str) -> st.SearchStrategy[Any]:
    """Returns a strategy for any JSON value, whose objects mostly have these keys."""
    keys = st.sampled_from(words) | TEXT if words else TEXT
    return st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=6), max_leaves=12
    )
