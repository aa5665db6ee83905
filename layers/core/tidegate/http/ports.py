"""What the shared services ask of the outside. A port that one service alone needs stands beside that service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Protocol

from tidegate.http.model import Reply
from tidegate.projects.model import Project


class Stream(Protocol):
    """An answer whose body is still to come; header names are lower-case."""

    status: int
    headers: Mapping[str, str]
    url: str
    waited: float

    def chunks(self, size: int = ...) -> Iterator[bytes]: ...

    def raise_for_status(self) -> None: ...


class KeptConnection(Protocol):
    """A kept connection to one URL: cheap posts, one after another, no redirects."""

    def post(self, body: bytes, headers: Mapping[str, str]) -> Reply: ...

    def close(self) -> None: ...


class Signer(Protocol):
    """Standard Webhooks headers of a message: one signature for each of the project's secrets that is valid now."""

    def __call__(self, project: Project, message_id: str, now: datetime, body: bytes = b"") -> dict[str, str]: ...
