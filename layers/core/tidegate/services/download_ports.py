"""What the services of distribution ask of the outside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from tidegate.domain.downloads import Job, Task
from tidegate.domain.notices import Notice
from tidegate.domain.orders import Order
from tidegate.domain.pieces import PieceList
from tidegate.domain.targets import Report, Shard, Target
from tidegate.domain.transfers import Transfer
from tidegate.services.ports import Listed


class Arrival(NamedTuple):
    """One Task's target on its way to a Job. `notify`: its Task has a callback.

    `sequence` is set for one that was moved from an earlier Job: its content is as old as that Job."""

    agent_id: str
    container_id: str
    uuid: str
    notify: bool = False
    sequence: int | None = None

    @property
    def target(self) -> Target:
        return Target(self.agent_id, self.container_id)


class Rebound(NamedTuple):
    """What became of an attempt to bind arrivals elsewhere: done, or the new home closed too, or some are not ours."""

    done: bool
    home_closed: bool = False
    gone: frozenset[str] = frozenset()


class Content(NamedTuple):
    """`pieces_sha256` is of the list of its pieces' digests; None for small content and what was checked before."""

    state: str
    size: int
    checked_etag: str | None
    piece_size: int | None = None
    pieces_sha256: str | None = None


class JobStore(Protocol):
    def open(self, job: Job, due_at: datetime) -> tuple[Job, bool]: ...

    def get(self, project_id: str, job_key: str, *, consistent: bool = True) -> Job | None: ...

    def get_many(self, project_id: str, job_keys: Sequence[str]) -> dict[str, Job]: ...

    def list(
        self, project_id: str, place: tuple[int, int, str] | None, limit: int, cursor: str | None, **wanted: object
    ) -> Listed[Job]: ...

    def close(self, job: Job, now: datetime, deadline: float, due_at: datetime) -> Job: ...

    def shard(self, job: Job, now: datetime, portions: Sequence[tuple[int, int]], sizes: Sequence[int]) -> Job: ...

    def sent(self, job: Job, now: datetime, transfer_id: str) -> Job: ...

    def progress(self, job: Job, now: datetime, counted: Job) -> Job: ...

    def put_off(self, job: Job, due_at: datetime) -> None: ...

    def next_generation(self, job: Job, due_at: datetime) -> Job: ...

    def end(self, job: Job, now: datetime, notice: Notice, due_at: datetime) -> Job: ...

    def settle(self, job: Job) -> bool: ...


class TaskStore(Protocol):
    def add(self, tasks: Sequence[Task], expires_at: int) -> None: ...

    def get(self, project_id: str, uuid: str) -> Task | None: ...

    def get_many(self, project_id: str, uuids: Iterable[str]) -> list[Task]: ...

    def list(self, project_id: str, job_key: str | None, limit: int, cursor: str | None) -> Listed[Task]: ...

    def cursor_after(self, task: Task) -> str: ...


class TargetStore(Protocol):
    def bind(
        self, project_id: str, job_key: str, arrivals: Sequence[Arrival], expires_at: int
    ) -> Sequence[Arrival]: ...

    def rebind(
        self, source: Job, home: Job, arrivals: Sequence[Arrival], now: datetime, expires_at: int
    ) -> Rebound: ...

    def collected(self, project_id: str, job_key: str) -> Iterator[Arrival]: ...

    def add_shards(
        self, job: Job, shards: Sequence[Sequence[Target]], now: datetime, sequences: Mapping[Target, int]
    ) -> None: ...

    def shards(self, job: Job, numbers: Iterable[int]) -> list[Shard]: ...

    def shards_of_jobs(self, wanted: Iterable[tuple[Job, int]]) -> dict[tuple[str, int], Shard]: ...

    def one_shard(self, job: Job, number: int) -> Shard | None: ...

    def save(self, job: Job, shards: Sequence[Shard], now: datetime) -> bool: ...

    def add_callbacks(self, job: Job, uuids: Sequence[str], expires_at: int) -> None: ...

    def callbacks(self, job: Job) -> Iterator[tuple[str, list[str]]]: ...

    def forget_callbacks(self, job: Job, chunk_id: str) -> None: ...


class TransferStore(Protocol):
    def list(self, job: Job) -> list[Transfer]: ...

    def intend(self, job: Job, transfer: Transfer) -> tuple[Transfer, bool]: ...

    def ask_again(self, job: Job, transfer: Transfer, now: float) -> bool: ...

    def settle(self, job: Job, transfer: Transfer, state: str, transfer_id: str | None = None) -> None: ...


class OrderStore(Protocol):
    """Orders to agents, and what they reported."""

    def place(self, orders: Sequence[Order]) -> None: ...

    def reports(self, project_id: str, job_key: str, shard: int) -> dict[Target, Report]: ...

    def withdraw(self, project_id: str, transfer_id: str, targets: Iterable[Target]) -> None: ...

    def inbox(self, project_id: str, agent_id: str) -> list[Order]: ...

    def read(self, project_id: str, wanted: Iterable[tuple[str, Target]]) -> dict[tuple[str, Target], Order]: ...

    def report(self, order: Order, report: Report) -> None: ...

    def stage(self, order: Order) -> Order: ...

    def forget_staging(self, order: Order) -> None: ...


class Results(NamedTuple):
    """`upload` is set if the source could not send: then no target can receive."""

    targets: Mapping[Target, Report]
    upload: Report | None = None


class Engine(Protocol):
    """A way to bring a file to many targets. Raises NotAccepted, TransferRefused or AnswerLost."""

    # Asking twice with one token is asking once.
    repeatable: bool

    def stage(self, job: Job, size: int) -> Report: ...

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str: ...

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results: ...

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None: ...


class TargetQueue(Protocol):
    def send(self, project_id: str, job_id: str, arrivals: Sequence[Arrival]) -> None: ...


class Executions(Protocol):
    """The Job's state machine. Starting one generation twice is starting it once."""

    def start(self, job: Job) -> None: ...

    def status(self, job: Job) -> str | None: ...


class Contents(Protocol):
    def get(self, project_id: str, signature: str) -> Content | None: ...

    def checked(self, project_id: str, signature: str, etag: str, pieces: PieceList | None) -> None: ...
