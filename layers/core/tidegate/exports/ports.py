"""What the services of exports ask of the outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidegate.common.later import Chunk
    from tidegate.exports.source_page import Place


class Sink(Protocol):
    """A file on its way into the bucket; nothing is visible before `close`."""

    size: int

    def write(self, data: Chunk) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ReadPage(Protocol):
    def __call__(self, source_url: str, place: Place, step: int, seconds: float | None = None) -> bytes:
        """`seconds` is what is left for it, where that is less than a page may take."""
