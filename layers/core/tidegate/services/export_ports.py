"""What the services of exports ask of the outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.domain.exports import Export
from tidegate.domain.requests import Request
from tidegate.services.ports import Listed

if TYPE_CHECKING:
    from tidegate.domain.part_plan import Part
    from tidegate.domain.source_page import Place
    from tidegate.rendering.later import Chunk


class Sink(Protocol):
    """A file on its way into the bucket; nothing is visible before `close`."""

    size: int

    def write(self, data: Chunk) -> None: ...

    def close(self) -> None: ...

    def abort(self) -> None: ...


class ExportObjects(Protocol):
    """The part of the bucket that exports use."""

    def put(self, key: str, data: bytes, content_type: str = "application/json") -> None: ...

    def put_first(self, key: str, data: bytes) -> bytes:
        """Writes what is not there yet; answers what lies there then: who came first wins."""

    def store(self, key: str, data: bytes | bytearray) -> str:
        """Writes and answers the ETag."""

    def assemble(self, key: str, content_type: str, parts: Sequence[Part]) -> int:
        """One object out of pieces, most of which are copied on S3; answers its size."""

    def get(self, key: str) -> bytes | None: ...

    def keys(self, prefix: str) -> Iterator[str]: ...

    def remove(self, prefix: str, keep: str = "") -> None: ...

    def sink(self, key: str, content_type: str) -> Sink: ...

    def abort_uploads(self, prefix: str) -> int: ...

    def link(self, key: str, seconds: int, file_name: str) -> str: ...


class ExportStore(Protocol):
    def write(self, export: Export) -> Any:
        """The write that goes into the transaction of its request."""

    def page(
        self, project_id: str, limit: int, cursor: str | None, wanted: Mapping[str, Any]
    ) -> Listed[tuple[Export, Request | None]]: ...

    def remove(self, project_id: str, task_id: str) -> None: ...


class ReadPage(Protocol):
    def __call__(self, source_url: str, place: Place, step: int, seconds: float | None = None) -> bytes:
        """`seconds` is what is left for it, where that is less than a page may take."""


class PageSource(Protocol):
    """Fetches pages of a task's sources, as their raw answers. The project is read once, not for each page."""

    def reader(self, project_id: str, task_id: str) -> ReadPage: ...
