"""What the shared services ask of the outside. A port that one service alone needs stands beside that service."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoredObject:
    size: int
    etag: str


class ObjectStore(Protocol):
    """The files bucket."""

    def head(self, key: str) -> StoredObject | None: ...

    def read(self, key: str) -> tuple[StoredObject, Iterator[bytes]]: ...

    def copy(self, source: str, target: str, *, only_if: StoredObject) -> None: ...

    def delete(self, *keys: str) -> None: ...

    def presign_put(self, key: str, seconds: int) -> str: ...

    def presign_get(self, key: str, seconds: int, *, disposition: str | None = None) -> str: ...


@dataclass(frozen=True, slots=True)
class Listed(Generic[T]):
    items: list[T]
    next_cursor: str | None
