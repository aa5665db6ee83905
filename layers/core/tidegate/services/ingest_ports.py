"""What the ingest services ask of the outside."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidegate.domain.credentials import Credential
from tidegate.domain.files import File
from tidegate.domain.requests import Request
from tidegate.services.ports import StoredObject


class PartStore(Protocol):
    def head(self, key: str) -> StoredObject | None: ...

    def read(self, key: str) -> tuple[StoredObject, Iterator[bytes]]: ...

    def put(self, key: str, data: bytes | bytearray) -> None: ...

    def begin(self, key: str) -> str: ...

    def put_part(self, key: str, upload_id: str, number: int, data: bytes | bytearray) -> None: ...

    def complete(self, key: str, upload_id: str) -> StoredObject: ...

    def abort(self, key: str, upload_id: str) -> None: ...

    def copy(self, source: str, target: str, *, only_if: StoredObject) -> None: ...

    def delete(self, *keys: str) -> None: ...


class FileWrites(Protocol):
    """Files as parts of a request's own transactions."""

    def get(self, project_id: str, file_id: str) -> File | None: ...

    def has_content(self, project_id: str, signature: str) -> bool: ...

    def coming_writes(self, file: File, *, brings_content: bool = True) -> Sequence[Any]: ...

    def finish_writes(self, file: File, *, was: Sequence[str]) -> Sequence[Any]: ...


class Credentials(Protocol):
    def get(self, project_id: str, name: str) -> Credential: ...


class Pulse(Protocol):
    """Called as often as something moved. Raises when the request is not the caller's any more."""

    def __call__(self, progress: Mapping[str, Any] | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One invocation's work: its request, the time it has, what the one before left."""

    request: Request
    pulse: Pulse
    seconds_left: float
    state: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """Done, with what is to be written beside the end; or `state`, to go on with in another invocation."""

    result: Mapping[str, Any] = field(default_factory=dict)
    extra_writes: Sequence[Any] = ()
    state: Mapping[str, Any] | None = None
