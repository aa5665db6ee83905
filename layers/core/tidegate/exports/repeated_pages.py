"""Notices a source that answers the same page again and again, whichever page it is asked for.

Such a source has no last page, so only pages that nothing else bounds are looked at: those past the source's total,
and those of a source that tells no total. Rows may well repeat in honest data. A page counts only if its rows all
differ from one another, so tables of one value, or of a few, are never taken for a broken source.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import astuple

from tidegate.exports.rendering.typed_rows import TypedRow
from tidegate.exports.source_json import write_exact

# Pages of fewer rows may be alike by chance.
_FEWEST_ROWS = 20
# How many times in succession a page has to come again.
_MOST_REPEATS = 2


class RepeatedPages:
    """Is shown pages in their order. Costs nothing until two of them begin and end with the same rows."""

    def __init__(self) -> None:
        self._number = -1
        self._ends: tuple[int, bytes, bytes] | None = None
        self._digest: bytes | None = None
        self._repeats = 0

    def too_many(self, number: int, rows: Sequence[Any]) -> bool:
        """Whether page `number` is the same as the one before it, and that one and its predecessor were the same."""
        follows, self._number = number == self._number + 1, number
        ends = (len(rows), _text(rows[0]), _text(rows[-1])) if len(rows) >= _FEWEST_ROWS else None
        if ends is None or not follows or ends != self._ends:
            self._ends, self._digest, self._repeats = ends, None, 0
            return False
        digest = _digest(rows)
        self._repeats = self._repeats + 1 if digest is not None and digest == self._digest else 0
        self._digest = digest
        return self._repeats >= _MOST_REPEATS


def _digest(rows: Sequence[Any]) -> bytes | None:
    """None where a row comes twice on the page."""
    texts = list(map(_text, rows))
    return sha256(b"\n".join(texts)).digest() if len(set(texts)) == len(texts) else None


def _text(row: Any) -> bytes:
    return write_exact(list(astuple(row)) if isinstance(row, TypedRow) else row)
