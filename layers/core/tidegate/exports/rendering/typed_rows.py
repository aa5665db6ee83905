"""Rows of a source whose keys are known, read without building a dictionary for each.

A row is then an object with one slot a key: a third faster to read, and a key that was not known shows by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from tidegate.exports.source_json import Digits

_MOST_KEYS = 500


class TypedRow(msgspec.Struct, gc=False):
    """Its subclasses have the slots; `getters` reads them by key."""


class _Data(msgspec.Struct):
    """What comes beside the rows, which subclasses add."""

    total: Any = msgspec.UNSET
    force_continue: Any = msgspec.UNSET
    header: Any = msgspec.UNSET
    footer: Any = msgspec.UNSET
    template: Any = msgspec.UNSET
    next: Any = msgspec.UNSET
    snapshot: Any = msgspec.UNSET

    def rest(self) -> dict[str, Any]:
        names = _Data.__struct_fields__
        return {name: value for name in names if (value := getattr(self, name)) is not msgspec.UNSET}


def typed_answers(keys: Sequence[str]) -> Callable[[bytes], Any] | None:
    """Reads a source's answer; None for one that is not so, which has to be read the general way.

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
    data = msgspec.defstruct("Data", [("data", list[row])], bases=(_Data,), kw_only=True)  # type: ignore[valid-type]
    answer = msgspec.defstruct("Answer", [("data", data), ("status", Any, None), ("msg", Any, None)])
    decoder = msgspec.json.Decoder(answer, float_hook=Digits)

    def read(body: bytes) -> Any:
        try:
            return decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    return read
