"""The transfer of a Job, in the order of its state machine: prepare the file, dispatch, poll, finish."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import NamedTuple

from aws_lambda_powertools import Logger

from tidegate.common.ids import iso
from tidegate.common.sequences import slices
from tidegate.distribution import Distribution
from tidegate.distribution.control import RECHECK_AFTER
from tidegate.distribution.fleet import is_time_to_repeat, spread_seconds
from tidegate.distribution.inbox import transfer_token
from tidegate.distribution.model import (
    CANCELLED,
    CODE_CANCELLED,
    CODE_JOB_FAILED,
    CODE_NOT_GRANTED,
    CODE_NOT_SENT,
    CODE_SUPERSEDED,
    CODE_TIMEOUT,
    DONE,
    FAILED,
    FIRST_WATCH,
    IN_PROGRESS,
    INTENDED,
    LONGEST_WAIT,
    PENDING,
    REFUSED,
    REJECTED,
    SENT,
    SUCCESS,
    SUPERSEDED,
    TIMEOUT,
    UNKNOWN,
    UNREPORTED,
    Job,
    Shard,
    Target,
    TargetCounts,
    TargetReport,
    TargetState,
    Task,
    Transfer,
    job_key,
    longest_wait,
    shard_of,
    tally,
    watch_seconds,
    why_silent,
)
from tidegate.distribution.store import shard_number, task_view
from tidegate.distribution.submit import no_longer_granted
from tidegate.distribution.swarm import publish_swarm_metrics
from tidegate.distribution.window import send_strays
from tidegate.errors import (
    AnswerLost,
    Busy,
    DomainError,
    FileNotFound,
    Frozen,
    NotAccepted,
    QuotaExceeded,
    SignatureMismatch,
    TransferRefused,
    WaveFailed,
)
from tidegate.files.library import Content
from tidegate.files.model import COMING, READY
from tidegate.files.reading import SMALLEST_FILE, ReadingTurn, TurnReader, saved_for_content
from tidegate.notifications.notices import Notice, notice_id_for
from tidegate.projects.limits import EGRESS, RUNNER_SECONDS, day_write, until_next_day

# --- heartbeat
# While steps follow each other, compensation does not start another execution of the Job.

_RENEW_BEFORE = 45


def _still_open(d: Distribution, project_id: str, job_key: str) -> Job | None:
    """The Job, for a step that begins. None if nothing is left to do. Frozen if the window was not closed."""
    job = d.jobs.require(project_id, job_key)
    if job.status == PENDING:
        raise Frozen("the window was not closed, because of a freeze")
    if job.ended or job.cancelled_at or not job.open_shards or d.clock().timestamp() >= (job.deadline or 0):
        return None
    _note_alive(d, job)
    return job


def _note_alive(d: Distribution, job: Job, next_within: int = LONGEST_WAIT) -> None:
    """If compensation would check the Job soon, postpones that. `next_within`: seconds until the Job's next step."""
    now = d.clock()
    ahead = max(0, next_within - LONGEST_WAIT)
    if (job.due_at or 0) - now.timestamp() < _RENEW_BEFORE + ahead:
        d.jobs.put_off(job, now + RECHECK_AFTER + timedelta(seconds=ahead))


# --- prepare

READY_TO_SEND, WAITING, OVER = "ready", "waiting", "over"


def prepare(d: Distribution, project_id: str, job_key: str, seconds_left: float) -> str:
    """Checks that the file is stored and matches its signature, and brings it to the source host if there is one.

    Returns READY_TO_SEND, WAITING (call again) or OVER."""
    until = time.monotonic() + seconds_left
    d.freeze.require_thawed()
    job = _still_open(d, project_id, job_key)
    if job is None:
        return OVER
    content = d.contents.get(project_id, job.spec.file_signature)
    if content is None or content.state not in (READY, COMING):
        raise FileNotFound(
            f"the library has no file with the SHA-256 {job.spec.file_signature}, and no ingest is fetching it: "
            "upload it and submit again"
        )
    if content.state == COMING:
        return WAITING
    size = _checked_size(d, job, content, until)
    if size is None:
        return WAITING
    staged = d.engine.stage(job, size)
    if staged.code == IN_PROGRESS:
        return WAITING
    if staged.code != DONE:
        raise TransferRefused(f"the source host could not fetch the file: {staged.message or staged.code}")
    return READY_TO_SEND


def _checked_size(d: Distribution, job: Job, content: Content, until: float) -> int | None:
    """The file's size. None if the time ran out: call again to continue, also for another Job with this content.

    Reads the object only if it was not verified since it was stored.
    """
    signature = job.spec.file_signature
    key = content.object
    found = d.bucket.head(key)
    if found is None:
        raise FileNotFound(f"the content with the SHA-256 {signature} is gone from the bucket: upload the file again")
    lacks_pieces = found.size >= SMALLEST_FILE and content.pieces_sha256 is None
    if found.etag != content.checked_etag or lacks_pieces:
        # In parallel ranges: one stream of tens of gigabytes may outlast the Job, and starts over if it breaks.
        turn = ReadingTurn(saved_for_content(job.project_id, signature), until)
        reader = TurnReader(d.bucket)
        read = reader.check(key, found, turn)
        if read is None:
            return None
        if read.signature != signature:
            reader.forget(turn.saved)
            raise SignatureMismatch(
                f"the stored content's SHA-256 is {read.signature}, not {signature}: upload the file again"
            )
        if read.pieces is not None:
            # The piece lists are stored before the content's record names them, so that none is named and missing.
            for name, listed in read.pieces.objects(job.project_id, signature).items():
                d.bucket.put(name, listed)
        d.contents.checked(job.project_id, signature, read.etag, read.pieces)
        reader.forget(turn.saved)
    return found.size


# --- dispatch
# If the provider's answer is lost, the transfer is created again, a few times. The targets may then get the same
# content twice, which is harmless; a lost transfer would keep them waiting until the deadline.

logger = Logger(service="tidegate", child=True)
DISPATCHED = "dispatched"
# Longer than any call to a provider: nobody waits for the answer to an intent of this age.
_INTENT_SECONDS = 60
_MOST_UNANSWERED = 3


def dispatch(d: Distribution, project_id: str, job_key: str) -> str:
    """Creates the Job's transfers at the provider. May run again at any time.

    Returns DISPATCHED, WAITING (call again) or OVER."""
    d.freeze.require_thawed()
    job = _still_open(d, project_id, job_key)
    if job is None:
        return OVER
    stored = {transfer.number: transfer for transfer in d.transfers.list(job)}
    first = job.wave * len(job.portions)
    numbers = range(first, first + len(job.portions))
    states = [_dispatch_one(d, job, number, stored.get(number)) for number in numbers]
    if WAITING in states:
        return WAITING
    if REJECTED in states:
        _after_rejection(d, job, [t for t in d.transfers.list(job) if t.state == REJECTED and t.number >= first])
    if job.spec.waves:
        d.jobs.wave_sent(job, d.clock())
    if not d.engine.repeatable and numbers.stop > 1:
        # If there is only one, `sent` has stored its id.
        d.jobs.sent_as(job, d.clock(), [t.transfer_id for t in d.transfers.list(job) if t.transfer_id])
    return DISPATCHED


def _after_rejection(d: Distribution, job: Job, rejected: Sequence[Transfer]) -> None:
    if len(rejected) == len(job.portions):
        if all(transfer.over_quota for transfer in rejected):
            raise QuotaExceeded(rejected[0].reason or "", retry_after=until_next_day(d.clock()))
        raise TransferRefused(rejected[0].reason or "the provider refused the transfer without a reason")
    for transfer in rejected:
        _fail_targets(d, job, transfer)


def _fail_targets(d: Distribution, job: Job, transfer: Transfer) -> None:
    """Fails the targets of this transfer. Leaves those of other transfers and of later waves as they are."""
    report = TargetReport(CODE_JOB_FAILED, transfer.reason or "the provider refused the transfer")
    shards = d.targets.shards(job, transfer.shards)
    failed = [shard.after_all(report, lambda target: job.in_wave(target, job.wave)) for shard in shards]
    changed = [after for before, after in zip(shards, failed, strict=True) if after is not before]
    if changed and not d.targets.save(job, changed, d.clock()):
        raise Busy("another poll changed the targets at the same time: the step is retried")


class _Load(NamedTuple):
    """What a transfer sends: its shards and the file's size.

    With waves, the shards have only the targets of the present wave, and shards without such targets are left out."""

    shards: list[Shard]
    size: int


def _load_of(d: Distribution, job: Job, first: int, last: int) -> _Load:
    content = d.contents.get(job.project_id, job.spec.file_signature)
    size = content.size if content else 0
    found = d.targets.shards(job, range(first, last + 1))
    if not job.wave_limits:
        return _Load(found, size)
    here = (shard.only(lambda target: job.in_wave(target, job.wave)) for shard in found)
    return _Load([shard for shard in here if shard.states], size)


def _dispatch_one(d: Distribution, job: Job, number: int, transfer: Transfer | None) -> str:
    ours, load = False, None
    if transfer is None:
        load = _load_of(d, job, *job.portions[number % len(job.portions)])
        if job.wave_limits and not load.shards:
            return DISPATCHED
        transfer, ours = _intend(d, job, number, load)
    if transfer.state == REJECTED:
        return REJECTED
    if transfer.state in (SENT, UNKNOWN):
        return DISPATCHED
    if transfer.state == REFUSED:
        ours = d.transfers.ask_again(job, transfer, d.clock().timestamp())
        if not ours:
            return WAITING
    if ours or d.engine.repeatable:
        return _create_transfer(d, job, transfer, load or _load_of(d, job, transfer.first_shard, transfer.last_shard))
    return _wait_for_answer(d, job, transfer)


def _without_refused(d: Distribution, job: Job, transfer: Transfer, shards: Sequence[Shard]) -> list[Shard]:
    """Fails the targets that the project's grant no longer covers. Returns the shards after that.

    TransferRefused if no other targets are left."""
    open_targets = [target for shard in shards for target in shard.unfinished]
    refused = {} if d.uses_agents else no_longer_granted(d, job.project_id, job.spec, open_targets)
    if not refused:
        return list(shards)
    logger.warning("targets are no longer granted to the project", job_id=job.job_id, count=len(refused))
    reports = {target: TargetReport(CODE_NOT_GRANTED, why) for target, why in refused.items()}
    # Read again, because `shards` may have the targets of one wave only.
    whole = d.targets.shards(job, transfer.shards)
    changed = [after for shard in whole if (after := shard.after(reports)) is not shard]
    if changed and not d.targets.save(job, changed, d.clock()):
        raise NotAccepted("another poll changed the targets at the same time: the transfer is tried again")
    if len(refused) == len(open_targets):
        raise TransferRefused(next(iter(refused.values())))
    return [shard.after(reports) for shard in shards]


# A provider without sequences keeps what it wrote last. So a Job is sent to a target only after an older transfer to
# the same path has ended there, and no longer after a newer one was sent.

# How many Jobs to the same path are compared, and for how many seconds a Job waits until older transfers have
# terminated: a host that is offline may never terminate them.
_MOST_NEAR, _WAIT_FOR_OLDER = 20, 120


def _in_order(d: Distribution, job: Job, transfer: Transfer, shards: Sequence[Shard]) -> list[Shard]:
    """Marks targets that have newer content as superseded. Returns the shards after that.

    TransferRefused if all targets have newer content. NotAccepted while an older transfer may still run on a target."""
    near = d.jobs.get_many(job.project_id, d.jobs.newest_jobs_to_path(job, _MOST_NEAR), consistent=True).values()
    others = [other for other in near if other.shard_count and (other.transfer_id or _is_unnamed(d, other))]
    if not others:
        return list(shards)
    ours = {target: shard.sequences.get(target, job.sequence or 0) for shard in shards for target in shard.unfinished}
    if not ours:
        raise TransferRefused(f"newer content was sent to {job.spec.target_file_dir} by a later Job")
    newer: dict[Target, Job] = {}
    running = False
    for other in others:
        theirs = d.targets.shards(other, sorted({shard_of(target, other.shard_count or 1) for target in ours}))
        older: list[Target] = []
        for shard in theirs:
            for target in shard.states.keys() & ours.keys():
                sequence = shard.sequences.get(target, other.sequence or 0)
                if sequence < ours[target]:
                    older.append(target)
                elif sequence > ours[target] and _has_or_gets(other, target, shard.states[target]):
                    newer[target] = other
        running |= bool(older) and _older_runs(d, job, other, theirs, older)
    if running and d.clock().timestamp() < (job.deadline or 0) - d.windows.job_timeout + _WAIT_FOR_OLDER:
        raise NotAccepted(
            "an older transfer to the same path may still run on a target; if its id is known, it was ended"
        )
    if not newer:
        return list(shards)
    _supersede(d, job, d.targets.shards(job, transfer.shards), newer)
    if len(newer) == len(ours):
        raise TransferRefused(f"newer content was sent to {job.spec.target_file_dir} by a later Job")
    reports = {target: _superseded_by(other) for target, other in newer.items()}
    return [shard.after(reports) for shard in shards]


def _older_runs(d: Distribution, job: Job, other: Job, shards: Sequence[Shard], targets: Sequence[Target]) -> bool:
    """Whether transfers of an older Job, `other`, still run on these targets. Terminates those that do.

    The targets become Superseded in the older Job."""
    if not other.ended:
        _supersede(d, other, shards, dict.fromkeys(targets, job))
    running, now = False, d.clock().timestamp()
    for transfer in d.transfers.list(other):
        if now >= (other.deadline or 0):
            continue
        # The id of a transfer whose answer was lost is not known, so only its deadline ends it. The caller waits for it
        # as for a host that is offline.
        running |= transfer.state in (INTENDED, UNKNOWN) or transfer.unanswered > 0
        if transfer.state != SENT:
            continue
        try:
            reports = d.engine.results(other, transfer, transfer.shards).targets
            open_ones = [t for t in targets if t in reports and reports[t].code == IN_PROGRESS]
            if open_ones:
                running = True
                d.engine.terminate(other, transfer, open_ones)
        except DomainError as error:
            logger.warning("no answer on an older transfer", job_id=other.job_id, reason=error.detail)
            running = True
    return running


def _has_or_gets(job: Job, target: Target, state: TargetState) -> bool:
    """Whether the target has the Job's file, or is still getting it."""
    was_sent = any(job.in_wave(target, wave) for wave in range(job.wave + 1))
    return was_sent and (state.succeeded or not (state.ended or job.ended))


def _supersede(d: Distribution, job: Job, shards: Sequence[Shard], by: Mapping[Target, Job]) -> None:
    reports = {target: _superseded_by(other) for target, other in by.items()}
    changed = [after for shard in shards if (after := shard.after(reports)) is not shard]
    if changed and not d.targets.save(job, changed, d.clock()):
        raise NotAccepted("another poll changed the targets at the same time: the transfer is tried again")


def _superseded_by(other: Job) -> TargetReport:
    return TargetReport(CODE_SUPERSEDED, f"superseded by the Job {other.key}")


def _intend(d: Distribution, job: Job, number: int, load: _Load) -> tuple[Transfer, bool]:
    """Stores the transfer as intended, and counts its egress. Stores it as rejected if the egress exceeds the quota.

    Returns the stored transfer, and whether this call may request it."""
    intent, now = _intent(d, job, number), d.clock()
    quotas, sent = d.project_store.quotas(job.project_id), d.engine.egress(job, intent, load.shards, load.size)
    counts = {EGRESS: sent} | ({RUNNER_SECONDS: ahead} if number == 0 and (ahead := _ahead(d, job)) else {})
    stored = d.transfers.intend(job, intent, day_write(job.project_id, now, counts, quotas))
    if stored is not None:
        return stored
    reason = (
        f"this transfer would send {sent} bytes and take {counts.get(RUNNER_SECONDS, 0)} s, which is more than is "
        f"left today of the project's quota egress_bytes_per_day ({quotas.egress_bytes_per_day}) or "
        f"runner_hours_per_day ({quotas.runner_hours_per_day}): redrive the Job tomorrow (UTC), or ask an admin to "
        "raise it"
    )
    rejected = replace(intent, state=REJECTED, reason=reason, over_quota=True)
    return d.transfers.intend(job, rejected) or (rejected, False)


def _ahead(d: Distribution, job: Job) -> int:
    """The runner seconds to charge for waves and for the time until activation.

    Does not include those that were charged when the window closed."""
    left = (job.deadline or 0) - d.clock().timestamp()
    return max(0, watch_seconds(left + job.spec.wave_seconds(math.ceil(left))) - watch_seconds(FIRST_WATCH))


def _intent(d: Distribution, job: Job, number: int) -> Transfer:
    first, last = job.portions[number % len(job.portions)]
    token = transfer_token(job.key, number, job.shard_count or 0)
    return Transfer(number, token, first, last, INTENDED, asked_at=d.clock().timestamp())


def _create_transfer(d: Distribution, job: Job, transfer: Transfer, load: _Load) -> str:
    shards, size = load
    try:
        shards = _without_refused(d, job, transfer, shards)
        if not d.engine.repeatable:
            shards = _in_order(d, job, transfer, shards)
        transfer_id = d.engine.create(job, transfer, shards, size)
    except NotAccepted as error:
        logger.warning("the provider did not accept the transfer", job_id=job.job_id, reason=error.detail)
        d.transfers.settle(job, transfer, REFUSED)
        return WAITING
    except AnswerLost as error:
        logger.warning("the provider's answer was lost", job_id=job.job_id, reason=error.detail)
        _count_lost_answer()
        return _unanswered(d, job, transfer)
    except TransferRefused as error:
        logger.warning("the provider refused a transfer", job_id=job.job_id, reason=error.detail)
        d.transfers.settle(job, transfer, REJECTED, reason=error.detail)
        return REJECTED
    d.transfers.settle(job, transfer, SENT, transfer_id=transfer_id)
    stored = d.jobs.sent(job, d.clock(), transfer_id, size)
    if stored.ended:
        # Another execution ended the Job meanwhile, after a cancel, and could not terminate this transfer.
        unfinished = [target for shard in shards for target in shard.unfinished]
        d.engine.terminate(job, replace(transfer, transfer_id=transfer_id), unfinished)
    return DISPATCHED


def _wait_for_answer(d: Distribution, job: Job, transfer: Transfer) -> str:
    """Waits for the answer to a transfer that another dispatcher has requested. After a minute, it counts as lost.

    Returns WAITING. After too many lost answers, returns DISPATCHED."""
    if d.clock().timestamp() - transfer.asked_at < _INTENT_SECONDS:
        return WAITING
    logger.error("the dispatcher of this transfer died", job_id=job.job_id, transfer=transfer.token)
    _count_lost_answer()
    return _unanswered(d, job, transfer)


def _count_lost_answer() -> None:
    """Writes a metric about a lost answer to the log (EMF), which needs no AWS call."""
    from aws_lambda_powertools import Metrics
    from aws_lambda_powertools.metrics import MetricUnit

    metrics = Metrics(service="distribution")
    metrics.add_metric("TransferAnswersLost", MetricUnit.Count, 1)
    metrics.flush_metrics()


def _is_unnamed(d: Distribution, job: Job) -> bool:
    """Whether the provider may have a transfer of the Job whose id is not known here.

    Nobody can look at such a transfer or end it. GSE tells the id of a transfer only in its answer, and has no list of
    transfers."""
    asked = () if d.engine.repeatable else d.transfers.list(job)
    return any(transfer.unanswered or transfer.state in (INTENDED, UNKNOWN) for transfer in asked)


def _unanswered(d: Distribution, job: Job, transfer: Transfer) -> str:
    unanswered = transfer.unanswered + 1
    if unanswered < _MOST_UNANSWERED:
        d.transfers.settle(job, transfer, REFUSED, unanswered=unanswered)
        return WAITING
    d.transfers.settle(job, transfer, UNKNOWN)
    return DISPATCHED


# --- poll
# Reads the results of a Job's targets from the provider, and writes the changed shards.

# Added to the wait between two polls. Too long repeats a wake-up, which is harmless; too short would skip one.
_POLL_TAKES = 1.0
GOING_ON, NEXT_WAVE = "running", "next_wave"


class Polled(NamedTuple):
    """How the Job goes on, and the longest interval until the next poll.

    The interval is longer before activation, when hosts report little. It is also longer for a Job with many waves,
    because all its polls must fit into one execution."""

    state: str
    longest_wait: int = LONGEST_WAIT


def poll(d: Distribution, project_id: str, job_key: str, since_last: float = 0.0) -> Polled:
    """Reads and stores the results of the Job's targets. `since_last`: seconds since the last poll, about."""
    job = d.jobs.require(project_id, job_key)
    if job.ended:
        return Polled(OVER)
    longest = _longest_wait(d, job)
    _note_alive(d, job, longest)
    return Polled(_state_after(d, job, since_last), longest)


def _longest_wait(d: Distribution, job: Job) -> int:
    lasts = d.windows.job_timeout + job.spec.wave_seconds(d.windows.job_timeout)
    return longest_wait(lasts, job.spec.until_activation(d.clock().timestamp()))


def _state_after(d: Distribution, job: Job, since_last: float) -> str:
    job, shards = _read_results(d, job, since_last)
    if job.ended or job.cancelled_at or not job.open_shards:
        return OVER
    if job.spec.waves and job.wave_at is None:
        # An earlier poll began this wave, but its answer was lost: the wave has not been sent.
        return NEXT_WAVE
    late = d.clock().timestamp() >= (job.deadline or 0)
    if job.has_more_waves:
        # Hosts have until the deadline, but `wait_s` may be longer.
        if not _wave_is_over(d, job, shards, late):
            return GOING_ON
        now = d.clock()
        following = d.jobs.next_wave(job, now, now.timestamp() + d.windows.job_timeout)
        logger.info("the next wave begins", job_id=job.job_id, wave=following.wave + 1)
        return NEXT_WAVE
    if late:
        _note_offline(d, job)
        return OVER
    return GOING_ON


def _wave_is_over(d: Distribution, job: Job, shards: Sequence[Shard], late: bool) -> bool:
    """Whether the next wave may begin. WaveFailed if too many targets failed.

    Late targets count as failed in their own wave only. The next wave neither waits for them nor fails because of
    them."""
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
    return job.wave_at is not None and d.clock().timestamp() >= job.wave_at + rule.wait_s


def _note_offline(d: Distribution, job: Job) -> None:
    """At the deadline, stores an error text for each host without a report, which says whether the host is offline."""
    if not d.uses_agents:
        return
    now = d.clock()
    changed: list[Shard] = []
    for shard in d.targets.shards(job, job.open_shards):
        silent = [target for target in shard.unfinished if shard.states[target].code is None]
        agents = d.fleet_store.get_many(job.project_id, [target.agent_id for target in silent])
        reasons = {
            target: UNREPORTED._replace(message=why_silent(agents.get(target.agent_id), now)) for target in silent
        }
        if reasons:
            changed.append(replace(shard, states={**shard.states, **reasons}))
    if changed:
        d.targets.save(job, changed, now)


def _read_results(d: Distribution, job: Job, since_last: float) -> tuple[Job, Sequence[Shard]]:
    """Reads all results. Returns the updated Job, and those of its shards that were open."""
    before = d.targets.shards(job, job.open_shards)
    after = {shard.number: shard for shard in before}
    for transfer in _transfers_to_read(d, job):
        if transfer.state == SENT:
            after |= _with_results(d, job, transfer, [after[n] for n in transfer.shards if n in after])
            _remind(d, job, transfer, [after[n] for n in transfer.shards if n in after], since_last)
    changed = [after[shard.number] for shard in before if after[shard.number] is not shard]
    now = d.clock()
    # Another poller was faster: what was read here is stale.
    if changed and not d.targets.save(job, changed, now):
        return job, before
    shards = list(after.values())
    counted = tally(job, shards)
    if counted == job:
        return job, shards
    job = d.jobs.progress(job, now, counted)
    # If nothing is left open, finish_job publishes the end in a moment: watchers need not be notified twice.
    if job.open_shards:
        d.topic.publish_progress(job.project_id, job.job_id, job.view())
    return job, shards


def _with_results(d: Distribution, job: Job, transfer: Transfer, shards: Sequence[Shard]) -> dict[int, Shard]:
    """The shards after the provider's reports, by number.

    Empty if the provider's answer is unusable, because no target should fail for that."""
    if not shards:
        return {}
    try:
        results = d.engine.results(job, transfer, [shard.number for shard in shards])
    except DomainError as error:
        logger.warning("no results from the provider", job_id=job.job_id, code=error.code, reason=error.detail)
        return {}
    reported = [shard.after(results.targets) for shard in shards]
    if upload := results.upload:
        wave = transfer.number // len(job.portions)
        reported = [shard.after_all(upload, lambda target: job.in_wave(target, wave)) for shard in reported]
    return {shard.number: shard for shard in reported}


def _remind(d: Distribution, job: Job, transfer: Transfer, shards: Sequence[Shard], since_last: float) -> None:
    """Wakes hosts again that have not started, at doubling intervals."""
    now, activation = d.clock().timestamp(), job.spec.activation
    # Agents that cannot stage a file get it at its activation, so their wake-ups start again then.
    age = now - (max(transfer.asked_at, activation) if activation <= now else transfer.asked_at)
    spread = spread_seconds(job.counts.total, d.settings.fleet_rate)
    if job.cancelled_at or not is_time_to_repeat(age, since_last + _POLL_TAKES, spread):
        return
    wave = transfer.number // len(job.portions)
    silent = [t for s in shards for t in s.unfinished if s.states[t].code is None and job.in_wave(t, wave)]
    if silent:
        logger.info("hosts that have not started are woken again", job_id=job.job_id, hosts=len(silent))
        d.engine.remind(job, silent)


def _transfers_to_read(d: Distribution, job: Job) -> list[Transfer]:
    """The transfers whose results are to be read.

    Each wave has transfers of its own. But agents' results are stored by shard, so one transfer for each range of
    shards is enough."""
    found = d.transfers.list(job)
    if not d.engine.repeatable:
        return found
    return list({transfer.first_shard: transfer for transfer in found if transfer.state == SENT}.values())


# --- finish
# Ends a Job: unfinished targets end with it and are cancelled at the provider; then notifications are sent.

NOT_YET, MORE, ENDED = "running", "more", "ended"
_PORTIONS_A_STEP = 5
_READ_TOGETHER = 100
_TRIES = 3


def finish(d: Distribution, project_id: str, job_key: str, error: DomainError | None = None) -> str:
    """Ends the Job if it can end, and sends its notices. Returns NOT_YET, MORE (call again) or ENDED.

    With an `error`, the Job cannot continue. Otherwise it ends when all its targets have ended, or at its deadline."""
    job = d.jobs.require(project_id, job_key)
    for _ in range(_TRIES):
        if job.ended:
            return _after_end(d, job)
        verdict = _verdict(d, job, error)
        if verdict is None:
            return NOT_YET
        # Before the end is written: a crash in between sends these messages twice, but never loses them.
        send_strays(d, job)
        job = _end_job(d, verdict)
    if job.ended:
        return _after_end(d, job)
    raise Busy("polls changed the targets while the Job was ended: the step is retried")


def _after_end(d: Distribution, job: Job) -> str:
    if job.rest == CANCELLED:
        _note_arrivals(d, job)
    return _notify_tasks(d, job)


def _note_arrivals(d: Distribution, job: Job) -> None:
    """Stores which hosts put the file in place between the last poll and the end of the cancelled Job.

    Hosts that do so later are noted when they report."""
    arrived: list[Target] = []
    for transfer in _transfers_to_read(d, job):
        open_ones = [number for number in transfer.shards if number in job.open_shards]
        if transfer.state != SENT or not open_ones:
            continue
        try:
            reports = d.engine.results(job, transfer, open_ones).targets
        except DomainError as error:
            logger.warning("no results from the provider", job_id=job.job_id, code=error.code, reason=error.detail)
            continue
        arrived += [target for target, report in reports.items() if report.code == DONE]
    if arrived:
        d.targets.note_arrivals(job, arrived, d.clock())


def _verdict(d: Distribution, job: Job, error: DomainError | None) -> Job | None:
    """The Job in its final state. None if the Job cannot end yet."""
    if job.status == PENDING or job.shard_count is None:
        return None
    # A poll may have died after it wrote the shards and before it wrote the Job's counts.
    job = tally(job, d.targets.shards(job, job.open_shards))
    unfinished, now = job.counts.open, d.clock()
    # A Job that was cancelled before it got a target has no shards either.
    if not job.open_shards and not (job.cancelled_at and job.counts.total == 0):
        return replace(job, status=_status_of(job.counts), finish_time=iso(now))
    if isinstance(error, WaveFailed):
        reason = {"code": error.code, "detail": error.detail}
        counts = replace(job.counts, cancelled=unfinished)
        ended = replace(job, status=FAILED, counts=counts, error=reason, rest_code=CODE_NOT_SENT)
    elif job.cancelled_at:
        reason = {"code": "cancelled", "detail": f"cancelled at {job.cancelled_at} by {job.cancelled_by}"}
        counts = replace(job.counts, cancelled=unfinished)
        ended = replace(job, status=CANCELLED, counts=counts, error=reason, rest_code=CODE_CANCELLED)
    elif error is not None:
        counts = replace(job.counts, failed=job.counts.failed + unfinished)
        reason = {"code": error.code, "detail": error.detail}
        ended = replace(job, status=FAILED, counts=counts, error=reason, rest_code=CODE_JOB_FAILED)
    elif now.timestamp() >= (job.deadline or 0):
        counts = replace(job.counts, timeout=unfinished)
        ended = replace(job, status=TIMEOUT, counts=counts, error=_why_late(d, job), rest_code=CODE_TIMEOUT)
    else:
        return None
    if now.timestamp() < (job.deadline or 0) and _is_unnamed(d, job):
        until = iso(datetime.fromtimestamp(job.deadline or 0, UTC))
        why = f"; the provider's answer was lost: hosts may still get the file until {until}, which nobody can stop"
        ended = replace(ended, error={**(ended.error or {}), "detail": f"{(ended.error or {}).get('detail', '')}{why}"})
    return replace(ended, finish_time=iso(now))


def _why_late(d: Distribution, job: Job) -> dict[str, str]:
    if any(transfer.state == UNKNOWN for transfer in d.transfers.list(job)):
        return {"code": "transfer_answer_lost", "detail": "the provider's answer was lost: hosts may have the file"}
    return {"code": "timeout", "detail": "not delivered before the Job's deadline"}


def _end_job(d: Distribution, job: Job) -> Job:
    """Writes the end of the Job and publishes it. Before that, terminates the transfers.

    Terminating them again does no harm."""
    if job.open_shards:
        _terminate_transfers(d, job)
    now = d.clock()
    notice_id = notice_id_for("job.finished", job.job_id)
    notice = Notice(notice_id, job.project_id, "job.finished", job.job_id, job.status, job.view(), None, now)
    ended, ours = d.jobs.end(job, now, notice, now + RECHECK_AFTER)
    if ours:
        # If another execution ended the Job, the outbox has its notice, perhaps with other counts.
        d.notifier.publish([notice])
        publish_swarm_metrics(ended)
        logger.info("the Job has ended", job_id=job.job_id, status=ended.status, counts=ended.counts.view())
    return ended


def _terminate_transfers(d: Distribution, job: Job) -> None:
    shards = {shard.number: shard for shard in d.targets.shards(job, job.open_shards)}
    for transfer in d.transfers.list(job):
        wave = transfer.number // max(1, len(job.portions))
        open_ones = [t for number in transfer.shards if number in shards for t in shards[number].unfinished]
        targets = [target for target in open_ones if job.in_wave(target, wave)]
        # A dispatcher that died may have written some inbox entries; a GSE transfer has no id before it is sent.
        is_known = transfer.state == SENT or (transfer.state == INTENDED and d.engine.repeatable)
        if is_known and targets:
            _terminate_transfer(d, job, transfer, targets)


def _terminate_transfer(d: Distribution, job: Job, transfer: Transfer, targets: Sequence[Target]) -> None:
    for _ in range(3):
        try:
            d.engine.terminate(job, transfer, targets)
            return
        except DomainError as error:
            logger.warning("the provider did not terminate the transfer", job_id=job.job_id, reason=error.detail)


def _notify_tasks(d: Distribution, job: Job) -> str:
    """Publishes a notice for each Task with a callback, some portions in each call. Returns MORE or ENDED.

    If portions are published again, the notices have the same ids."""
    has_callbacks = False
    for chunk_id, uuids in islice(d.targets.callbacks(job), _PORTIONS_A_STEP):
        has_callbacks = True
        for some in slices(uuids, _READ_TOGETHER):
            # Consistent: a Task that has just moved here would get no callback if it is read in its old Job.
            tasks = d.tasks.get_many(job.project_id, some, consistent=True)
            notices = _task_notices(d, job, tasks)
            if len(d.topic.publish(notices)) < len(notices):
                return MORE
        d.targets.forget_callbacks(job, chunk_id)
    if has_callbacks and next(d.targets.callbacks(job), None) is not None:
        return MORE
    d.jobs.settle(job, d.clock())
    return ENDED


def _task_notices(d: Distribution, job: Job, tasks: Sequence[Task]) -> list[Notice]:
    here = [task for task in tasks if job_key(task.job_id) == job.key]
    numbers = {n for task in here if (n := shard_number(task, job)) is not None}
    shards = {shard.number: shard for shard in d.targets.shards(job, sorted(numbers))}
    return [_task_notice(d, job, task, task_view(task, job, shards.get(shard_number(task, job) or 0))) for task in here]


def _task_notice(d: Distribution, job: Job, task: Task, data: dict[str, object]) -> Notice:
    status = str(data["status"])
    kind = "task.completed" if status == SUCCESS else "task.failed"
    task_id = str(data["task_id"])
    notice_id = notice_id_for(kind, task_id)
    shown = {name: value for name, value in data.items() if value is not None}
    return Notice(notice_id, job.project_id, kind, task_id, status, shown, task.callback, d.clock())


def _status_of(counts: TargetCounts) -> str:
    """The status of a Job whose targets have all ended by themselves."""
    if counts.failed:
        return FAILED
    return SUPERSEDED if counts.superseded and not counts.success else SUCCESS
