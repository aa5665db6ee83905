"""A Job's figures, from its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.distribution.model import Counts, Job
from tidegate.distribution.targets import Shard


def tally(job: Job, open_shards: Sequence[Shard]) -> Job:
    """From what was counted of its closed shards and what the open ones, all of them, say now."""
    closed, closed_swarm = job.closed, job.closed_swarm
    for shard in open_shards:
        if not shard.unfinished:
            closed_swarm += shard.swarm
            closed = replace(closed, success=closed.success + shard.success, failed=closed.failed + shard.failed)
    going = [shard for shard in open_shards if shard.unfinished]
    counts = Counts(
        total=job.counts.total,
        success=closed.success + sum(shard.success for shard in going),
        failed=closed.failed + sum(shard.failed for shard in going),
    )
    swarm = sum((shard.swarm for shard in going), start=closed_swarm)
    numbers = tuple(shard.number for shard in going)
    return replace(job, open_shards=numbers, counts=counts, closed=closed, swarm=swarm, closed_swarm=closed_swarm)
