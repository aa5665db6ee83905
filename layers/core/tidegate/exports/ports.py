"""What the services of exports ask of the outside."""

from __future__ import annotations

from typing import Protocol


class Sink(Protocol):
    """A file on its way into the bucket; nothing is visible before `close`."""

    size: int

    def write(self, data: bytes) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ReadPage(Protocol):
    def __call__(self, source_url: str, page: int, step: int) -> bytes: ...
