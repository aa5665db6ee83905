"""Closes a window: the Job accepts no more targets, and those it has are written as shards."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from tidegate.common.ids import Clock
from tidegate.distribution.model import PENDING, Job, Wave
from tidegate.distribution.ports import Arrival
from tidegate.distribution.recovery import RECHECK_AFTER
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.targets import Target, spread, wave_rank
from tidegate.distribution.transfers import portions

# A Job is opened for targets, so if it has none, their messages are late: Lambda throttles the collector, or the
# collector was killed and SQS hides them for three minutes. If the Job closed at once, its targets would move to a
# later one, and this one would end as Success without having sent anything.
PATIENCE = timedelta(minutes=4)


class CloseWindow:
    def __init__(
        self, jobs: JobStore, targets: TargetStore, clock: Clock, *, job_timeout: int, transfer_max_targets: int
    ) -> None:
        self._jobs = jobs
        self._targets = targets
        self._clock = clock
        self._job_timeout = job_timeout
        self._transfer_max_targets = transfer_max_targets

    def close(self, project_id: str, job_key: str) -> Job:
        """Closes the Job and writes its shards. Idempotent: no target is added after Pending → Running.

        The Job stays Pending while its first target is late: call this again some seconds later."""
        job = self._jobs.require(project_id, job_key)
        if job.status == PENDING:
            now = self._clock()
            if self._targets_are_late(job, now):
                return job
            # Hosts activate the file at `activate_at`, so their time starts then.
            lasts = timedelta(seconds=job.spec.until_activation(now.timestamp()) + self._job_timeout)
            job = self._jobs.close(job, now, (now + lasts).timestamp(), now + RECHECK_AFTER)
        if job.ended or job.shard_count is not None:
            return job
        collected = list(self._targets.collected(project_id, job_key))
        shards = spread(arrival.target for arrival in collected)
        now = self._clock()
        self._targets.add_shards(job, shards, now, _older_sequences(job, collected))
        sizes = [len(shard) for shard in shards]
        limits, totals = wave_limits(job.spec.waves, [target for shard in shards for target in shard])
        return self._jobs.shard(job, now, portions(sizes, self._transfer_max_targets), sizes, limits, totals)

    def _targets_are_late(self, job: Job, now: datetime) -> bool:
        # A cancelled Job gets no more targets.
        if job.cancelled_at or now >= datetime.fromisoformat(job.closes_at) + PATIENCE:
            return False
        return not self._targets.any_collected(job.project_id, job.key)


def wave_limits(waves: Sequence[Wave], targets: Sequence[Target]) -> tuple[list[int], list[int]]:
    """The highest rank of each wave, and the number of targets up to it. No wave is empty, while targets last."""
    if not waves or not targets:
        return [], []
    ranks = sorted(wave_rank(target) for target in targets)
    limits = [ranks[min(len(ranks), max(1, math.ceil(len(ranks) * wave.percent / 100))) - 1] for wave in waves]
    return limits, [bisect_right(ranks, limit) for limit in limits]


def _older_sequences(job: Job, collected: Iterable[Arrival]) -> dict[Target, int]:
    """The sequences of targets that were moved here from earlier Jobs and not also submitted in this window."""
    if job.sequence is None:
        return {}
    newest: dict[Target, int] = {}
    for arrival in collected:
        sequence = job.sequence if arrival.sequence is None else arrival.sequence
        newest[arrival.target] = max(sequence, newest.get(arrival.target, sequence))
    return {target: sequence for target, sequence in newest.items() if sequence != job.sequence}
