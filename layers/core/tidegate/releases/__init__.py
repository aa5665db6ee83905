"""Releases: the desired state of hosts. Distribution sends a file once; a release says what should be on which hosts.

Each step is a function that takes the `Releases` object of `app.py`. Files are sent by the Jobs of distribution."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.aws.table import Table
    from tidegate.common.ids import Clock
    from tidegate.common.token_bucket import TokenBucket
    from tidegate.distribution import Distribution
    from tidegate.files.store import FileStore
    from tidegate.projects.limits import RunnerTime
    from tidegate.releases.model import Release
    from tidegate.releases.store import ReleaseStore


@dataclass(eq=False, repr=False, kw_only=True)
class Releases:
    table: Table
    clock: Clock
    distribution: Distribution
    files: FileStore
    cloudwatch: Any
    machine_arn: str
    runner_time: RunnerTime
    # By project: when they were read, and the releases. Only for comparisons that a consistent read follows.
    remembered: dict[str, tuple[float, list[Release]]] = field(default_factory=dict)
    # By project, host, release and revision: how often the host may still be sent what it lacks.
    asked: dict[tuple[str, str, str, int], TokenBucket] = field(default_factory=dict)

    @cached_property
    def store(self) -> ReleaseStore:
        from tidegate.releases.store import ReleaseStore

        return ReleaseStore(self.table)
