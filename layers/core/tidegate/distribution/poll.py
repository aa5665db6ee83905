"""Reads the results of a Job's targets from the provider, and writes the changed shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from aws_lambda_powertools import Logger

from tidegate.common.ids import Clock
from tidegate.distribution.counts import tally
from tidegate.distribution.fleet.model import why_silent
from tidegate.distribution.fleet.wakeups import is_time_to_repeat, spread_seconds
from tidegate.distribution.model import Job
from tidegate.distribution.ports import Engine
from tidegate.distribution.recovery import Heartbeat
from tidegate.distribution.store.fleet import FleetStore
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.transfers import TransferStore
from tidegate.distribution.targets import UNREPORTED, Shard
from tidegate.distribution.transfers import LONGEST_WAIT, SENT, Transfer, longest_wait
from tidegate.errors import DomainError, WaveFailed

logger = Logger(service="tidegate", child=True)
# Added to the wait between two polls. Too long repeats a wake-up, which is harmless; too short would skip one.
_POLL_TAKES = 1.0
GOING_ON, NEXT_WAVE, OVER = "running", "next_wave", "over"

# Pushes a record's progress to those who watch it: project, record id, record.
PublishProgress = Callable[[str, str, Mapping[str, Any]], None]


class Polled(NamedTuple):
    """The Job's state, and the longest interval until the next poll: hosts report little before they activate the file,
    and the polls of all waves must fit into one execution."""

    state: str
    longest_wait: int = LONGEST_WAIT


class PollTransfer:
    def __init__(
        self,
        jobs: JobStore,
        targets: TargetStore,
        transfers: TransferStore,
        engine: Engine,
        heartbeat: Heartbeat,
        publish_progress: PublishProgress,
        fleet: FleetStore | None,
        clock: Clock,
        *,
        job_timeout: int,
    ) -> None:
        self._fleet = fleet
        self._job_timeout = job_timeout
        self._jobs = jobs
        self._targets = targets
        self._transfers = transfers
        self._engine = engine
        self._heartbeat = heartbeat
        self._publish_progress = publish_progress
        self._clock = clock

    def poll(self, project_id: str, job_key: str, since_last: float = 0.0) -> Polled:
        """`since_last`: about how many seconds ago the last poll was."""
        job = self._jobs.require(project_id, job_key)
        if job.ended:
            return Polled(OVER)
        longest = self._longest_wait(job)
        self._heartbeat.alive(job, longest)
        return Polled(self._state(job, since_last), longest)

    def _longest_wait(self, job: Job) -> int:
        lasts = self._job_timeout + job.spec.wave_seconds(self._job_timeout)
        return longest_wait(lasts, job.spec.until_activation(self._clock().timestamp()))

    def _state(self, job: Job, since_last: float) -> str:
        job, shards = self._read(job, since_last)
        if job.ended or job.cancelled_at or not job.open_shards:
            return OVER
        if job.spec.waves and job.wave_at is None:
            # An earlier poll began this wave, but its answer was lost: the wave has not been sent.
            return NEXT_WAVE
        late = self._clock().timestamp() >= (job.deadline or 0)
        if job.has_more_waves:
            # Hosts have until the deadline, but `wait_s` may be longer.
            if not self._wave_is_over(job, shards, late):
                return GOING_ON
            now = self._clock()
            following = self._jobs.next_wave(job, now, now.timestamp() + self._job_timeout)
            logger.info("the next wave begins", job_id=job.job_id, wave=following.wave + 1)
            return NEXT_WAVE
        if late:
            self._note_offline(job)
            return OVER
        return GOING_ON

    def _wave_is_over(self, job: Job, shards: Sequence[Shard], late: bool) -> bool:
        """Whether the next wave may begin. WaveFailed if too many targets failed.

        Late targets count as failed in their own wave only: the next one neither waits nor fails for them."""
        rule, total = job.spec.waves[job.wave], job.wave_sizes[job.wave]
        size = total - (job.wave_sizes[job.wave - 1] if job.wave else 0)
        unfinished = sum(job.in_wave(target, job.wave) for shard in shards for target in shard.unfinished)
        failed = job.counts.failed - job.failed_before + (unfinished if late else 0)
        if failed * 100 > rule.max_failed_percent * size:
            raise WaveFailed(
                f"wave {job.wave + 1} of {len(job.spec.waves)} failed: {failed} of its {size} targets failed, and at "
                f"most {rule.max_failed_percent} % may. The other {job.counts.total - total} targets were not sent"
            )
        if unfinished > 0 and not late:
            return False
        return job.wave_at is not None and self._clock().timestamp() >= job.wave_at + rule.wait_s

    def _note_offline(self, job: Job) -> None:
        """At the deadline, stores which hosts without a report are offline, for their error text."""
        if self._fleet is None:
            return
        now = self._clock()
        changed: list[Shard] = []
        for shard in self._targets.shards(job, job.open_shards):
            silent = [target for target in shard.unfinished if shard.states[target].code is None]
            agents = self._fleet.get_many(job.project_id, [target.agent_id for target in silent])
            reasons = {
                target: UNREPORTED._replace(message=why_silent(agents.get(target.agent_id), now)) for target in silent
            }
            if reasons:
                changed.append(replace(shard, states={**shard.states, **reasons}))
        if changed:
            self._targets.save(job, changed, now)

    def _read(self, job: Job, since_last: float) -> tuple[Job, Sequence[Shard]]:
        """Reads all results. Returns the updated Job, and its shards that were open."""
        before = self._targets.shards(job, job.open_shards)
        after = {shard.number: shard for shard in before}
        for transfer in self._transfers_to_read(job):
            if transfer.state == SENT:
                after |= self._with_results(job, transfer, [after[n] for n in transfer.shards if n in after])
                self._remind(job, transfer, [after[n] for n in transfer.shards if n in after], since_last)
        changed = [after[shard.number] for shard in before if after[shard.number] is not shard]
        now = self._clock()
        # Another poller was faster: what was read here is stale.
        if changed and not self._targets.save(job, changed, now):
            return job, before
        shards = list(after.values())
        counted = tally(job, shards)
        if counted == job:
            return job, shards
        job = self._jobs.progress(job, now, counted)
        # If nothing is left open, finish_job publishes the end in a moment: watchers need not be notified twice.
        if job.open_shards:
            self._publish_progress(job.project_id, job.job_id, job.shown())
        return job, shards

    def _with_results(self, job: Job, transfer: Transfer, shards: Sequence[Shard]) -> dict[int, Shard]:
        """The shards after the provider's reports. If it does not answer properly, nothing changes: no target fails."""
        if not shards:
            return {}
        try:
            results = self._engine.results(job, transfer, [shard.number for shard in shards])
        except DomainError as error:
            logger.warning("no results from the provider", job_id=job.job_id, code=error.code, reason=error.detail)
            return {}
        reported = [shard.after(results.targets) for shard in shards]
        if upload := results.upload:
            wave = transfer.number // len(job.portions)
            reported = [shard.after_all(upload, lambda target: job.in_wave(target, wave)) for shard in reported]
        return {shard.number: shard for shard in reported}

    def _remind(self, job: Job, transfer: Transfer, shards: Sequence[Shard], since_last: float) -> None:
        """Sends the wake-up again to hosts that have not started, at doubling intervals."""
        now, activation = self._clock().timestamp(), job.spec.activation
        # Agents that cannot stage a file get it at its activation, so their wake-ups start again then.
        age = now - (max(transfer.asked_at, activation) if activation <= now else transfer.asked_at)
        if job.cancelled_at or not is_time_to_repeat(age, since_last + _POLL_TAKES, spread_seconds(job.counts.total)):
            return
        wave = transfer.number // len(job.portions)
        silent = [t for s in shards for t in s.unfinished if s.states[t].code is None and job.in_wave(t, wave)]
        if silent:
            logger.info("hosts that have not started are woken again", job_id=job.job_id, hosts=len(silent))
            self._engine.remind(job, silent)

    def _transfers_to_read(self, job: Job) -> list[Transfer]:
        """The transfers whose results are read. Agents' results are stored by shard, not by wave: each is read once."""
        found = self._transfers.list(job)
        if not self._engine.repeatable:
            return found
        return list({transfer.first_shard: transfer for transfer in found if transfer.state == SENT}.values())
