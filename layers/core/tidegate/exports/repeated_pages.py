"""Detects a source that returns the same page to every request.

Such a source has no last page, so only pages without another bound are checked: those past the source's total, and
those of a source without a total. Rows may repeat in valid data: a page counts only if all its rows differ from one
another, so a table of one value, or of a few, is never taken for a broken source.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Any

from msgspec.structs import astuple

from tidegate.exports.rendering.typed_rows import TypedRow
from tidegate.exports.source_json import write_exact

# Pages of fewer rows may be equal by chance.
_FEWEST_ROWS = 20
# How many times in succession a page has to repeat.
_MOST_REPEATS = 2


class RepeatedPages:
    """Checks pages in order. Rows are hashed only once two pages have the same first and last row."""

    def __init__(self) -> None:
        self._number = -1
        self._ends: tuple[int, bytes, bytes] | None = None
        self._digest: bytes | None = None
        self._repeats = 0

    def too_many(self, number: int, rows: Sequence[Any]) -> bool:
        """Whether page `number` equals the one before it, and that one its predecessor."""
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
    """None if a row occurs twice on the page."""
    texts = list(map(_text, rows))
    return sha256(b"\n".join(texts)).digest() if len(set(texts)) == len(texts) else None


def _text(row: Any) -> bytes:
    return write_exact(list(astuple(row)) if isinstance(row, TypedRow) else row)
