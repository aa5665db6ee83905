"""The interface of transfer engines, and the types it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tidegate.distribution.model import Job
from tidegate.distribution.targets import Shard, Target, TargetReport
from tidegate.distribution.transfers import Transfer


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


class Results(NamedTuple):
    """`upload` is set if the source could not send: then no target can receive."""

    targets: Mapping[Target, TargetReport]
    upload: TargetReport | None = None


class Engine(Protocol):
    """A way to bring a file to many targets. Raises NotAccepted, TransferRefused or AnswerLost."""

    # Asking twice with one token is asking once.
    repeatable: bool

    def stage(self, job: Job, size: int) -> TargetReport: ...

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str: ...

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results: ...

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """Wakes targets that have not begun."""

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None: ...
