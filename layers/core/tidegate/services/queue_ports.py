"""What the services of the queue ask of the outside."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, Protocol

from tidegate.domain.audit import AuditLine
from tidegate.domain.channels import Channel, Place
from tidegate.domain.fairness import Standing, Turn
from tidegate.domain.notices import Notice
from tidegate.domain.projects import Quotas
from tidegate.domain.requests import Request
from tidegate.errors import Conflict
from tidegate.services.ports import Listed

REQUEST, CHANNEL, STANDING, SLOT = "request", "channel", "standing", "slot"
MUTEX, PLACE, OTHER = "mutex", "place", "other"

View = Callable[[Request], dict[str, Any]]
# What else is written when a request of a type ends, however it ends.
Ending = Callable[[Request], Sequence[Any]]


class Refused(Conflict):
    """A move met another state than it expected, in these parts of its transaction."""

    def __init__(self, parts: Iterable[str]) -> None:
        self.parts = frozenset(parts)
        super().__init__(f"refused by: {', '.join(sorted(self.parts))}")


class RequestStore(Protocol):
    def add(
        self, request: Request, line: AuditLine, extra_writes: Sequence[Any] = (), queued_limit: int | None = None
    ) -> Request: ...

    def get(self, project_id: str, request_id: str) -> Request | None: ...

    def move(
        self,
        old: Request,
        new: Request,
        line: AuditLine,
        *,
        now: datetime,
        keep_seconds: int = 0,
        notice: Notice | None = None,
        extra_writes: Sequence[Any] = (),
        without: frozenset[str] = frozenset(),
        turn: Turn | None = None,
    ) -> None: ...

    def adopt(self, request: Request) -> bool: ...

    def beat(self, request: Request, now: datetime, due_at: float, progress: dict[str, Any] | None) -> None: ...

    def look_again(self, request: Request, due_at: float | None) -> None: ...

    def note_wait(self, place: Place, reason: str) -> None: ...


class RequestLists(Protocol):
    def list(self, project_id: str, limit: int, cursor: str | None, **wanted: object) -> Listed[Request]: ...

    def of_subscription(
        self, project_id: str, subscription_id: str, limit: int, cursor: str | None
    ) -> Listed[Request]: ...

    def since(self, project_id: str, since: str) -> Iterable[Request]: ...


class ChannelStore(Protocol):
    def get(self, name: str) -> Channel | None: ...

    def all(self) -> list[Channel]: ...

    def ensure(self, name: str, capacity: int) -> Channel: ...

    def set_capacity(self, name: str, capacity: int, now: float, line: AuditLine) -> None: ...

    def set_paused(self, name: str, paused: bool, now: float, line: AuditLine) -> None: ...

    def count_waiting(self, name: str) -> int: ...

    def queue_of(self, name: str) -> tuple[int, str | None]: ...

    def waiting(self, name: str, project_id: str) -> Iterator[Place]: ...

    def waiting_together(self, name: str) -> Iterable[Place]: ...

    def standings(self, name: str) -> list[Standing]: ...

    def standing(self, name: str, project_id: str) -> Standing: ...

    def recount_running(self, name: str) -> None: ...

    def recount_waiting(self, name: str) -> None: ...

    def drop_place(self, place: Place) -> None: ...

    def drop_shared_place(self, place: Place) -> None: ...

    def slots(self, name: str) -> list[tuple[str, str, int]]: ...

    def drop_slot(self, name: str, project_id: str, request_id: str, attempt: int) -> bool: ...

    def recount(self, channel: Channel, running: int) -> bool: ...

    def look_again(self, name: str, due_at: float | None) -> None: ...


class QuotaStore(Protocol):
    def quotas(self, project_id: str) -> Quotas: ...

    def quotas_of(self, project_ids: Iterable[str]) -> dict[str, Quotas]: ...


class Pokes(Protocol):
    """Best effort: what is lost here is found again by the index of what is due."""

    def poke(self, *channels: str) -> None: ...

    def wake(self, channel: str, at: datetime, now: datetime) -> None: ...


class Runner(Protocol):
    """The machines of the types."""

    def start(self, request: Request) -> str: ...

    def status(self, request: Request) -> str | None: ...

    def stop(self, request: Request, why: str) -> None: ...


class Notifier(Protocol):
    def publish(self, notices: Sequence[Notice]) -> None: ...
