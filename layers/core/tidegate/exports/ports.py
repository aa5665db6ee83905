"""Interfaces of exports that have several implementations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidegate.common.later import Chunk
    from tidegate.exports.source_page import Place


class Sink(Protocol):
    """A file that is being written to the bucket; it becomes visible with `close`."""

    size: int

    def write(self, data: Chunk) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ReadPage(Protocol):
    def __call__(self, source_url: str, place: Place, step: int, seconds: float | None = None) -> bytes:
        """Returns the body of a page. `seconds` limits the request further than the default timeouts."""
