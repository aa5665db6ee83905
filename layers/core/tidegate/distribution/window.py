"""The window of a Job. Targets are bound to the Job while its window is open, and written as shards when it closes."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

from aws_lambda_powertools import Logger

from tidegate.aws.table import Write
from tidegate.common.ids import iso
from tidegate.common.sequences import slices
from tidegate.distribution import Distribution
from tidegate.distribution.control import RECHECK_AFTER
from tidegate.distribution.model import (
    NO_REMARKS,
    PENDING,
    Arrival,
    Job,
    Remarks,
    Target,
    Task,
    TransferSpec,
    job_key,
    portions,
    spread,
    wave_rank,
)
from tidegate.distribution.store import move_task, renew_task
from tidegate.distribution.submit import TargetMessage, job_of_window
from tidegate.errors import Busy, RecordNotFound

# --- collect
# Binds targets to Jobs. A target that arrives after its Job closed moves to a later Job, together with its Task.

logger = Logger(service="tidegate", child=True)
# A transaction has at most 100 writes: the check, the chunk, its callbacks, and a Task for each target.
_MOVED_TOGETHER = 90
# Lambda may pass on 400 messages of a large submit at once. Each needs a transaction of a hundred puts for its Tasks,
# and one after another they would take longer than the function's time-out.
_WRITERS = 16
_TRIES = 5
# For one path, hardly more contents than these are requested within a window.
_OTHER_CONTENTS = 100


def collect(d: Distribution, messages: Iterable[TargetMessage]) -> list[str]:
    """Binds the targets of these messages to their Jobs. Returns the ids of the messages to retry."""
    by_job: Mapping[tuple[str, str], list[TargetMessage]] = defaultdict(list)
    for message in messages:
        by_job[message.project_id, message.job_id].append(message)
    failed: list[str] = []
    for (project_id, job_id), together in by_job.items():
        try:
            _write_all_tasks(d, [message for message in together if message.new])
            _bind_messages(d, project_id, job_id, together)
        except Exception:
            logger.exception("targets were not bound and are retried", job_id=job_id)
            failed += [message.message_id for message in together]
    return failed


def _write_all_tasks(d: Distribution, messages: Sequence[TargetMessage]) -> None:
    if len(messages) < 2:
        for message in messages:
            _write_tasks(d, message)
        return
    with ThreadPoolExecutor(min(_WRITERS, len(messages)), thread_name_prefix="tasks") as threads:
        list(threads.map(lambda message: _write_tasks(d, message), messages))


def _write_tasks(d: Distribution, message: TargetMessage) -> None:
    """Writes the Tasks that a large submit left to this function, before their targets are bound."""
    if message.new is None:
        return
    at, callback = message.new
    tasks = [
        Task(message.project_id, one.uuid, message.job_id, one.target, at, at, callback, one.sequence)
        for one in message.arrivals
    ]
    d.tasks.add_missing(tasks, _expires_at(d, message.spec))


def bind(d: Distribution, project_id: str, job_id: str, arrivals: Sequence[Arrival]) -> None:
    """Binds targets directly, as if a message of the queue had brought them."""
    job = d.jobs.get(project_id, job_key(job_id))
    spec, sequence = (job.spec, job.sequence) if job else (None, None)
    message = TargetMessage("", project_id, job_id, arrivals, spec, sequence, at=iso(d.clock()))
    _bind_messages(d, project_id, job_id, [message])


def _bind_messages(d: Distribution, project_id: str, job_id: str, messages: Sequence[TargetMessage]) -> None:
    messages = [message._replace(arrivals=_as_requested(message)) for message in messages]
    distinct = {arrival.uuid: arrival for message in messages for arrival in message.arrivals}
    expires_at = _expires_at(d, messages[0].spec)
    late = d.targets.bind(project_id, job_key(job_id), list(distinct.values()), expires_at)
    if not late:
        return
    source = d.jobs.get(project_id, job_key(job_id))
    if source is None:
        _after_expiry(d, messages)
    elif source.cancelled_at:
        for portion in slices(_submitted_after_cancel(d, source, late), _MOVED_TOGETHER):
            _move(d, source, portion)
    else:
        _rehome(d, source, late, messages)


def _rehome(d: Distribution, source: Job, late: Sequence[Arrival], messages: Sequence[TargetMessage]) -> None:
    # A message delivered again may have been bound before the Job closed. The Job's chunks no longer change.
    bound = set(d.targets.collected(source.project_id, source.key))
    bound_uuids, targets = {arrival.uuid for arrival in bound}, {arrival.target for arrival in bound}
    again = [one for one in late if one.target in targets and one.uuid not in bound_uuids]
    overtaken = _overtaken(d, source, bound, again)
    _join(d, source, [one for one in again if one not in overtaken])
    unbound = [*(arrival for arrival in late if arrival.target not in targets), *overtaken]
    # Consistent: a Task that was written a moment ago and is not found would be dropped.
    uuids = [arrival.uuid for arrival in unbound]
    tasks = d.tasks.get_many(source.project_id, uuids, consistent=True)
    job_ids = {task.uuid: task.job_id for task in tasks}
    # An earlier delivery of the message has moved the others.
    here = [arrival for arrival in unbound if job_ids.get(arrival.uuid) == source.job_id]
    for portion in slices(here, _MOVED_TOGETHER):
        _move(d, source, portion)
    missing = {arrival.uuid for arrival in unbound if arrival.uuid not in job_ids}
    if missing and _tasks_have_expired(d, source):
        # TTL deleted the Tasks before the Job. Before they expire, only a failed submit deletes its Tasks.
        rest = (m._replace(arrivals=[one for one in m.arrivals if one.uuid in missing]) for m in messages)
        _after_expiry(d, [m._replace(spec=m.spec or source.spec) for m in rest if m.arrivals])


def _overtaken(d: Distribution, source: Job, bound: Iterable[Arrival], again: Sequence[Arrival]) -> list[Arrival]:
    """Those repeated requests whose content must be sent again, because other content was requested in between.

    Each target is bound to `source` already, with the same content. Then other content was requested for the same path,
    and then this content again. The last request wins, so a later Job sends its content again."""
    own = source.sequence or 0
    latest = max((one.sequence or own for one in again), default=own)
    between = d.jobs.sequences_between(source, own, latest, _OTHER_CONTENTS) if latest > own else []
    if not between:
        return []
    known: dict[Target, int] = {}
    for arrival in bound:
        known[arrival.target] = max(arrival.sequence or own, known.get(arrival.target, own))
    return [one for one in again if any(known[one.target] < other < (one.sequence or own) for other in between)]


def _tasks_have_expired(d: Distribution, job: Job) -> bool:
    """Whether TTL may have deleted the Job's Tasks by now. All Tasks were written before the Job's window closed."""
    written_by = datetime.fromisoformat(job.closes_at)
    return d.windows.needed_until(written_by, job.spec) <= d.clock().timestamp()


def _after_expiry(d: Distribution, messages: Sequence[TargetMessage]) -> None:
    """Binds targets whose Job has expired to the Job of the present window.

    Their message may be a dead letter that is sent again days later. Skips Tasks that have moved to another Job, and
    those that were cancelled with their Job. Writes expired Tasks again."""
    cancelled_at = d.jobs.cancelled_at(messages[0].project_id, job_key(messages[0].job_id))
    for message in messages:
        if message.spec is None:
            raise RecordNotFound(
                f"the Job {message.job_id} has expired, and the message of {len(message.arrivals)} targets "
                "does not contain the file to deliver: submit them again and delete the message"
            )
        found = d.tasks.get_many(message.project_id, [one.uuid for one in message.arrivals], consistent=True)
        stored = {task.uuid: task for task in found}
        unserved = [
            one for one in message.arrivals if one.uuid not in stored or stored[one.uuid].job_id == message.job_id
        ]
        if cancelled_at is not None:
            # A message of an earlier version does not say when it was sent: hardly any come after a cancel.
            at = message.at or (message.new.create_time if message.new else "")
            later = [one for one in unserved if _submitted(stored.get(one.uuid), at) > cancelled_at]
            dropped = len(unserved) - len(later)
            logger.warning("targets of a cancelled Job are dropped", job_id=message.job_id, count=dropped)
            unserved = later
        logger.warning("targets arrived after their Job expired", job_id=message.job_id, count=len(unserved))
        for portion in slices(unserved, _MOVED_TOGETHER):
            _renew(d, message, message.spec, portion)


def _renew(d: Distribution, message: TargetMessage, spec: TransferSpec, arrivals: Sequence[Arrival]) -> None:
    def write_again(arrival: Arrival, home: Job) -> Write:
        now = iso(d.clock())
        task = Task(
            home.project_id, arrival.uuid, home.job_id, arrival.target, now, now, message.callback, arrival.sequence
        )
        return renew_task(task, message.job_id, _expires_at(d, spec))

    _bind_later(d, message.project_id, spec, -1, with_sequence(arrivals, message.sequence), write_again)


def _submitted_after_cancel(d: Distribution, source: Job, late: Sequence[Arrival]) -> list[Arrival]:
    """The arrivals that were submitted after the cancel.

    The other arrivals are cancelled with the Job, and their callbacks are added to it."""
    tasks = {
        task.uuid: task for task in d.tasks.get_many(source.project_id, [one.uuid for one in late], consistent=True)
    }
    here = [one for one in late if one.uuid in tasks and tasks[one.uuid].job_id == source.job_id]
    later = [one for one in here if tasks[one.uuid].create_time > (source.cancelled_at or "")]
    _join(d, source, [one for one in here if one not in later])
    return later


def _join(d: Distribution, job: Job, arrivals: Sequence[Arrival]) -> None:
    """Adds the callbacks of late Tasks to the Job. Another Task has bound their target: both share the outcome."""
    uuids = [arrival.uuid for arrival in arrivals if arrival.notify]
    if uuids:
        d.targets.add_callbacks(job, uuids, _expires_at(d, job.spec))
        d.jobs.put_off(job, d.clock())


def _move(d: Distribution, source: Job, arrivals: Sequence[Arrival]) -> None:
    def move(arrival: Arrival, home: Job) -> Write:
        now = iso(d.clock())
        return move_task(home.project_id, arrival.uuid, source, home, now, _expires_at(d, home.spec))

    arrivals = with_sequence(arrivals, source.sequence)
    _bind_later(d, source.project_id, source.spec, source.bucket, arrivals, move, source.remarks)


def _bind_later(
    d: Distribution,
    project_id: str,
    spec: TransferSpec,
    after: int,
    arrivals: Sequence[Arrival],
    task_write: Callable[[Arrival, Job], Write],
    remarks: Remarks = NO_REMARKS,
) -> None:
    """Binds the arrivals to the first open Job after the window `after`.

    `task_write` makes the write that moves an arrival's Task to that Job."""
    for _ in range(_TRIES):
        home = job_of_window(d, project_id, spec, after=after, remarks=remarks)
        moves = [task_write(arrival, home) for arrival in arrivals]
        rebound = d.targets.rebind(home, arrivals, moves, _expires_at(d, spec))
        if rebound.done:
            logger.info("targets moved to a later Job", home=home.job_id, count=len(arrivals))
            return
        if rebound.home_closed:
            after = home.bucket
        # Another collector has moved the others.
        arrivals = [arrival for arrival in arrivals if arrival.uuid not in rebound.gone]
        if not arrivals:
            return
    raise Busy(f"{_TRIES} windows closed before the targets could be added to a Job: the message is retried")


def _expires_at(d: Distribution, spec: TransferSpec | None) -> int:
    return d.windows.needed_until(d.clock(), spec)


def _submitted(task: Task | None, at: str) -> str:
    return task.create_time if task else at


def _as_requested(message: TargetMessage) -> list[Arrival]:
    """The arrivals of a message. Each gets the time of its request as its sequence, unless it has a sequence.

    That matters if other content was requested for the same path after the Job of the message was opened."""
    if message.sequence is None or message.at is None:
        return list(message.arrivals)
    requested = int(datetime.fromisoformat(message.at).timestamp() * 1000)
    return with_sequence(message.arrivals, max(message.sequence, requested))


def with_sequence(arrivals: Sequence[Arrival], sequence: int | None) -> list[Arrival]:
    """The arrivals. Those without a sequence get `sequence`, that of their first Job.

    So content that moves to a later Job does not replace newer content."""
    return [one._replace(sequence=one.sequence or sequence) for one in arrivals]


# --- close
# Closes a window: the Job accepts no more targets, and those it has are written as shards.

# A Job is opened for targets, so if it has none, their messages are late: Lambda throttles the collector, or the
# collector was killed and SQS hides them for three minutes. If the Job closed at once, its targets would move to a
# later one, and this one would end as Success without having sent anything.
PATIENCE = timedelta(minutes=4)


def close(d: Distribution, project_id: str, job_key: str) -> Job:
    """Closes the Job and writes its shards. May be repeated: a Job that is no longer Pending gets no more targets.

    If the Job's first target is late, the Job stays Pending: call this again some seconds later."""
    job = d.jobs.require(project_id, job_key)
    if job.status == PENDING:
        now = d.clock()
        if _targets_are_late(d, job, now):
            return job
        # Hosts activate the file at `activate_at`, so their time starts then.
        lasts = timedelta(seconds=job.spec.until_activation(now.timestamp()) + d.windows.job_timeout)
        job = d.jobs.close(job, now, (now + lasts).timestamp(), now + RECHECK_AFTER)
    if job.ended or job.shard_count is not None:
        return job
    collected = list(d.targets.collected(project_id, job_key))
    shards = spread([arrival.target for arrival in collected])
    now = d.clock()
    last = d.jobs.last_sequence(job)
    d.targets.add_shards(job, shards, now, _other_sequences(job, collected, last))
    sizes = [len(shard) for shard in shards]
    limits, totals = wave_limits(job.spec, [target for shard in shards for target in shard])
    return d.jobs.shard(job, now, portions(sizes, d.transfer_max_targets), sizes, limits, totals)


def _targets_are_late(d: Distribution, job: Job, now: datetime) -> bool:
    # A cancelled Job gets no more targets.
    if job.cancelled_at or now >= datetime.fromisoformat(job.closes_at) + PATIENCE:
        return False
    return not d.targets.any_collected(job.project_id, job.key)


def wave_limits(spec: TransferSpec, targets: Sequence[Target]) -> tuple[list[int], list[int]]:
    """Returns two lists with a number for each wave: its highest rank, and how many targets have at most that rank.

    Both lists are empty if there are no waves or no targets."""
    waves = spec.waves
    if not waves or not targets:
        return [], []
    ranks = sorted(wave_rank(target) for target in targets)
    limits = list(spec.wave_ranks) or [
        ranks[min(len(ranks), max(1, math.ceil(len(ranks) * wave.percent / 100))) - 1] for wave in waves
    ]
    return limits, [bisect_right(ranks, limit) for limit in limits]


def _other_sequences(job: Job, collected: Iterable[Arrival], last: int) -> dict[Target, int]:
    """The sequences of those targets whose sequence is not the Job's, by target.

    A lower sequence: the target was moved here from an earlier Job, and was not requested again in this window.

    A higher sequence: the target was requested after other content for the same path in the same window. The last
    request wins. This occurs only if `last`, the sequence of the newest Job for the path, is higher than this Job's."""
    if job.sequence is None:
        return {}
    overtaken = last > job.sequence
    newest: dict[Target, int] = {}
    for arrival in collected:
        sequence = job.sequence if arrival.sequence is None else arrival.sequence
        sequence = sequence if overtaken else min(sequence, job.sequence)
        newest[arrival.target] = max(sequence, newest.get(arrival.target, sequence))
    return {target: sequence for target, sequence in newest.items() if sequence != job.sequence}


# --- strays
# Finds Tasks whose SQS message was never sent because the submit function died after it wrote them.


def send_strays(d: Distribution, job: Job) -> int:
    """Sends the messages of a closed Job that were never sent. Returns the number of their Tasks.

    collect_targets then moves the targets to a later Job. If a message was only slow, its targets arrive twice, and the
    second time changes nothing."""
    bound = {arrival.uuid for arrival in d.targets.collected(job.project_id, job.key)}
    unbound = [uuid for uuid in d.tasks.uuids_of_job(job) if uuid not in bound]
    # The index is eventually consistent; the Task itself has its present Job.
    tasks = d.tasks.get_many(job.project_id, unbound, consistent=True)
    # A late Task whose target was already bound is among the callbacks: it has reached the Job.
    joined = {uuid for _, uuids in d.targets.callbacks(job) for uuid in uuids} if tasks else set()
    by_submit: defaultdict[tuple[str | None, str], list[Arrival]] = defaultdict(list)
    for task in tasks:
        if task.job_id == job.job_id and task.uuid not in joined:
            arrival = Arrival(*task.target, task.uuid, task.callback is not None, task.sequence)
            by_submit[task.callback, task.create_time].append(arrival)
    for (callback, at), arrivals in by_submit.items():
        d.target_messages.send(job, arrivals, callback, at=at)
    found = sum(map(len, by_submit.values()))
    if found:
        logger.warning("Tasks had not reached their Job: their targets are sent again", count=found)
    return found
