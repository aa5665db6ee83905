"""The interface of transfer engines, and the types it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from tidegate.distribution.model import Job
from tidegate.distribution.targets import Shard, Target, TargetReport
from tidegate.distribution.transfers import Transfer


class Arrival(NamedTuple):
    """The target of one Task, on its way to a Job. `notify`: the Task has a callback.

    `sequence`: that of the earlier Job, if the target was moved from one."""

    agent_id: str
    container_id: str
    uuid: str
    notify: bool = False
    sequence: int | None = None

    @property
    def target(self) -> Target:
        return Target(self.agent_id, self.container_id)


class Rebound(NamedTuple):
    """The result of binding arrivals to another Job: done, or that Job closed too, or others moved some (`gone`)."""

    done: bool
    home_closed: bool = False
    gone: frozenset[str] = frozenset()


class Results(NamedTuple):
    """`upload`: the failure of the source host, which means that no target can receive the file."""

    targets: Mapping[Target, TargetReport]
    upload: TargetReport | None = None


class Engine(Protocol):
    """Sends a file to many targets. Raises NotAccepted, TransferRefused or AnswerLost."""

    # Whether `create` with the same token is idempotent.
    repeatable: bool

    def stage(self, job: Job, size: int) -> TargetReport:
        """Brings the file to the source host, if the engine needs one. Returns the state of that."""

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str:
        """Starts the transfer to the targets of these shards. Returns the provider's id of it."""

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results:
        """The provider's latest reports."""

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """Wakes targets that have not started."""

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
        """Stops the transfer to these targets."""
