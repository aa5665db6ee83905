"""The request queue: submits requests, runs their machines, takes heartbeats, ends them or queues them again."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from itertools import count, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.clients import Machines, Message, SqsQueue
from tidegate.aws.table import ConditionFailed, Table, Write, put, put_new
from tidegate.common.ids import Clock, iso, new_id
from tidegate.compensation.freeze import Freeze
from tidegate.errors import (
    Busy,
    Conflict,
    DomainError,
    Invalid,
    LeaseLost,
    QuotaExceeded,
    RecordNotFound,
    RequestTimedOut,
    WorkerLost,
)
from tidegate.notifications.notices import Notice, Notifier, notice_id_for
from tidegate.projects.audit import SYSTEM, AuditLine
from tidegate.projects.limits import UsageStore
from tidegate.projects.projects import ProjectStore
from tidegate.queue import model as request_policies
from tidegate.queue.log import RequestLog
from tidegate.queue.model import (
    BACKOFF,
    DEFAULT_PRIORITY,
    LONGEST_RETRY_AFTER,
    PENDING,
    RUNNING,
    Policy,
    Request,
    Usage,
    moved,
    notice_kind,
)
from tidegate.queue.store import (
    CHANNEL,
    MUTEX,
    QUEUE_RETRY_SECONDS,
    REQUEST,
    SLOT,
    ChannelStore,
    Refused,
    RequestStore,
    audit_line,
)

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_sqs import SQSClient

    from tidegate.aws.s3 import BucketListing
    from tidegate.queue.control import Channels
    from tidegate.queue.retention import RecordOwners
    from tidegate.settings import Settings

logger = Logger(service="tidegate", child=True)


# A message that asks for the same run as an earlier one is dropped, but not for longer than this: the earlier one may
# have become a dead letter.
_SAME_RUN_SECONDS = 10


class AdmissionQueue:
    """Sends the messages that run admission: at once in the channel's FIFO group, or later as a delayed message."""

    def __init__(self, channels: ChannelStore, admission: SqsQueue, wakeups: SqsQueue, clock: Clock) -> None:
        self._channels = channels
        self._admission = admission
        self._wakeups = wakeups
        self._clock = clock
        # The last message of this process to each channel.
        self._sent: dict[str, str] = {}

    def trigger(self, *channels: str) -> None:
        """Has admission run for each channel, in a run that begins after this call.

        Call it after the write that the run must see. The id of the message contains the number of runs that have
        begun. So until the next run begins, SQS drops further messages as duplicates, and many callers share one run.
        """
        names = {name: self._next_run(name) for name in dict.fromkeys(channels)}
        wanted = {name: run for name, run in names.items() if self._sent.get(name) != run}
        if self._send(self._admission, *(Message({"channel": name}, name, run) for name, run in wanted.items())):
            self._sent |= wanted

    def _next_run(self, channel: str) -> str:
        try:
            runs = self._channels.runs_begun(channel)
        except (ClientError, BotoCoreError):
            return uuid.uuid4().hex
        return f"{channel}-{runs}-{int(self._clock().timestamp()) // _SAME_RUN_SECONDS}"

    def trigger_anew(self, channel: str) -> None:
        """As `trigger`, but always sends a message. A message that was sent before for the next run may be lost."""
        self._send(self._admission, Message({"channel": channel}, channel, uuid.uuid4().hex))

    def retry_soon(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Makes messages of failed runs visible again in seconds.

        Until then, they block the groups of their channels.
        """
        self._admission.retry_soon(records)

    def wake(self, channel: str, at: datetime, now: datetime) -> None:
        """Has admission run for the channel at the time `at`, or soon after."""
        delay = max(0, math.ceil((at - now).total_seconds()))
        self._send(self._wakeups, Message({"channel": channel, "at": iso(at)}, delay_seconds=delay))

    @staticmethod
    def _send(queue: SqsQueue, *messages: Message) -> bool:
        """Sends the messages. If that fails, logs it and returns False. Compensation then triggers the channels."""
        try:
            queue.send(*messages)
            return True
        except (ClientError, BotoCoreError, DomainError):
            logger.exception(
                "admission was not triggered; compensation will", messages=[message.body for message in messages]
            )
            return False


class RequestRunner:
    """Starts, checks and stops the state machine that runs a request.

    An execution is named by request and attempt. A long execution continues in further ones; the status of the latest
    one counts.
    """

    def __init__(
        self, machines: Machines, freeze: Freeze, arns: Mapping[str, str], policies: Mapping[str, Policy]
    ) -> None:
        self._machines = machines
        self._freeze = freeze
        self._arns = arns
        self._policies = policies

    def start(self, request: Request) -> str:
        data = {
            "project_id": request.project_id,
            "request_id": request.request_id,
            "attempt": request.attempt,
            "deadline": request.deadline,
            "name": self._name(request),
        }
        try:
            return self._machines.start(self._machine(request), self._name(request), data)
        except (ClientError, BotoCoreError) as error:
            raise Busy("the state machine of the request could not be started: try again in a few seconds") from error

    def status(self, request: Request) -> str | None:
        """RUNNING while any execution of the request runs, then how the first one ended. None if none was started."""
        machine = self._machine(request)
        _, first = self._machines.latest(machine, self._name(request))
        if first in (None, "RUNNING"):
            return first
        # The first runner of a batch may end long before the others, which are numbered without gaps.
        others = (self._machines.latest(machine, name)[1] for name in self._further_names(request, "r", 1))
        return next(other or first for other in others if other in (None, "RUNNING"))

    def stop(self, request: Request, why: str) -> None:
        """Stops all executions of the request.

        If one of them could not be stopped, tries to stop the others too, and then raises Busy.
        """
        failed: Exception | None = None
        try:
            # The request's own comes first: it starts the others, and must not start more of them.
            for name in self._started(request):
                failed = self._try_stop(request, name, why) or failed
        except (ClientError, BotoCoreError) as error:
            failed = error
        if failed:
            raise Busy("the state machine of the request could not be stopped: try again in a few seconds") from failed

    def _try_stop(self, request: Request, name: str, why: str) -> Exception | None:
        machine = self._machine(request)
        try:
            self._machines.stop(machine, self._machines.latest(machine, name)[0], why)
        except (ClientError, BotoCoreError) as error:
            return error
        return None

    def _started(self, request: Request) -> Iterator[str]:
        """The names of the first executions: the request's own, and those of a batch's further runners and indexers."""
        yield self._name(request)
        machine = self._machine(request)
        if self._policies[request.type].machine != "batch":
            return
        for part, first in (("r", 1), ("i", 0)):
            names = self._further_names(request, part, first)
            yield from takewhile(lambda name: self._machines.status(machine, name) is not None, names)

    def _machine(self, request: Request) -> str:
        return self._arns[self._policies[request.type].machine]

    def _name(self, request: Request) -> str:
        return f"{request.request_id}-{request.attempt}{self._freeze.timeline}"

    def _further_names(self, request: Request, part: str, first: int) -> Iterator[str]:
        """The first executions of a batch's other runners ("r") or indexers ("i"), as `batches/slice.py` names them."""
        return (f"{self._name(request)}-{part}{number}-1" for number in count(first))


# Called with the request as it was just read, and its progress.
ReportProgress = Callable[[Request, Mapping[str, Any]], None]


# A worker that spends longer than this in one call hangs: every call has a shorter time-out.
_LONGEST_CALL = 180.0
_BEAT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Two intervals of a worker, in seconds.

    `look`: how often it reads its request, to notice a cancellation. `beat`: how often it sends a heartbeat.
    """

    look: float
    beat: float


class RunningAttempt:
    """Tells a worker whether its attempt may continue, sends its heartbeats, and reports its progress.

    The worker calls this object after each step of the work, as often as it likes. A call does something only when
    `timing` says so.

    A call raises LeaseLost or RequestTimedOut if the worker must stop, and Frozen during a freeze if `parks` is set. As
    a context manager, the object also sends heartbeats while the work waits for a single call. Compensation replaces a
    worker that sends no heartbeats.
    """

    def __init__(
        self,
        queue: Queue,
        request: Request,
        timing: Timing,
        report_progress: ReportProgress | None = None,
        *,
        now: Callable[[], float] | None = None,
        heartbeat_sent: bool = False,
        parks: bool = True,
        worker: str = "0",
        longest_call: float = _LONGEST_CALL,
    ) -> None:
        self._parks = parks
        self._worker = worker
        self._longest_call = longest_call
        self._queue = queue
        self._request = request
        self._timing = timing
        self._report_progress = report_progress
        self._now = now or queue.monotonic
        last = self._now() if heartbeat_sent else float("-inf")
        self._last_read = self._last_heartbeat = last
        self._beating = threading.Lock()
        self._over = threading.Event()
        self._called_at = time.monotonic()
        self._cpu_before = time.process_time()
        # What the functions that worked on this attempt before had moved.
        self._bytes_before = int((request.progress or {}).get("bytes") or 0)
        self.moved_bytes = 0

    @property
    def used(self) -> Usage:
        """The CPU time, memory and moved bytes that this function has used so far for the attempt.

        CPU time and memory are those of the process, because a process in Lambda runs one function at a time.
        """
        cpu_ms = round((time.process_time() - self._cpu_before) * 1000)
        return Usage(cpu_ms, _peak_megabytes(), self.moved_bytes)

    def __enter__(self) -> Self:
        _forget_peak()
        threading.Thread(target=self._beat_on, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        self._over.set()
        if isinstance(error, DomainError):
            error.used = self.used

    def rest(self) -> None:
        """Ends this function's heartbeats, because another function continues the work.

        So compensation misses no heartbeat until that function begins.
        """
        with self._beating:
            self._over.set()
            self._queue.store.rest(self._request, self._queue.clock(), self._worker, self.used)

    def _beat_on(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            if time.monotonic() - self._called_at > self._longest_call:
                return
            if self._now() - self._last_heartbeat < _BEAT_SECONDS:
                continue
            try:
                with self._beating:
                    if not self._over.is_set():
                        self._beat(None, parks=False)
            except (LeaseLost, RequestTimedOut, RecordNotFound):
                # The work notices it by its next call.
                return
            except (ClientError, BotoCoreError, DomainError):
                logger.warning("a heartbeat was not stored", request_id=self._request.request_id)

    def _beat(self, progress: Mapping[str, Any] | None, *, parks: bool) -> Request:
        request = self._request
        attempt = (request.project_id, request.request_id, request.attempt)
        present = self._queue.heartbeat(*attempt, progress, parks=parks, worker=self._worker)
        self._last_heartbeat = self._now()
        return present

    def __call__(self, progress: Mapping[str, Any] | None = None) -> None:
        self._called_at = time.monotonic()
        if progress and "bytes" in progress:
            # `fetched`, which is not shown, leaves out what earlier attempts had fetched.
            moved = int(progress.get("fetched", int(progress["bytes"]) - self._bytes_before))
            self.moved_bytes = max(self.moved_bytes, moved)
            progress = {name: value for name, value in progress.items() if name != "fetched"}
        now = self._now()
        if now - self._last_read < self._timing.look:
            return
        self._last_read = now
        attempt = (self._request.project_id, self._request.request_id, self._request.attempt)
        if now - self._last_heartbeat < self._timing.beat:
            request = self._queue.running(*attempt, parks=self._parks)
        else:
            with self._beating:
                request = self._beat(progress, parks=self._parks)
        if progress and self._report_progress:
            self._report_progress(request, progress)


def _forget_peak() -> None:
    """Resets the kernel's record of the peak memory, because a warm process has run other requests before."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        # Without the reset, it is the peak since the process began.
        return


def _peak_megabytes() -> int:
    """The most memory that the process had at once, in MB. 0 if the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    kilobytes = next((line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")), "0")
    return math.ceil(int(kilobytes) / 1024)


# Compensation looks again after this long at a channel that waits, and at a request that no function works on.
SILENCE_SECONDS = 60
_TRIES = 5
NOTHING_USED = Usage()
# How long a dedupe_key is known after it was last used.
_DEDUPE_KEPT_SECONDS = 90 * 86400

# Returns a request of one type as callers and notices see it.
View = Callable[[Request], dict[str, Any]]
# Returns further writes for the transaction in which a request of one type ends.
Ending = Callable[[Request], Sequence[Any]]


@dataclass(eq=False, repr=False, kw_only=True)
class Queue:
    """The request queue: a request's life from submit to end. Has the settings and stores that the steps use."""

    settings: Settings
    clock: Clock
    table: Table
    sqs: SQSClient
    s3: S3Client
    machines: Machines
    freeze: Freeze
    project_store: ProjectStore
    usage: UsageStore
    notifier: Notifier

    # --- what other capabilities define for their types of requests
    views: Mapping[str, View]
    # Further writes of the transaction that ends a request, or that retries a failed one.
    endings: Mapping[str, Ending]
    restarts: Mapping[str, Ending]
    # The objects of a request that retention removes, and those that records own.
    objects_of: Mapping[str, Callable[[Request], Sequence[str]]]
    object_owners: Callable[[], Sequence[RecordOwners]]

    monotonic: Callable[[], float] = field(default=time.monotonic)

    @cached_property
    def policies(self) -> Mapping[str, Policy]:
        return request_policies.policies_from(self.settings.request_policies)

    @cached_property
    def capacities(self) -> dict[str, int]:
        return request_policies.capacities_from(self.settings.channel_capacities)

    @cached_property
    def store(self) -> RequestStore:
        return RequestStore(self.table)

    @cached_property
    def channel_store(self) -> ChannelStore:
        return ChannelStore(self.table)

    @cached_property
    def bucket(self) -> BucketListing:
        from tidegate.aws.s3 import BucketListing

        return BucketListing(self.s3, self.settings.files_bucket)

    @cached_property
    def log(self) -> RequestLog:
        return RequestLog(self.table, self.clock)

    @cached_property
    def admission_queue(self) -> AdmissionQueue:
        admission, wakeups = self.settings.admission_queue_url, self.settings.wakeups_queue_url
        return AdmissionQueue(
            self.channel_store, SqsQueue(self.sqs, admission), SqsQueue(self.sqs, wakeups), self.clock
        )

    @cached_property
    def runner(self) -> RequestRunner:
        settings = self.settings
        machines = {"ingest": settings.ingest_machine_arn, "export": settings.export_machine_arn}
        machines["batch"] = settings.batch_machine_arn
        return RequestRunner(self.machines, self.freeze, machines, self.policies)

    @cached_property
    def channels(self) -> Channels:
        from tidegate.queue.control import Channels

        return Channels(self)

    def project_usage(self, project_id: str) -> dict[str, Any]:
        """How much of its quotas a project uses: its counts by name, and the running requests of each channel."""
        return self.usage.of_project(project_id, [channel.name for channel in self.channels.all()], self.clock())

    # --- the life of a request

    def submit(
        self,
        project_id: str,
        type: str,
        channel: str | None = None,
        payload: Mapping[str, Any] | None = None,
        priority: int = DEFAULT_PRIORITY,
        subscription_id: str | None = None,
        request_id: str | None = None,
        callback: str | None = None,
        extra_writes: Sequence[Any] = (),
        *,
        timeout: int | None = None,
        not_before: datetime | None = None,
        lane: int = 0,
        slots: int = 1,
        who: str = SYSTEM,
    ) -> Request:
        """Stores a request in one transaction, then triggers admission.

        If a request with `request_id` exists already, returns that one. QuotaExceeded if the project already has as
        many waiting requests as its quota allows.
        """
        policy = self.policy(type)
        now = self.clock()
        request = Request(
            request_id=request_id or new_id("req", now),
            project_id=project_id,
            type=type,
            channel=channel or policy.channel,
            priority=priority,
            status=PENDING,
            created_at=iso(now),
            payload=dict(payload or {}),
            timeout=timeout or policy.timeout,
            subscription_id=subscription_id,
            lane=lane,
            slots=slots,
            callback=callback,
            not_before=not_before.timestamp() if not_before and not_before > now else None,
            last_wait_reason=BACKOFF if not_before and not_before > now else None,
        )
        line = AuditLine(project_id, request.request_id, iso(now), who, "submit", None, PENDING, "submitted")
        limit, queued = self.usage.queued(project_id)
        if limit is not None and queued >= limit and self.store.get(project_id, request.request_id) is None:
            # Without the transaction, which would cost as much as if it were accepted.
            raise QuotaExceeded.for_limit("queued", limit, QUEUE_RETRY_SECONDS)
        added = self.store.add(request, line, extra_writes, limit)
        if added.not_before and not_before:
            self.admission_queue.wake(added.channel, not_before, now)
        else:
            self.admission_queue.trigger(added.channel)
        return added

    def submit_once(self, project_id: str, dedupe_key: str, make: Callable[[str, Write], Request]) -> Request:
        """The unfinished request with this key. If there is none, `make(request_id, write)` submits one.

        `make` must put `write` into its transaction. This write stores that the new request has the key."""
        key = keys.dedupe(project_id, dedupe_key)
        for _ in range(_TRIES):
            held = self.table.get(key, consistent=True)
            request = self.store.get(project_id, str(held["request_id"])) if held else None
            if request is not None and not request.is_over:
                return request
            now = self.clock()
            request_id = new_id("req", now)
            item = key | {"request_id": request_id, "expires_at": int(now.timestamp()) + _DEDUPE_KEPT_SECONDS}
            write = put(item, "#request_id = :held", held=held["request_id"]) if held else put_new(item)
            try:
                return make(request_id, write)
            except ConditionFailed:
                # Another call with the key was faster, or another condition of the submission failed: read again.
                continue
        raise Busy("other calls submit requests with this dedupe_key at the same time: try again")

    def queued_limit(self, project_id: str) -> int | None:
        """How many requests of the project may wait at once; None if there is no limit."""
        return self.project_store.quotas(project_id).queued

    def policy(self, type: str) -> Policy:
        if type not in self.policies:
            raise Invalid(
                f"there is no request type {type}: use one of {', '.join(self.policies)}",
                errors=[{"loc": ["body", "type"], "msg": "unknown type"}],
            )
        return self.policies[type]

    def get(self, project_id: str, request_id: str) -> Request:
        request = self.store.get(project_id, request_id)
        if request is None:
            raise RecordNotFound(f"this project has no request {request_id[:200]}")
        return request

    def view(self, request: Request) -> dict[str, Any]:
        """The request as callers and notices see it."""
        return self.views.get(request.type, Request.view)(request)

    def views_by_id(self, project_id: str, request_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The requests that exist, as callers and notices see them, by id."""
        found = self.store.get_many((project_id, request_id) for request_id in request_ids)
        return {request_id: self.view(request) for (_, request_id), request in found.items()}

    def running(self, project_id: str, request_id: str, attempt: int, *, parks: bool = True) -> Request:
        """The request, if this attempt may still run. Workers call this before and during their work.

        LeaseLost if another attempt runs or the request has ended, RequestTimedOut after its deadline, Frozen during a
        freeze. Without `parks`, the work ignores a freeze until its next safe point.
        """
        request = self.get(project_id, request_id)
        if request.status != RUNNING or request.attempt != attempt:
            raise LeaseLost(f"attempt {attempt} is over: the request is {request.status}, attempt {request.attempt}")
        if request.deadline is not None and self.clock().timestamp() >= request.deadline:
            raise RequestTimedOut(f"the request did not end within the {request.timeout} s that it may run")
        if parks:
            self.freeze.require_thawed()
        return request

    def heartbeat(
        self,
        project_id: str,
        request_id: str,
        attempt: int,
        progress: Mapping[str, Any] | None = None,
        *,
        parks: bool = True,
        worker: str = "0",
    ) -> Request:
        """Stores a heartbeat and the progress. Each `worker` calls it every 10 s. Raises the errors of `running`."""
        request = self.running(project_id, request_id, attempt, parks=parks)
        self.store.heartbeat(request, self.clock(), worker, dict(progress) if progress else None)
        return request

    def note_wait(self, request: Request, reason: str | None) -> None:
        """Stores why a running request does not work at present. `reason` is None when the request works again."""
        self.store.note_running(request, reason)

    def finish(
        self,
        project_id: str,
        request_id: str,
        attempt: int,
        *,
        result: Mapping[str, Any] | None = None,
        error: DomainError | None = None,
        extra_writes: Sequence[Any] = (),
        used: Usage = NOTHING_USED,
        who: str = SYSTEM,
    ) -> Request:
        """Ends the request, or queues it again if the error is retryable. An outdated attempt changes nothing.

        `extra_writes` are part of the transaction that ends the request. They are not written if the request is queued
        again.
        """
        without: frozenset[str] = frozenset()
        for _ in range(_TRIES):
            request = self.get(project_id, request_id)
            if request.status != RUNNING or request.attempt != attempt:
                return request
            try:
                measured = (Usage(*error.used) if error and any(error.used) else used).added_to(request)
                return self._end(measured, result, error, extra_writes, without, who)
            except Refused as refused:
                if MUTEX in refused.parts:
                    # The mutex expired and another request may have run: this result may be outdated, so retry.
                    result, error, extra_writes = None, WorkerLost("the lease of the subscription's mutex expired"), ()
                    without |= {MUTEX}
                elif SLOT in refused.parts:
                    without |= {SLOT, CHANNEL}
                elif REQUEST not in refused.parts:
                    raise
        raise Conflict("other calls change this request at the same time: try again")

    def _end(
        self,
        request: Request,
        result: Mapping[str, Any] | None,
        error: DomainError | None,
        extra_writes: Sequence[Any],
        without: frozenset[str],
        who: str,
    ) -> Request:
        now = self.clock()
        policy = self.policy(request.type)
        fault = {"code": error.code, "detail": error.detail} if error else None
        used = 0 if error and error.progressed else request.retries
        delay = request_policies.retry_delay(policy, used, error) if error else None
        retries = used + 1
        if error and error.put_off:
            # A pause that a host asked for is as long as it says, not as the policy's delay.
            delay, retries = min(error.retry_after or policy.delay, LONGEST_RETRY_AFTER), request.retries
        if delay is not None and error is not None:
            at = now + timedelta(seconds=delay)
            again = moved(
                request,
                "retry_later",
                retries=retries,
                not_before=at.timestamp(),
                last_wait_reason=BACKOFF,
                error=fault,
                progress=None,
                deadline=None,
                worked_ms=request.worked_until(now),
                reached=max(request.reached, request.progress_made),
            )
            line = audit_line(request, again, "retry_later", who, f"{error.code}; again in {delay:g} s", now)
            self.store.move(request, again, line, now=now, without=without)
            self.admission_queue.wake(again.channel, at, now)
            self.admission_queue.trigger(again.channel)
            return again
        action = "fail" if error else "complete"
        ended = moved(
            request,
            action,
            result=dict(result) if result and not error else None,
            error=fault,
            finish_time=iso(now),
            deadline=None,
        )
        line = audit_line(request, ended, action, who, error.code if error else "done", now)
        self.close(request, ended, line, now, extra_writes=extra_writes, without=without)
        return ended

    def close(
        self,
        old: Request,
        ended: Request,
        line: AuditLine,
        now: datetime,
        *,
        extra_writes: Sequence[Any] = (),
        without: frozenset[str] = frozenset(),
    ) -> None:
        """Writes the end of a request with its notice, publishes the notice and triggers admission."""
        policy = self.policy(ended.type)
        keep = policy.keep_completed if ended.status == "completed" else policy.keep_failed
        notice = self._notice(ended, now)
        ending = self.endings.get(ended.type)
        writes = [*extra_writes, *(ending(ended) if ending else ())]
        self.store.move(
            old, ended, line, now=now, keep_seconds=keep, notice=notice, extra_writes=writes, without=without
        )
        self.notifier.publish([notice])
        self.admission_queue.trigger(ended.channel)

    def _notice(self, ended: Request, now: datetime) -> Notice:
        kind, data = notice_kind(ended.type, ended.status), self.view(ended)
        return Notice(
            notice_id=notice_id_for(kind, ended.request_id, f"{ended.status}-{ended.version}"),
            project_id=ended.project_id,
            kind=kind,
            # A batch has one request for each run, but clients watch the batch.
            record_id=str(data.get("batch_id", ended.request_id)),
            # The request of a finished or stopped batch is completed.
            status=data["status"] if data.get("status") in ("finished", "stopped") else ended.status,
            data=data,
            callback=ended.callback,
            created_at=now,
        )
