"""Values of any kind, for properties that must hold whatever comes in."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

# Half a surrogate pair comes in as an escape of JSON. The second kind has only special characters.
TEXT = st.text(st.characters(exclude_categories=()), max_size=20) | st.text(
    "\x00\x0b\r\n\t\ufffe\u2028=+-@<&_x0,' \"", max_size=8
)
NUMBERS = st.integers(-(10**40), 10**40) | st.floats()
SCALARS = st.none() | st.booleans() | NUMBERS | TEXT


def examples(count: int) -> settings:
    """The same examples every time; FUZZ_EXAMPLES asks for more of them."""
    return settings(
        max_examples=int(os.environ.get("FUZZ_EXAMPLES", count)),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def json_values(*words: str) -> st.SearchStrategy[Any]:
    """Anything that JSON can say, its objects mostly with these keys."""
    keys = st.sampled_from(words) | TEXT if words else TEXT
    return st.recursive(
        SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(keys, inner, max_size=6), max_leaves=12
    )
