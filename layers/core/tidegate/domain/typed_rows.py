"""Rows of a source whose keys are known, read without building a dictionary for each.

A row is then an object with one slot a key: a third faster to read, and a key that was not known shows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from tidegate.domain.source_json import Digits

_MOST_KEYS = 500


class TypedRow(msgspec.Struct, gc=False):
    """Its subclasses have the slots; `getters` reads them by key."""


def typed_rows(keys: Sequence[str]) -> Callable[[bytes], list[Any] | None] | None:
    """Reads the rows out of a page's bytes; None for a page that is not so, which has to be read the general way.

    No reader at all where keys are too many or need escapes in JSON.
    """
    if not 0 < len(keys) <= _MOST_KEYS or any('"' in key or "\\" in key or not key.isprintable() for key in keys):
        return None
    names = [f"slot{number}" for number in range(len(keys))]
    row = msgspec.defstruct(
        "Row",
        [(name, Any, None) for name in names],
        bases=(TypedRow,),
        namespace={"getters": {key: attrgetter(name) for key, name in zip(keys, names, strict=True)}},
        rename=dict(zip(names, keys, strict=True)),
        forbid_unknown_fields=True,
        gc=False,
    )
    data = msgspec.defstruct("Data", [("data", list[row])])  # type: ignore[valid-type]
    decoder = msgspec.json.Decoder(msgspec.defstruct("Answer", [("data", data)]), float_hook=Digits)

    def read(body: bytes) -> list[Any] | None:
        try:
            found: list[Any] = decoder.decode(body).data.data  # type: ignore[attr-defined]
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return found

    return read
