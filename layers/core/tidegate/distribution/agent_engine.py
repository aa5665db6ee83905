"""The default engine: each target's agent fetches the file from S3 with a presigned URL, or from peers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tidegate.distribution import Distribution
from tidegate.distribution.fleet import spread_seconds, wake_soon
from tidegate.distribution.inbox import InboxEntry
from tidegate.distribution.model import DONE, Job, Results, Shard, Target, TargetReport, Transfer
from tidegate.distribution.swarm import JobSwarm, swarm_of

# `make bench SECTIONS=swarm` measures how often S3 sends the file to a swarm of this many hosts: 1.1 to 1.5 times.
_SWARM_HOSTS = 50


class AgentEngine:
    # The keys of inbox entries are derived from the token, so writing them again changes nothing.
    repeatable = True

    def __init__(self, d: Distribution) -> None:
        self._d = d

    def stage(self, job: Job, size: int) -> TargetReport:
        return TargetReport(DONE)

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str:
        swarm = swarm_of(self._d, job, size)
        spread = spread_seconds(job.counts.total, self._d.settings.fleet_rate)
        for shard in shards:
            reports = self._d.inbox.reports(job.project_id, job.key, shard.number)
            wanted = [target for target in shard.unfinished if target not in reports]
            self._d.inbox.add([self._entry(job, transfer, shard, target, size, swarm, spread) for target in wanted])
            # After each shard: its hosts start while the next ones are written.
            names = [target.agent_id for target in wanted]
            wake_soon(self._d, job.project_id, names, spread, directly=shard is shards[0])
        return transfer.token

    def egress(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> int:
        """About how many bytes S3 sends.

        In swarms, S3 sends the file twice for each fifty hosts. To each host without a swarm, it sends the file
        once."""
        swarm = swarm_of(self._d, job, size)
        wanted = [target for shard in shards for target in shard.unfinished]
        seated = sum(swarm.has(target.agent_id) for target in wanted)
        return size * (len(wanted) - seated + min(seated, 2 * math.ceil(seated / _SWARM_HOSTS)))

    @staticmethod
    def _entry(
        job: Job, transfer: Transfer, shard: Shard, target: Target, size: int, swarm: JobSwarm, spread: int
    ) -> InboxEntry:
        spec = job.spec
        return InboxEntry(
            project_id=job.project_id,
            transfer_id=transfer.token,
            target=target,
            file_name=spec.file_name,
            target_file_dir=spec.target_file_dir,
            target_user=spec.target_user,
            signature=spec.file_signature,
            size=size,
            until=job.deadline or 0,
            job_id=job.job_id,
            sequence=shard.sequences.get(target, job.sequence),
            mode=spec.mode,
            swarm=swarm.terms_of(target.agent_id),
            spread_s=spread,
            limit_rate=spec.limit_rate,
            activate_at=spec.activate_at,
            release=spec.release,
            force=spec.force,
        )

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results:
        reports: dict[Target, TargetReport] = {}
        for number in open_shards:
            reports |= self._d.inbox.reports(job.project_id, job.key, number)
        return Results(reports)

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """Wakes hosts that have not started.

        So a lost wake-up delays a host by seconds. Otherwise, the host would start at its next poll, minutes later."""
        names = [target.agent_id for target in targets]
        wake_soon(self._d, job.project_id, names, spread_seconds(len(names), self._d.settings.fleet_rate), repeat=True)

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
        """Tells the hosts to stop, then removes their inbox entries, which takes longer.

        After the deadline it does nothing, because the entries are then no longer offered."""
        if self._d.clock().timestamp() < (job.deadline or 0):
            names = [target.agent_id for target in targets]
            spread = spread_seconds(len(targets), self._d.settings.fleet_rate)
            wake_soon(self._d, job.project_id, names, spread, ended=transfer.token)
            self._d.inbox.withdraw(job.project_id, transfer.token, targets)
