"""The default engine: each target's agent fetches the file from S3 with a presigned URL, or from peers."""

from __future__ import annotations

from collections.abc import Sequence

from tidegate.common.ids import Clock
from tidegate.distribution.fleet.inbox import InboxEntry
from tidegate.distribution.fleet.wakeups import Wakeups, spread_seconds
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Results
from tidegate.distribution.store.agent_inbox import AgentInboxStore
from tidegate.distribution.swarm.planner import JobSwarm, SwarmPlanner
from tidegate.distribution.targets import DONE, Shard, Target, TargetReport
from tidegate.distribution.transfers import Transfer


class AgentEngine:
    # The keys of inbox entries are derived from the token, so writing them again changes nothing.
    repeatable = True

    def __init__(self, inbox: AgentInboxStore, wakeups: Wakeups, clock: Clock, swarms: SwarmPlanner) -> None:
        self._inbox = inbox
        self._wakeups = wakeups
        self._clock = clock
        self._swarms = swarms

    def stage(self, job: Job, size: int) -> TargetReport:
        return TargetReport(DONE)

    def create(self, job: Job, transfer: Transfer, shards: Sequence[Shard], size: int) -> str:
        swarm = self._swarms.swarm_of(job, size)
        spread = spread_seconds(job.counts.total)
        for shard in shards:
            reports = self._inbox.reports(job.project_id, job.key, shard.number)
            wanted = [target for target in shard.unfinished if target not in reports]
            self._inbox.place([self._entry(job, transfer, shard, target, size, swarm, spread) for target in wanted])
            # After each shard: its hosts start while the next ones are written.
            names = [target.agent_id for target in wanted]
            self._wakeups.send(job.project_id, names, spread, directly=shard is shards[0])
        return transfer.token

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
        )

    def results(self, job: Job, transfer: Transfer, open_shards: Sequence[int]) -> Results:
        reports: dict[Target, TargetReport] = {}
        for number in open_shards:
            reports |= self._inbox.reports(job.project_id, job.key, number)
        return Results(reports)

    def remind(self, job: Job, targets: Sequence[Target]) -> None:
        """Wakes hosts that have not started: a lost wake-up then costs seconds, not minutes until the next poll."""
        names = [target.agent_id for target in targets]
        self._wakeups.send(job.project_id, names, spread_seconds(len(names)))

    def terminate(self, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
        """Removes the inbox entries and wakes the hosts. After the deadline, entries are no longer offered anyway."""
        if self._clock().timestamp() < (job.deadline or 0):
            self._inbox.withdraw(job.project_id, transfer.token, targets)
            self._wakeups.send(job.project_id, [target.agent_id for target in targets], spread_seconds(len(targets)))
