"""Cancels and redrives Jobs for callers, and restarts Jobs whose execution has died."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from aws_lambda_powertools import Logger

from tidegate.aws.table import made_before
from tidegate.distribution import Distribution
from tidegate.distribution.model import RUNNING, Job, Target, TransferSpec, job_key, job_key_of, shard_of, wave_rank
from tidegate.distribution.store import outcome
from tidegate.distribution.submit import submit
from tidegate.errors import NewerJob, WrongState

RECHECK_AFTER = timedelta(seconds=90)


def restart_if_dead(d: Distribution, project_id: str, job_key: str) -> bool:
    """Starts another execution if that of the Job has died. Returns whether it did.

    The new execution does not repeat completed steps."""
    job = d.jobs.get(project_id, job_key)
    if job is None:
        return False
    due_at = d.clock() + RECHECK_AFTER
    status = d.executions.status(job)
    if status == "RUNNING":
        d.jobs.put_off(job, due_at)
        return False
    if status is None:
        d.jobs.put_off(job, due_at)
    else:
        # An execution's name cannot be used twice.
        job = d.jobs.next_generation(job, due_at, _deadline(d, job) if job.parked else None)
    logger.info("the Job gets another execution", job_id=job.job_id, generation=job.generation, was=status)
    d.executions.start(job)
    return True


def _deadline(d: Distribution, job: Job) -> float | None:
    now = d.clock().timestamp()
    return now + job.spec.until_activation(now) + d.windows.job_timeout if job.deadline else None


def park(d: Distribution, project_id: str, job_key: str) -> None:
    """Marks a Job whose execution a freeze has ended before the file was sent. Compensation restarts the Job."""
    job = d.jobs.get(project_id, job_key)
    if job is not None and not job.ended:
        d.jobs.park(job, d.clock())


# --- control
# Cancels Jobs, and redrives the failed targets of ended ones.

logger = Logger(service="tidegate", child=True)
_SHARDS_READ_TOGETHER = 50
_JOBS_READ_TOGETHER = 100
# A redrive looks for its targets in at most so many newer Jobs, and reads at most so many of their shards.
_MOST_NEWER_JOBS, _MOST_NEWER_SHARDS = 400, 1000
# An error names at most so many newer Jobs.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Redriven:
    """The new Job of a redrive.

    `skipped`: the targets that were left out because a newer Job sent content to their path. The value is the key of
    the newest such Job."""

    job: Job
    targets: int
    skipped: Mapping[Target, str]


def cancel(d: Distribution, project_id: str, given: str, who: str) -> Job:
    """Cancels the Job. The Job's next step ends unfinished targets as Cancelled. Idempotent."""
    job = _job(d, project_id, given)
    if not job.ended and not job.cancelled_at:
        job = d.jobs.cancel(job, d.clock(), who)
        if job.cancelled_at and job.status == RUNNING:
            _end_now(d, job)
    if not job.cancelled_at:
        raise WrongState(f"the Job has ended ({job.status}): there is nothing to cancel")
    return job


def _end_now(d: Distribution, job: Job) -> None:
    """Starts another execution, which ends the cancelled Job at once.

    The present execution may wait minutes until its next poll, and hosts would continue meanwhile. Both executions may
    run, because every step may run twice. If the new one does not start, the present one ends the Job."""
    try:
        d.executions.start(d.jobs.next_generation(job, d.clock() + RECHECK_AFTER))
    except Exception:
        logger.exception("no further execution was started: the cancelled Job ends at its next poll", job_id=job.job_id)


def redrive(
    d: Distribution,
    project_id: str,
    given: str,
    statuses: Collection[str],
    callback: str | None,
    who: str,
    *,
    is_admin: bool = False,
    force: bool = False,
) -> Redriven:
    """Submits the targets that ended with one of these statuses to a new Job in a later window.

    Leaves out targets to whose path a newer Job sent content. NewerJob if no target is left. The content keeps its
    sequence. So a host that has newer content refuses it, even if the newer Job was submitted after this check, or has
    expired.

    With `force`, no target is left out, and a new sequence replaces whatever is there. A second redrive in the same
    window uses the same Job."""
    job = _job(d, project_id, given)
    if not job.ended:
        raise WrongState(f"the Job is {job.status}: redrive it when it has ended, or cancel it first")
    sequences = _ended_as(d, job, statuses)
    if not sequences:
        raise WrongState(f"no target of the Job ended as {' or '.join(sorted(statuses))}: there is nothing to redrive")
    skipped = {} if force else _superseded(d, job, sequences)
    targets = [target for target in sequences if target not in skipped]
    if not targets:
        raise NewerJob(_all_skipped(job, skipped))
    spec = replace(_continued(job, targets), redrive_of=job.key)
    if not spec.until_activation(d.clock().timestamp()):
        spec = replace(spec, activate_at=None)
    submitted = submit(
        d,
        project_id,
        spec,
        targets,
        callback,
        who=who,
        after=job.bucket,
        action="job.redrive",
        source=job.job_id,
        remarks=job.remarks,
        is_admin=is_admin,
        sequences={} if force else {target: sequences[target] for target in targets if sequences[target]},
    )
    return Redriven(submitted.job, len(targets), skipped)


def _continued(job: Job, targets: Collection[Target]) -> TransferSpec:
    """The spec of a redrive. If the Job has waves, the spec has the present wave and the later ones.

    Leaves out waves that have none of these targets."""
    if not job.wave_limits:
        return job.spec
    ranks = sorted(wave_rank(target) for target in targets)
    sizes = [bisect_right(ranks, limit) for limit in job.wave_limits]
    left = [wave for wave in range(job.wave, len(sizes)) if sizes[wave] > (sizes[wave - 1] if wave > job.wave else 0)]
    waves, limits = zip(*((job.spec.waves[wave], job.wave_limits[wave]) for wave in left), strict=True)
    return replace(job.spec, waves=waves, wave_ranks=limits)


def _superseded(d: Distribution, job: Job, sequences: Mapping[Target, int]) -> dict[Target, str]:
    """The targets to which a newer Job sent content for the same path, each with the key of the newest such Job.

    It does not matter how the newer Job ended."""
    newer: dict[Target, str] = {}
    left, shards_read = dict(sequences), 0
    # The new Job of an earlier run of this request is not newer than the request.
    known = {job.key, job_key((made_before() or {}).get("job_id", ""))}
    keys = d.jobs.later_jobs_to_path(job, min(sequences.values()), _MOST_NEWER_JOBS + 1)
    for first in range(0, len(keys), _JOBS_READ_TOGETHER):
        some = keys[first : first + _JOBS_READ_TOGETHER]
        found = d.jobs.get_many(job.project_id, some, consistent=True)
        for other in (found[key] for key in some if key in found and key not in known):
            numbers = sorted({shard_of(target, other.shard_count) for target in left}) if other.shard_count else []
            shards_read += len(numbers)
            if first >= _MOST_NEWER_JOBS or shards_read > _MOST_NEWER_SHARDS:
                raise NewerJob(
                    f"too many Jobs sent content to {_path(job)} since this one, so that its targets cannot be "
                    "compared with theirs: submit the content again, or redrive with force to replace newer content"
                )
            sent = _sequences_in(d, other, numbers)
            there = [target for target, sequence in left.items() if sent.get(target, 0) > sequence]
            newer |= dict.fromkeys(there, other.key)
            left = {target: sequence for target, sequence in left.items() if target not in newer}
            if not left:
                return newer
    return newer


def _sequences_in(d: Distribution, job: Job, shards: Collection[int]) -> dict[Target, int]:
    """The sequences of a Job's targets in the given shards.

    While the Job's window is open, it has no shards: then the sequences of all its targets."""
    own = job.sequence or 0
    if job.shard_count is not None:
        found = d.targets.shards(job, shards)
        return {target: shard.sequences.get(target, own) for shard in found for target in shard.states}
    sequences: dict[Target, int] = {}
    for arrival in d.targets.collected(job.project_id, job.key):
        sequences[arrival.target] = max(arrival.sequence or own, sequences.get(arrival.target, 0))
    return sequences


def _ended_as(d: Distribution, job: Job, statuses: Collection[str]) -> dict[Target, int]:
    """The targets that ended with one of these statuses, each with the sequence of its content."""
    found: dict[Target, int] = {}
    for first in range(0, job.shard_count or 0, _SHARDS_READ_TOGETHER):
        numbers = range(first, min(first + _SHARDS_READ_TOGETHER, job.shard_count or 0))
        for shard in d.targets.shards(job, numbers):
            found |= {
                target: shard.sequences.get(target, job.sequence or 0)
                for target, state in shard.states.items()
                if outcome(job, state)["status"] in statuses
            }
    return found


def _job(d: Distribution, project_id: str, given: str) -> Job:
    return d.jobs.require(project_id, job_key_of(given), named=given)


def _path(job: Job) -> str:
    return f"{job.spec.target_file_dir.rstrip('/')}/{job.spec.file_name}"


def _all_skipped(job: Job, skipped: Mapping[Target, str]) -> str:
    newer = list(dict.fromkeys(skipped.values()))
    named = ", ".join(newer[:_NAMED]) + (", …" if len(newer) > _NAMED else "")
    return (
        f"newer content was sent to {_path(job)} on all {len(skipped)} targets, by the Job {named}: redrive that Job, "
        "or this one with force to replace the newer content"
    )
