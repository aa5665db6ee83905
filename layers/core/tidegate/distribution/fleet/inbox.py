"""An agent's inbox: what it is asked to fetch. A transfer's id says where its entries lie: none is looked up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.distribution.targets import UNREPORTED, Target, TargetState, shard_of

_OF_JOB = re.compile(r"tr-([0-9a-f]{32})-(\d{1,5})-(\d{1,5})")
_OF_STAGING = re.compile(r"st-([0-9a-f]{64})")


def transfer_token(job_key: str, number: int, shard_count: int) -> str:
    return f"tr-{job_key}-{number}-{shard_count}"


def staging_id(signature: str) -> str:
    return f"st-{signature}"


class InShard(NamedTuple):
    job_key: str
    shard: int


class InStaging(NamedTuple):
    signature: str


def place_of(transfer_id: str, target: Target) -> InShard | InStaging | None:
    """Where the entry of a report is stored; None for an id that this system never made."""
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
    # Not offered any more from then on (epoch seconds).
    until: float
    job_id: str | None = None
    # Rises with every window for one path on one host: the agent refuses an older one.
    sequence: int | None = None
    mode: str | None = None
    # The host's place in its Job's swarm, as `domain.swarm.terms` gives it.
    swarm: Mapping[str, Any] | None = None
    # Over how many seconds the hosts of this Job spread their reports.
    spread_s: int = 0
    limit_rate: int | None = None
    # When the host is to put the file in place; it fetches it at once.
    activate_at: str | None = None
    state: TargetState = UNREPORTED
