"""Routes for requests, the queue, compensation, statistics, audit and clean-up."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import AfterValidator, Field, RootModel, ValidationError, model_validator

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.common.ids import iso
from tidegate.compensation.freeze import FreezeState
from tidegate.compensation.poll import PollState
from tidegate.errors import Invalid, WrongState
from tidegate.projects.audit import NO_PROJECT, AuditFilter, AuditLine, act
from tidegate.projects.secrets import CREDENTIAL_NAME
from tidegate.queue import control
from tidegate.queue.control import ChannelStats
from tidegate.queue.log import RequestLogLine
from tidegate.queue.model import ALL, MAX_CAPACITY, Request, RequestFigures, name_fault, stats_by_type
from tidegate.queue.retention import FOREIGN, StoppedRun, clean, foreign_store, mark_again, read_archive, stopped_runs
from tidegate.queue.store import counts_since
from tidegate.records import F, view_of
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer, invalid_fields
from tidegate.web.schemas import (
    Answer,
    Body,
    ErrorAnswer,
    FileName,
    FilePath,
    FileSize,
    JsonObject,
    Number,
    Page,
    Priority,
    Signature,
    Text,
)

# --- schemas


def _channel(value: str) -> str:
    fault = name_fault(value)
    if fault:
        raise ValueError(fault)
    return value


ChannelName = Annotated[str, AfterValidator(_channel)]


class RequestBody(Body):
    type: Annotated[
        Literal["scan", "associate", "check", "download", "extract"],
        F(
            "`download` a file into the library, `scan` a subscription's source, `associate` stored content with "
            "another path, `check` that stored content is intact and its source unchanged, `extract` an archive"
        ),
    ]
    payload: Annotated[
        JsonObject,
        F(
            "fields by type. `download`: source_url, file_path; optional biz_id, app_id, file_name, signature, size, "
            "credentials, mirrors, politeness, as for POST /v1/files. `associate`: signature, file_path; optional "
            "biz_id, app_id, file_name. `check`: file_id; optional source_url, credentials. `extract`: file_id of a "
            "zip or tar archive, file_path of the folder for its files; optional globs include, exclude. `scan`: empty"
        ),
    ]
    subscription_id: Annotated[Text | None, F("the subscription that the request belongs to; required for a scan")] = (
        None
    )
    priority: Annotated[Priority | None, Field(description="1 (first) to 10 (last); default 5, for a check 8")] = None
    channel: Annotated[ChannelName | None, F("the channel of the queue")] = None
    not_before: Annotated[
        datetime | None, Field(description="do not run it before this time, ISO 8601; without an offset: UTC")
    ] = None
    dedupe_key: Annotated[
        Text | None, Field(description="while a request with this key has not ended, submitting again returns that one")
    ] = None


class BulkBody(Body):
    """Which requests, and what to do with them. Each call handles up to `limit`; repeat with `cursor` for the rest."""

    action: Annotated[
        Literal["cancel", "retry", "retry-now", "prioritize"],
        F("what to do with each of them; `retry-now` ends the back-off of those that wait for a retry"),
    ]
    priority: Annotated[Priority | None, F("the new priority, for `prioritize`")] = None
    type: Annotated[str | None, F("only requests of this type", max_length=40)] = None
    channel: Annotated[ChannelName | None, F("only requests in this channel")] = None
    status: Annotated[
        Literal["pending", "queued", "running", "failed", "paused"] | None, F("only requests with this status")
    ] = None
    subscription_id: Annotated[Text | None, F("only requests of this subscription")] = None
    limit: Annotated[int, F("the largest number of requests to change in this call", ge=1, le=100)] = 100
    cursor: Annotated[str | None, F("`next_cursor` of the previous answer", max_length=2000)] = None

    @model_validator(mode="after")
    def _check_filter(self) -> Self:
        if self.action == "prioritize" and self.priority is None:
            raise ValueError("prioritize needs a priority, 1 to 10")
        if not (self.type or self.channel or self.status or self.subscription_id):
            raise ValueError("give at least one of type, channel, status and subscription_id")
        return self


class BulkAnswer(Answer):
    changed: Annotated[int, F("number of requests that were changed")]
    skipped: Annotated[
        int, F("number of requests that were left as they are, because of their state or the quota `queued`")
    ]
    next_cursor: Annotated[
        str | None, F("pass it as `cursor` to get the next page; null or absent on the last page")
    ] = None


class PriorityBody(Body):
    priority: Priority


class CapacityBody(RootModel[dict[ChannelName, Annotated[int, Field(ge=0, le=MAX_CAPACITY)]]]):
    root: Annotated[dict[ChannelName, Annotated[int, Field(ge=0, le=MAX_CAPACITY)]], Field(min_length=1, max_length=50)]


class ScopeBody(Body):
    scope: Annotated[str, F("`all`, or the name of a channel", max_length=40)] = ALL


class RequestAnswer(Answer, record=Request):
    error: ErrorAnswer | None = None


class RequestList(Page):
    items: list[RequestAnswer]


class LogAnswer(Answer, record=RequestLogLine):
    """One step of an attempt."""

    detail: str | None = None


class LogList(Page):
    items: list[LogAnswer]


class ChannelAnswer(Answer, record=ChannelStats):
    """The load of a channel."""


class QueueStats(Answer):
    channels: Annotated[dict[str, ChannelAnswer], F("all channels of the queue")]


class TypeStats(Answer, record=RequestFigures):
    pass


class StatsAnswer(Answer):
    since: Annotated[str, F("start of the period, ISO 8601 UTC")]
    until: Annotated[str, F("end of the period, ISO 8601 UTC")]
    types: Annotated[dict[str, TypeStats], F("figures by type of request")]


class AuditAnswer(Answer, record=AuditLine):
    """One change of a record."""


class AuditList(Page):
    items: list[AuditAnswer]


class ArchiveList(Page):
    items: list[dict[str, Any]]


class CleanupBody(Body):
    confirm: Annotated[
        str | None,
        F(
            "`run_id` of a daily run that stopped itself; confirms that the next run may delete as many objects, or "
            "that the table and the bucket belong together",
            max_length=100,
        ),
    ] = None


class StoppedCleanup(Answer, record=StoppedRun):
    """A daily clean-up that stopped itself: it would have deleted too much, or table and bucket do not match."""


class CleanupAnswer(Answer):
    removed: Annotated[int, F("records that were removed")]
    objects: Annotated[int, F("objects that were removed from the bucket")]
    more: Annotated[bool, F("true if there is more to remove: call again")]
    stopped: Annotated[
        StoppedCleanup | None,
        F("the last daily run that stopped itself; absent if there is none, or after a run that need not stop"),
    ] = None


# --- request payloads

BizId = Annotated[Number, F("a number of your choice for a business; recorded, and a filter of lists")]
AppId = Annotated[Number, F("a number of your choice for an application; recorded, and a filter of lists")]

Url = Annotated[str, Field(min_length=1, max_length=4096)]
Glob = Annotated[str, Field(min_length=1, max_length=200)]
CredentialOption = Annotated[
    Annotated[str, Field(pattern=CREDENTIAL_NAME)] | None,
    F("name of a stored credential (PUT /v1/credentials/{name}) whose headers are sent to the source"),
]


class PolitenessBody(Body):
    """Limits on reading a source. If one is left out, the operator's limit applies."""

    connections: (
        Annotated[int, Field(ge=1, le=16, description="parallel connections for one file; at most 4 are used")] | None
    ) = None
    bytes_per_s: Annotated[int, Field(ge=1024, le=10**12, description="bytes per second for one file")] | None = None
    delay_s: Annotated[float, Field(ge=0, le=3600, description="seconds between two requests")] | None = None
    host_downloads: (
        Annotated[int, Field(ge=1, le=32, description="parallel downloads of the project from this host")] | None
    ) = None


PolitenessOption = Annotated[
    PolitenessBody | None, F("limits on reading the source: connections, bytes_per_s, delay_s, host_downloads")
]
Mirrors = Annotated[
    list[Url], Field(max_length=10, description="other URLs of the same file, used if the first one fails or is slow")
]


class DownloadPayload(Body):
    source_url: Annotated[Url, F("URL of the source")]
    mirrors: Mirrors = []
    politeness: PolitenessOption = None
    biz_id: BizId = 0
    app_id: AppId = 0
    file_path: Annotated[FilePath, F("path of the file in the library")]
    file_name: Annotated[FileName | None, F("name of the file")] = None
    signature: Annotated[Signature | None, F("SHA-256 of the content, 64 hexadecimal digits")] = None
    size: Annotated[FileSize | None, F("size in bytes")] = None
    credentials: CredentialOption = None


class AssociatePayload(Body):
    biz_id: BizId = 0
    app_id: AppId = 0
    file_path: Annotated[FilePath, F("path of the file in the library")]
    file_name: Annotated[FileName | None, F("name of the file")] = None
    signature: Annotated[Signature, F("SHA-256 of the content, 64 hexadecimal digits")]


class CheckPayload(Body):
    file_id: Annotated[Text, F("id of the file in the library")]
    source_url: Annotated[Url | None, F("URL of the source")] = None
    credentials: CredentialOption = None


class ExtractPayload(Body):
    file_id: Annotated[
        Text, Field(description="the archive in the library: zip (stored or deflated) or tar (plain, gzip, bzip2, xz)")
    ]
    file_path: Annotated[FilePath, Field(description="the folder in the library for the extracted files")]
    include: Annotated[
        list[Glob], Field(max_length=100, description="extract only paths that match one of these globs")
    ] = []
    exclude: Annotated[list[Glob], Field(max_length=100, description="skip paths that match one of these globs")] = []


class ScanPayload(Body):
    pass


_PAYLOADS: dict[str, type[Body]] = {
    "download": DownloadPayload,
    "associate": AssociatePayload,
    "check": CheckPayload,
    "scan": ScanPayload,
    "extract": ExtractPayload,
}


def checked_payload(type: str, payload: dict[str, Any]) -> dict[str, Any]:
    """Returns the payload without empty fields. Raises Invalid if the payload does not fit the type of request."""
    try:
        return _PAYLOADS[type].model_validate(payload).model_dump(exclude_none=True)
    except ValidationError as error:
        raise invalid_fields(
            {"loc": ("body", "payload", *found["loc"]), "msg": found["msg"]} for found in error.errors()
        ) from None


# --- routes

router = Router("Requests")
_QUEUE_TAGS = ["Queue"]

Status = Literal["pending", "queued", "running", "completed", "failed", "cancelled", "paused"]


def _stats() -> QueueStats:
    return QueueStats(
        channels={entry.channel: ChannelAnswer.model_validate(entry) for entry in app().queue.channels.stats()}
    )


@router.get("/v1/queue/stats", scope="read", tags=_QUEUE_TAGS, summary="Get the state of every channel")
def queue_stats() -> QueueStats:
    return _stats()


@router.get("/v1/queue", scope="read", tags=_QUEUE_TAGS, summary="List requests")
def list_queue(
    channel: Annotated[str | None, Query(max_length=40)] = None,
    status: Annotated[Status | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> RequestList:
    wanted = {name: value for name, value in {"channel": channel, "status": status}.items() if value}
    page = app().queue.store.list(router.caller.project_id, limit, cursor, **wanted)
    return RequestList(
        items=[RequestAnswer.model_validate(item.view()) for item in page.items], next_cursor=page.next_cursor
    )


@router.post("/v1/queue/capacity", scope="admin", tags=_QUEUE_TAGS, summary="Set the capacity of channels")
def capacity(body: CapacityBody) -> QueueStats:
    app().queue.channels.set_capacities(body.root, router.caller.key_id)
    return _stats()


@router.post("/v1/queue/pause", scope="admin", tags=_QUEUE_TAGS, summary="Pause one channel or all")
def pause_queue(body: ScopeBody | None = None) -> QueueStats:
    app().queue.channels.set_paused(body.scope if body else ALL, True, router.caller.key_id)
    return _stats()


@router.post("/v1/queue/resume", scope="admin", tags=_QUEUE_TAGS, summary="Resume one channel or all")
def resume_queue(body: ScopeBody | None = None) -> QueueStats:
    app().queue.channels.set_paused(body.scope if body else ALL, False, router.caller.key_id)
    return _stats()


# --- operations

_OPERATIONS_TAGS = ["Operations"]
_DEFAULT_PERIOD = timedelta(days=7)
_EPOCH, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def in_utc(moment: datetime, name: str) -> datetime:
    """Returns the moment in UTC. A moment without an offset counts as UTC. Raises Invalid if UTC has no such date."""
    try:
        return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC)
    except OverflowError as error:
        message = f"{name} is {moment.isoformat()}, which is outside the years 1 to 9999 in UTC: choose another time"
        raise Invalid(message, errors=[{"loc": ["query", name], "msg": message}]) from error


@router.get("/v1/stats", scope="read", tags=_OPERATIONS_TAGS, summary="Get statistics of requests by type")
def stats(
    since: Annotated[
        datetime | None, Query(description="ISO 8601; rounded down to the full hour; default: seven days ago")
    ] = None,
) -> StatsAnswer:
    now = app().clock()
    start = in_utc(since, "since") if since else now - _DEFAULT_PERIOD
    start = start.replace(minute=0, second=0, microsecond=0)
    figures = stats_by_type(counts_since(app().table, router.caller.required_project(), iso(start)))
    types = {kind: TypeStats.model_validate(found) for kind, found in figures.items()}
    return StatsAnswer(since=iso(start), until=iso(now), types=types)


@router.get("/v1/audit", scope="read", tags=_OPERATIONS_TAGS, summary="List changes: who, when, why")
def audit(
    record: Annotated[str | None, Query(max_length=2048, description="only changes of this record, by its id")] = None,
    actor: Annotated[
        str | None, Query(max_length=200, description="only changes by this key_id, or by `system`")
    ] = None,
    action: Annotated[str | None, Query(max_length=60, description="only this action, such as `key.create`")] = None,
    since: Annotated[datetime | None, Query(description="ISO 8601; only changes at or after this time")] = None,
    until: Annotated[datetime | None, Query(description="ISO 8601; only changes at or before this time")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> AuditList:
    wanted = AuditFilter(record, actor, action, _bound(since), _bound(until))
    page = app().projects.audit.list(router.caller.required_project(), limit, cursor, wanted)
    items = [AuditAnswer.model_validate(view_of(line)) for line in page.items]
    return AuditList(items=items, next_cursor=page.next_cursor)


def _bound(given: datetime | None) -> datetime | None:
    """Returns a bound of the audit filter in UTC; None if none is given.

    A date outside the calendar is replaced by the nearest date that works.
    """
    if given is None:
        return None
    try:
        return max(given.replace(tzinfo=given.tzinfo or UTC).astimezone(UTC), _EPOCH)
    except OverflowError:
        return _EPOCH if given.year == 1 else _LAST


@router.post("/v1/cleanup", scope="admin", tags=_OPERATIONS_TAGS, summary="Remove expired records and files")
def cleanup(body: CleanupBody | None = None) -> CleanupAnswer:
    queue, who, run_id = app().queue, router.caller.key_id, body.confirm if body else None
    app().freeze.require_thawed()
    # Recorded separately: up to a thousand records and their objects do not fit into one transaction.
    action = "cleanup.confirm" if run_id else "cleanup.run"
    app().projects.audit.record(act(NO_PROJECT, "cleanup", app().clock(), who, action, run_id or ""))
    if run_id:
        confirmed = stopped_runs(queue).confirm(run_id, who)
        if confirmed.kind == FOREIGN:
            mark_again(queue, confirmed)
    if foreign := foreign_store(queue):
        raise WrongState(f"{foreign.reason}: nothing was deleted; if they do belong together, confirm {foreign.run_id}")
    cleaned, stopped = clean(queue), stopped_runs(queue).get()
    return CleanupAnswer(
        removed=cleaned.removed,
        objects=cleaned.objects,
        more=cleaned.more,
        stopped=StoppedCleanup.model_validate(stopped) if stopped else None,
    )


@router.get("/v1/archive", scope="read", tags=_OPERATIONS_TAGS, summary="List archived requests of a day")
def archive(
    day: Annotated[date, Query(description="the day of the clean-up that archived them, such as 2026-11-16")],
    type: Annotated[str | None, Query(max_length=40)] = None,
    status: Annotated[Literal["completed", "failed", "cancelled"] | None, Query()] = None,
    request_id: Annotated[str | None, Query(max_length=200)] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ArchiveList:
    fields = {"type": type, "status": status, "request_id": request_id}
    wanted = {name: value for name, value in fields.items() if value}
    page = read_archive(app().queue, router.caller.project_id, day, limit, cursor, **wanted)
    return ArchiveList(items=page.items, next_cursor=page.next_cursor)


# --- requests


def _request_answer(request: Request) -> RequestAnswer:
    return RequestAnswer.model_validate(request.view())


@router.post("/v1/requests", scope="write", summary="Submit a request", status_code=202, middlewares=[idempotent])
def create(body: RequestBody) -> Response[RequestAnswer]:
    from tidegate.ingest.submit import submit

    caller = router.caller
    if made := made_before():
        return answer(show_request(made["request_id"]), 202)
    request = submit(
        app().ingest,
        caller.project_id,
        body.type,
        checked_payload(body.type, body.payload),
        subscription_id=body.subscription_id,
        priority=body.priority,
        channel=body.channel,
        not_before=in_utc(body.not_before, "not_before") if body.not_before else None,
        dedupe_key=body.dedupe_key,
        who=caller.key_id,
    )
    return answer(_request_answer(request), 202)


@router.post("/v1/requests/bulk", scope="write", summary="Cancel, retry or prioritise many requests")
def bulk(body: BulkBody) -> BulkAnswer:
    caller = router.caller
    names = ("type", "channel", "status", "subscription_id")
    wanted = {name: value for name in names if (value := getattr(body, name))}
    # Charged by the units that it writes: about one request for each change.
    outcome = control.act_on_many(
        app().queue,
        caller.project_id,
        body.action,
        wanted,
        body.limit,
        body.cursor,
        priority=body.priority,
        who=caller.key_id,
    )
    return BulkAnswer.model_validate(outcome)


@router.get("/v1/requests/<request_id>", scope="read", summary="Get a request")
def show_request(request_id: str) -> RequestAnswer:
    return _request_answer(app().queue.get(router.caller.project_id, request_id))


@router.get("/v1/requests/<request_id>/log", scope="read", summary="List the steps of a request")
def log(request_id: str, limit: Limit = 20, cursor: Cursor = None) -> LogList:
    caller = router.caller
    app().queue.get(caller.project_id, request_id)
    page = app().queue.log.list(caller.project_id, request_id, limit, cursor)
    shown = [line.view(with_stack=caller.is_admin) for line in page.items]
    return LogList(items=[LogAnswer.model_validate(line) for line in shown], next_cursor=page.next_cursor)


@router.post("/v1/requests/<request_id>/cancel", scope="write", summary="Cancel a request")
def cancel(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _request_answer(control.cancel(app().queue, caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/pause", scope="write", summary="Pause a request")
def pause_request(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _request_answer(control.pause(app().queue, caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/resume", scope="write", summary="Resume a paused request")
def resume_request(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _request_answer(control.resume(app().queue, caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/retry", scope="write", summary="Retry a failed request")
def retry(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _request_answer(control.retry(app().queue, caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/retry-now", scope="write", summary="End the back-off of a request")
def retry_now(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _request_answer(control.retry_now(app().queue, caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/prioritize", scope="write", summary="Change the priority of a request")
def prioritize(request_id: str, body: PriorityBody) -> RequestAnswer:
    caller = router.caller
    return _request_answer(control.prioritize(app().queue, caller.project_id, request_id, body.priority, caller.key_id))


# --- freeze
# Routes that freeze and thaw the system: for incidents, for a restored table, for a move.

# The most executions that one call stops, limited by StopExecution's rate and by API Gateway's time-out.
_MOST_STOPPED = 100


class FreezeBody(Body):
    reason: Annotated[str, Field(min_length=1, max_length=500, description="why; everyone sees it in the console")]


class FreezeAnswer(Answer, record=FreezeState):
    """Whether the system is frozen; if it is, why, since when, and by which key."""


class ReconcileAnswer(Answer):
    stopped: Annotated[int, Field(description="executions that this call stopped")]
    more: Annotated[bool, Field(description="call again: more executions may run")]


@router.post("/v1/ops/freeze", scope="admin", tags=_OPERATIONS_TAGS, summary="Freeze: start nothing new")
def freeze(body: FreezeBody) -> FreezeAnswer:
    return FreezeAnswer.model_validate(app().freeze.freeze(body.reason, router.caller.key_id))


@router.post("/v1/ops/thaw", scope="admin", tags=_OPERATIONS_TAGS, summary="Thaw: start everything that is due")
def thaw() -> FreezeAnswer:
    app().thaw(router.caller.key_id)
    return FreezeAnswer.model_validate(app().freeze.now())


@router.post("/v1/ops/reconcile", scope="admin", tags=_OPERATIONS_TAGS, summary="Reconcile with a restored table")
def reconcile() -> ReconcileAnswer:
    app().freeze.new_timeline(router.caller.key_id)
    stopped, more = app().stop_executions(_MOST_STOPPED)
    return ReconcileAnswer(stopped=stopped, more=more)


# --- compensation


class CompensationAnswer(Answer):
    interval_s: Annotated[int, F("current number of seconds between two polls")]
    multiplier: Annotated[
        int, F("the current interval in multiples of the shortest one; it grows while nothing is overdue")
    ]
    queue_size: Annotated[
        int, F("messages in the queue that starts requests; while it has any, the poll leaves recent requests to it")
    ]
    last_poll: Annotated[str | None, F("when the last poll ran, ISO 8601 UTC")]
    next_poll: Annotated[str, F("when the next poll runs, ISO 8601 UTC")]
    compensated_total: Annotated[int, F("pieces of overdue work that were started since the deployment")]


def _compensation_answer(poll: PollState, queue_size: int) -> CompensationAnswer:
    return CompensationAnswer(
        interval_s=poll.interval_s,
        multiplier=max(1, poll.multiplier),
        queue_size=queue_size,
        last_poll=iso(poll.last_poll) if poll.last_poll else None,
        next_poll=iso(poll.next_poll),
        compensated_total=poll.compensated_total,
    )


@router.get(
    "/v1/compensation", scope="read", tags=_OPERATIONS_TAGS, summary="Get the state of the poll for overdue work"
)
def show_compensation() -> CompensationAnswer:
    return _compensation_answer(*app().compensation.status())


@router.post("/v1/compensation/trigger", scope="admin", tags=_OPERATIONS_TAGS, summary="Poll for overdue work now")
def trigger() -> CompensationAnswer:
    app().compensation.trigger(router.caller.key_id)
    return _compensation_answer(*app().compensation.status())
