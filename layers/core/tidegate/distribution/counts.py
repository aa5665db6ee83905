"""A Job's counts and figures, summed over its shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tidegate.distribution.model import Counts, Job
from tidegate.distribution.targets import Shard


def tally(job: Job, open_shards: Sequence[Shard]) -> Job:
    """Stored totals of closed shards plus current totals of open ones."""
    closed, closed_swarm = job.closed, job.closed_swarm
    for shard in open_shards:
        if not shard.unfinished:
            closed, closed_swarm = _plus(closed, shard), closed_swarm + shard.swarm
    unfinished = [shard for shard in open_shards if shard.unfinished]
    counts = closed
    for shard in unfinished:
        counts = _plus(counts, shard)
    begun, staged = sum(shard.begun for shard in unfinished), sum(shard.staged for shard in unfinished)
    counts = replace(counts, total=job.counts.total, begun=begun, staged=staged)
    swarm = sum((shard.swarm for shard in unfinished), start=closed_swarm)
    numbers = tuple(shard.number for shard in unfinished)
    return replace(job, open_shards=numbers, counts=counts, closed=closed, swarm=swarm, closed_swarm=closed_swarm)


def _plus(counts: Counts, shard: Shard) -> Counts:
    figures = shard.figures
    return replace(
        counts,
        success=counts.success + shard.success,
        failed=counts.failed + shard.failed,
        measured=counts.measured + len(figures),
        moved_bytes=counts.moved_bytes + sum(one.size or 0 for one in figures),
        speed_sum=counts.speed_sum + sum(one.speed or 0 for one in figures),
    )
