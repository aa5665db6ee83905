"""Accepts requests: opens or joins the window's Job, writes a Task for each target and queues the targets."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from aws_lambda_powertools import Logger

from tidegate.aws.clients import Machines, Message, SqsQueue
from tidegate.aws.table import current_claim, made_before, noted
from tidegate.common.ids import digest, iso
from tidegate.compensation.freeze import Freeze
from tidegate.distribution import REMEMBERED, Distribution
from tidegate.distribution.model import (
    AGENT_DIRECTORY,
    NO_REMARKS,
    Arrival,
    Job,
    Remarks,
    Target,
    Task,
    TransferSpec,
    bucket_of,
    is_agent_directory,
    job_key,
    window_end,
)
from tidegate.errors import Busy, Conflict, FieldError, FileNotFound, Invalid, ScopeMissing, TargetNotGranted
from tidegate.files.model import COMING, READY
from tidegate.projects.audit import SYSTEM, AuditLine, act
from tidegate.projects.limits import EGRESS, RUNNER_SECONDS, TARGETS, daily_limit, day_exceeded, is_used_up
from tidegate.projects.model import GseGrant, Quotas
from tidegate.projects.projects import quotas_from
from tidegate.records import item_of, record_from

# --- grants
# What a project may reach through GSE. Checked when a file is submitted, and again before it is sent.
#
# GSE writes as any user into any directory of any host, and knows the operator only. So each project needs a grant of
# targets, directories and users (`PATCH /v1/projects/{id}` `{gse: …}`).

_NAMED = 5


def require_grant(d: Distribution, project_id: str, spec: TransferSpec, targets: Sequence[Target]) -> None:
    """Checks that the project's grant covers this submit. TargetNotGranted names everything that is missing."""
    grant = d.project_store.gse_grant(project_id)
    missing = _missing(grant, spec)
    if outside := [_host_and_container(target) for target in targets if not grant.has_target(*target)]:
        more = f" and {len(outside) - _NAMED} more" if len(outside) > _NAMED else ""
        missing["targets"] = f"to {', '.join(outside[:_NAMED])}{more}"
    if missing:
        errors = [FieldError(loc=["gse", name], msg=f"has no grant {what}") for name, what in missing.items()]
        raise TargetNotGranted(_refusal(missing), errors=errors)


def no_longer_granted(
    d: Distribution, project_id: str, spec: TransferSpec, targets: Sequence[Target]
) -> Mapping[Target, str]:
    """Those targets to which the project may not send this file any more, each with the reason."""
    grant = d.project_store.gse_grant(project_id)
    if missing := _missing(grant, spec):
        return dict.fromkeys(targets, _refusal(missing))
    outside = [target for target in targets if not grant.has_target(*target)]
    return {target: _refusal({"targets": f"to {_host_and_container(target)}"}) for target in outside}


def _missing(grant: GseGrant, spec: TransferSpec) -> dict[str, str]:
    missing = {}
    if not grant.has_directory(spec.target_file_dir):
        missing["dirs"] = f"into {spec.target_file_dir}"
    if spec.target_user not in grant.users:
        missing["users"] = f"as {spec.target_user}"
    return missing


def _refusal(missing: Mapping[str, str]) -> str:
    """The text of a refusal. What is missing comes first, because only 200 bytes of it are stored with a target."""
    what = ", ".join(missing[name] for name in ("targets", "users", "dirs") if name in missing)
    return f"this project has no grant to send files {what}: an admin gives it with gse of PATCH /v1/projects/{{id}}"


def _host_and_container(target: Target) -> str:
    return "/".join(filter(None, target))


class JobExecutions:
    """Starts the execution of a Job, and reads its status.

    The execution's name is made from project, Job id and generation, so that each generation starts once."""

    def __init__(self, machines: Machines, freeze: Freeze, machine_arn: str, *, grace: int, job_timeout: int) -> None:
        self._machines = machines
        self._freeze = freeze
        self._machine_arn = machine_arn
        self._grace = timedelta(seconds=grace)
        self._job_timeout = timedelta(seconds=job_timeout)

    def start(self, job: Job) -> None:
        collect_until = datetime.fromisoformat(job.closes_at) + self._grace
        data = {
            "project_id": job.project_id,
            "job_key": job.key,
            "job_id": job.job_id,
            "collect_until": iso(collect_until),
            "deadline": iso(collect_until + self._job_timeout + self._until_activation(job, collect_until)),
            "step": {"wait": 0},
        }
        self._machines.start(self._machine_arn, self._name(job), data)

    @staticmethod
    def _until_activation(job: Job, since: datetime) -> timedelta:
        return timedelta(seconds=job.spec.until_activation(since.timestamp()))

    def status(self, job: Job) -> str | None:
        return self._machines.status(self._machine_arn, self._name(job))

    def _name(self, job: Job) -> str:
        return f"{digest(job.project_id, job.job_id, length=40)}-{job.generation}{self._freeze.timeline}"


# --- job opener
# Opens the Job of a window, or joins it. Used by submits and for late targets.

logger = Logger(service="tidegate", child=True)


def job_of_window(
    d: Distribution,
    project_id: str,
    spec: TransferSpec,
    *,
    after: int = -1,
    remarks: Remarks = NO_REMARKS,
    least: int = 0,
) -> Job:
    """The Job of the present window, or of the window `after` + 1 if that is later. It is opened if it does not exist.

    Remarks that the Job lacks are added to it. `least`: the lowest sequence that a Job opened now may get."""
    bucket = max(bucket_of(d.clock(), d.windows.seconds), after + 1)
    place = (project_id, spec.digest, bucket)
    job = d.known_jobs.get(place)
    if job is None:
        job = d.known_jobs[place] = _open_or_join(d, project_id, spec, bucket, remarks, least)
    d.jobs.add_remarks(job, remarks)
    return job


def _open_or_join(
    d: Distribution, project_id: str, spec: TransferSpec, bucket: int, remarks: Remarks, least: int
) -> Job:
    now = d.clock()
    closes_at = window_end(bucket, d.windows.seconds)
    due_at = closes_at + timedelta(seconds=d.windows.grace)
    for job_id in spec.job_ids(bucket):
        wanted = Job(
            project_id=project_id,
            job_id=job_id,
            key=job_key(job_id),
            spec=spec,
            bucket=bucket,
            closes_at=iso(closes_at),
            create_time=iso(now),
            sequence=max(int(now.timestamp() * 1000), least),
            remarks=remarks,
        )
        job, ours = d.jobs.open(wanted, due_at)
        if ours:
            _start(d, job)
        if job.spec == spec:
            return job
    raise Conflict(
        f"the Job ids for {spec.file_path} in this window belong to other contents: try again in the next window"
    )


def _start(d: Distribution, job: Job) -> None:
    try:
        d.executions.start(job)
    except Exception:
        # The Job is due at the end of its window: compensation starts it then.
        logger.exception("the execution was not started; compensation will start it", job_id=job.job_id)


# --- target queue
# The SQS messages that carry targets to a Job. A message holds many targets, so a large submit needs few calls.

_TARGETS_A_MESSAGE = 100
# Ten messages are sent in one call, which SQS limits to 256 KB.
_MESSAGE_BYTES = 24_000


class NewTasks(NamedTuple):
    """What the function collect_targets needs to write the Tasks of a message's targets."""

    create_time: str
    callback: str | None


class TargetMessage(NamedTuple):
    """A message that carries targets to a Job.

    `spec`, `sequence`, `callback` and `at` (the time of the submit) are needed if the Job expires before the message is
    read, for example in the dead-letter queue. Messages of earlier versions do not have these fields."""

    message_id: str
    project_id: str
    job_id: str
    arrivals: Sequence[Arrival]
    spec: TransferSpec | None = None
    sequence: int | None = None
    callback: str | None = None
    new: NewTasks | None = None
    at: str | None = None


class TargetMessages:
    def __init__(self, queue: SqsQueue) -> None:
        self._queue = queue

    def send(
        self, job: Job, arrivals: Sequence[Arrival], callback: str | None, new: NewTasks | None = None, *, at: str
    ) -> None:
        common = {
            "project_id": job.project_id,
            "job_id": job.job_id,
            "spec": item_of(job.spec),
            "sequence": job.sequence,
            "at": at,
            **({"callback": callback} if callback else {}),
            **({"new": list(new)} if new else {}),
        }
        room = _MESSAGE_BYTES - len(json.dumps(common))
        self._queue.send(
            *(Message({**common, "targets": [list(arrival) for arrival in some]}) for some in _portions(arrivals, room))
        )

    def retry_soon(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Makes failed messages visible again within seconds, not after the visibility time-out."""
        self._queue.retry_soon(records)


def read_message(message_id: str, body: Mapping[str, Any]) -> TargetMessage:
    """The message in a body. ValueError, KeyError or TypeError if the body contains no such message."""
    arrivals = [Arrival(*row) for row in body["targets"]]
    spec = record_from(TransferSpec, body["spec"]) if "spec" in body else None
    new = NewTasks(*body["new"]) if "new" in body else None
    rest = (body.get("sequence"), body.get("callback"), new, body.get("at"))
    return TargetMessage(message_id, body["project_id"], body["job_id"], arrivals, spec, *rest)


def _portions(arrivals: Sequence[Arrival], room: int) -> Iterator[list[Arrival]]:
    portion: list[Arrival] = []
    size = 0
    for arrival in arrivals:
        length = len(json.dumps(arrival))
        if portion and (len(portion) == _TARGETS_A_MESSAGE or size + length > room):
            yield portion
            portion, size = [], 0
        portion.append(arrival)
        size += length
    if portion:
        yield portion


# --- submit
# Accepts requests: writes a Task for each target and queues the targets. The hot path: two AWS calls when warm.

_REMEMBERED_SECONDS = 300
# Shorter than elsewhere, because submits are frequent. A name that takes longer is checked when the callback is sent.
_CALLBACK_CHECK_SECONDS = 0.2
# A changed quota takes effect after this time. Fewer targets than this are counted in the process only.
_QUOTAS_SECONDS, _TARGETS_A_WRITE = 10, 500
SUBMIT = "download.submit"
# More Tasks than this take many seconds to write, and the answer would have megabytes.
TASKS_A_SUBMIT = 1000
# `activate_at` may be this many seconds ahead.
MOST_AHEAD = 7 * 86400
NO_SEQUENCES: Mapping[Target, int] = {}


@dataclass(frozen=True, slots=True)
class Submitted:
    job: Job
    tasks: Sequence[Task]


def _require_daily_quota(d: Distribution, project_id: str, targets: int) -> None:
    """QuotaExceeded if the targets exceed the day's quota, or if the day's egress or runner time is used up."""
    now = d.clock()
    quotas, used = _usage_of(d, project_id, now)
    pending = d.uncounted_targets.get((project_id, f"{now:%Y-%m-%d}"), 0) + targets
    limit = daily_limit(quotas, TARGETS)
    if limit is not None and used.get(TARGETS, 0) + pending > limit:
        raise day_exceeded(quotas, TARGETS, now)
    for count in (EGRESS, RUNNER_SECONDS):
        if is_used_up(quotas, used, count):
            raise day_exceeded(quotas, count, now)


def _count_targets(d: Distribution, project_id: str, targets: int) -> None:
    """Counts the targets of a submit towards the day's quota. Not called for a repeat, so nothing is counted twice."""
    now = d.clock()
    day = (project_id, f"{now:%Y-%m-%d}")
    pending = d.uncounted_targets.get(day, 0) + targets
    d.uncounted_targets = {**(d.uncounted_targets if len(d.uncounted_targets) < REMEMBERED else {}), day: pending}
    if pending >= _TARGETS_A_WRITE:
        quotas, _ = _usage_of(d, project_id, now)
        try:
            counts = d.usage.add_today(project_id, now, **{TARGETS: pending})
        except Exception:
            # The Tasks are stored and must be queued. The next submit counts these targets, too.
            logger.exception("targets were not counted", project_id=project_id)
            return
        d.known_quotas[project_id] = (now.timestamp() + _QUOTAS_SECONDS, quotas, counts)
        d.uncounted_targets.pop(day)


def _usage_of(d: Distribution, project_id: str, now: datetime) -> tuple[Quotas, dict[str, int]]:
    until, quotas, used = d.known_quotas.get(project_id, (0.0, None, {}))
    if quotas is None or until <= now.timestamp():
        quotas, used = d.usage.quotas_today([project_id], now).get(project_id, (quotas_from({}), {}))
        d.known_quotas[project_id] = (now.timestamp() + _QUOTAS_SECONDS, quotas, used)
    return quotas, used


def submit(
    d: Distribution,
    project_id: str,
    spec: TransferSpec,
    targets: Sequence[Target],
    callback: str | None = None,
    *,
    who: str = SYSTEM,
    after: int = -1,
    action: str = SUBMIT,
    source: str = "",
    remarks: Remarks = NO_REMARKS,
    is_admin: bool = False,
    sequences: Mapping[Target, int] = NO_SEQUENCES,
) -> Submitted:
    """Stores a Task for each target and queues the targets. FileNotFound if the file is neither stored nor ingested.

    Above 1,000 targets, collect_targets writes the Tasks, and the result lists none. The message is sent last, because
    it starts the delivery.

    `after`: use a later window than this one. `source`: the Job that a redrive repeats. `is_admin`: whether the caller
    has an admin key. `sequences`: those of targets that get older content; hosts compare them with the sequence of what
    they have. `action`: the action in the audit line; if it is empty, no line is written.

    If a request died, its repeat goes on with the Job and the Tasks of the first run, and sends the message. The first
    run may have sent the message, too; a second one changes nothing."""
    writes_tasks = len(targets) <= TASKS_A_SUBMIT
    if made := made_before():
        job, at = d.jobs.require(project_id, job_key(made["job_id"])), made["at"]
        expires_at = d.windows.needed_until(d.clock(), spec)
        tasks = _tasks(job, targets, at, callback, sequences)
        if writes_tasks:
            d.tasks.add_missing(tasks, expires_at)
        _queue(d, job, tasks, callback, at, expires_at, writes_tasks=writes_tasks)
        return Submitted(job, tasks if writes_tasks else [])
    require_admin(spec.target_file_dir, is_admin)
    if not d.uses_agents:
        require_grant(d, project_id, spec, targets)
    _check_activation(d, spec)
    _require_file(d, project_id, spec)
    if callback:
        _check_callback(d, project_id, callback)
    _require_daily_quota(d, project_id, len(targets))
    least = max(sequences.values(), default=0)
    job = job_of_window(d, project_id, spec, after=after, remarks=remarks, least=least)
    now = d.clock()
    expires_at = d.windows.needed_until(now, spec)
    at = iso(now)
    tasks = _tasks(job, targets, at, callback, sequences)
    written = tasks if writes_tasks else []
    line = _audit_line(job, tasks, now, who, action, source) if action else None
    d.tasks.add(written, expires_at, line, noted(job_id=job.job_id, at=at))
    _count_targets(d, project_id, len(targets))
    _queue(d, job, tasks, callback, at, expires_at, writes_tasks=writes_tasks)
    return Submitted(job, written)


def _tasks(
    job: Job, targets: Sequence[Target], at: str, callback: str | None, sequences: Mapping[Target, int]
) -> list[Task]:
    """A Task for each target. In a request with an Idempotency-Key, each run gives the Tasks the same ids."""
    claim, turns = current_claim(), Counter[Target]()

    def new_uuid(target: Target) -> str:
        if claim is None:
            return str(uuid.uuid4())
        turns[target] += 1
        return str(uuid.UUID(digest(claim.seed, *target, str(turns[target]), length=32), version=4))

    return [
        Task(job.project_id, new_uuid(target), job.job_id, target, at, at, callback, sequences.get(target))
        for target in targets
    ]


def _queue(
    d: Distribution,
    job: Job,
    tasks: Sequence[Task],
    callback: str | None,
    at: str,
    expires_at: int,
    *,
    writes_tasks: bool,
) -> None:
    arrivals = [Arrival(*task.target, task.uuid, callback is not None, task.sequence) for task in tasks]
    new = None if writes_tasks else NewTasks(at, callback)
    try:
        d.target_messages.send(job, arrivals, callback, new, at=at)
    except Exception:
        logger.exception("the queue failed: the targets are bound directly", job_id=job.job_id)
        _bind_directly(d, job, tasks, arrivals, expires_at, writes_tasks=writes_tasks)


def require_admin(target_file_dir: str, is_admin: bool) -> None:
    """ScopeMissing if the directory is that of the hosts' agent, and the caller does not have an admin key."""
    if not is_admin and is_agent_directory(target_file_dir):
        raise ScopeMissing(
            f"{AGENT_DIRECTORY} is the directory of the hosts' agent, whose files run as root: only an admin key "
            f"may send to {target_file_dir}"
        )


def _bind_directly(
    d: Distribution,
    job: Job,
    tasks: Sequence[Task],
    arrivals: Sequence[Arrival],
    expires_at: int,
    *,
    writes_tasks: bool,
) -> None:
    """Binds the targets without the queue. If that fails too, deletes the Tasks and raises the error.

    In a request with an Idempotency-Key the Tasks stay, because the repeat goes on with them. If the queue accepted
    messages and its answer was lost, they bind the same targets again, which changes nothing."""
    from tidegate.distribution.window import bind

    try:
        if not writes_tasks:
            # The queue may have accepted some messages: collect_targets then writes the same Tasks.
            d.tasks.add_missing(tasks, expires_at)
        bind(d, job.project_id, job.job_id, arrivals)
    except Exception as error:
        if current_claim() is not None:
            # An earlier run of the request may have queued them. Not a refusal, which would free the key.
            raise Busy("the targets could not be queued: repeat this request in a few seconds") from error
        d.tasks.delete(tasks)
        raise


def _check_activation(d: Distribution, spec: TransferSpec) -> None:
    if spec.activate_at is None:
        return
    ahead = spec.until_activation(d.clock().timestamp())
    if not d.uses_agents:
        why = "is not possible with the transfer engine of this installation: submit without it"
    elif not ahead:
        why = f"must be in the future: it is {iso(d.clock())} now, and {spec.activate_at} was given"
    elif ahead > MOST_AHEAD:
        why = f"must be at most {MOST_AHEAD // 86400} days ahead: {spec.activate_at} was given"
    elif spec.waves:
        why = "cannot be combined with waves, because all hosts switch at the same time: leave one of them out"
    else:
        return
    raise Invalid(f"activate_at {why}", errors=[{"loc": ["body", "activate_at"], "msg": why}])


def _require_file(d: Distribution, project_id: str, spec: TransferSpec) -> None:
    now, signature = d.clock().timestamp(), spec.file_signature
    extra = spec.extra_seconds(d.windows.lasts, now)
    if not extra and d.known_contents.get((project_id, signature), 0) > now:
        return
    # A write instead of a read: it protects the file against deletion while a Job may need it.
    until = now + _REMEMBERED_SECONDS + d.windows.lasts + extra
    content = d.contents.use(project_id, signature, until)
    if content is None or content.state not in (READY, COMING):
        raise FileNotFound(
            f"no stored file has the signature {signature}, and no ingest is fetching it: "
            "upload it first (POST /v1/files, PUT, complete)"
        )
    if content.state == READY:
        d.known_contents[project_id, signature] = now + _REMEMBERED_SECONDS


def _check_callback(d: Distribution, project_id: str, url: str) -> None:
    project = d.projects.get(project_id)
    d.http.check_url(
        url, allow_private=project.allow_private_urls, project_id=project.project_id, seconds=_CALLBACK_CHECK_SECONDS
    )


def _audit_line(job: Job, tasks: Sequence[Task], now: datetime, who: str, action: str, source: str) -> AuditLine:
    """The audit line of a submit. It stands on the Task, or on the Job if there are several Tasks.

    The line of a redrive stands on the Job that is repeated."""
    spec, first = job.spec, tasks[0]
    place = f"{spec.target_file_dir.rstrip('/')}/{spec.file_name} as {spec.target_user}"
    if source:
        record, receivers = source, f"{len(tasks)} targets by {job.job_id}"
    elif len(tasks) == 1:
        record, receivers = spec.task_id(first.uuid), ":".join(filter(None, first.target))
    else:
        record, receivers = job.job_id, f"{len(tasks)} targets"
    why = f"to {receivers}: {place}, SHA-256 {spec.file_signature}"
    return act(job.project_id, record, now, who, action, why, states=(None, "submitted"))
