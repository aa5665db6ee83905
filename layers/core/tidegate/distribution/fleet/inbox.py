"""Entries of an agent's inbox. The id of a transfer contains the place of its entries, so no lookup is needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.distribution.targets import UNREPORTED, Target, TargetState, shard_of

_OF_JOB = re.compile(r"tr-([0-9a-f]{32})-(\d{1,5})-(\d{1,5})")
# Earlier versions had no time in it.
_OF_STAGING = re.compile(r"st-([0-9a-f]{64})(?:-\d{1,20})?")


def transfer_token(job_key: str, number: int, shard_count: int) -> str:
    return f"tr-{job_key}-{number}-{shard_count}"


def staging_id(signature: str, now: float) -> str:
    """A new id for each staging: agents repeat the result of a transfer id that they have finished before."""
    return f"st-{signature}-{int(now * 1000)}"


class InShard(NamedTuple):
    job_key: str
    shard: int


class InStaging(NamedTuple):
    signature: str


def place_of(transfer_id: str, target: Target) -> InShard | InStaging | None:
    """Where the entry of a transfer is stored; None for an id in an unknown format."""
    if found := _OF_JOB.fullmatch(transfer_id):
        shard_count = int(found[3])
        return InShard(found[1], shard_of(target, shard_count)) if shard_count else None
    if found := _OF_STAGING.fullmatch(transfer_id):
        return InStaging(found[1])
    return None


@dataclass(frozen=True, slots=True)
class InboxEntry:
    project_id: str
    transfer_id: str
    target: Target
    file_name: str
    target_file_dir: str
    target_user: str
    signature: str
    size: int
    # From then on (Unix time) it is no longer offered.
    until: float
    job_id: str | None = None
    # Rises with each Job for the same path: the agent refuses an older one.
    sequence: int | None = None
    mode: str | None = None
    # The host's seat in the Job's swarm, as `swarm.plan.terms` returns it.
    swarm: Mapping[str, Any] | None = None
    # The hosts of this Job spread their requests and reports over this many seconds.
    spread_s: int = 0
    limit_rate: int | None = None
    # When the host is to activate the file; it fetches it immediately.
    activate_at: str | None = None
    state: TargetState = UNREPORTED
