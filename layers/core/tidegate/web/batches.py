"""Routes for batches and businesses, with their bodies and answers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator, ConfigDict, Field

from tidegate.app import app
from tidegate.batches.batches import MOST_ITEMS as MOST_DRY_ITEMS
from tidegate.batches.batches import BusinessEntry
from tidegate.batches.model import (
    HIGHEST_RATE,
    ITEM_TIMEOUT,
    LONGEST_ITEM_TIMEOUT,
    LOWEST_RATE,
    MOST_ITEMS_PER_CALL,
    MOST_RUNNERS,
    MOST_WORKERS,
    Batch,
    Business,
    NewBatch,
    seconds_of_day,
)
from tidegate.web.idempotency import idempotent
from tidegate.web.resolver import count_that_fit
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, Priority, Text, without_defaults

# --- schemas
# Bodies and answers of batches and businesses.

Url = Annotated[str, Field(min_length=1, max_length=2000)]
Index = Annotated[int, Field(ge=0, le=10**15)]
Rate = Annotated[float, Field(ge=LOWEST_RATE, le=HIGHEST_RATE)]
MaxErrors = Annotated[int, Field(ge=1, le=10**15, description="stop the batch when this many items did not succeed")]
MaxFailed = Annotated[
    int, Field(ge=0, le=10**15, description="stop the batch when more items than this did not succeed")
]
MaxFailedPercent = Annotated[float, Field(ge=0, le=100, description="like `max_failed`, in percent of the total")]
OnItemFailure = Annotated[
    str,
    Field(
        pattern="^(stop|skip)$",
        description="after an item has used up its retries: `stop` the batch, or `skip` the item",
    ),
]
ItemState = Annotated[str, Field(pattern="^(failed|abandoned|recovered)$")]
AuthCode = Annotated[str, Field(min_length=1, max_length=200)]


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _stored_lines(logs: list[Any]) -> list[Any]:
    """The log lines that are stored, cut to their longest length: a result must fit into one item of the table."""
    from tidegate.batches.workers import read_answer

    lines = read_answer({"result": "ok", "logs": logs}).lines
    return [{"level": level, "message": message} for level, message in lines]


class BusinessBody(Body):
    name: Text
    process_url: Url
    before_create_url: Url | None = None
    before_run_url: Url | None = None
    process_stop_url: Url | None = None
    auth_code: AuthCode | None = None
    rate: Annotated[Rate, Field(description="items per second, shared by all its batches")] | None = None


class BusinessAnswer(Answer):
    biz_id: str
    name: str
    process_url: str
    before_create_url: str | None = None
    before_run_url: str | None = None
    process_stop_url: str | None = None
    has_auth_code: bool
    rate: float | None = None
    created_at: str


class BusinessList(Answer):
    items: list[BusinessAnswer]
    next_cursor: str | None = None


class SourceBody(Body):
    """A file of the library whose rows are the items."""

    file_id: Text
    format: Annotated[str, Field(pattern="^(csv|ndjson)$")] | None = None


def _time_of_day(text: str) -> str:
    seconds_of_day(text)
    return text


TimeOfDay = Annotated[str, AfterValidator(_time_of_day)]


class PauseWindowBody(Body):
    """A time of day (UTC) during which no items are sent. A window that ends before it starts spans midnight."""

    start: TimeOfDay
    end: TimeOfDay

    @property
    def seconds(self) -> tuple[int, int]:
        return seconds_of_day(self.start), seconds_of_day(self.end)


PauseWindows = Annotated[list[PauseWindowBody], Field(max_length=24)]


class BatchBody(Body):
    biz_id: Text
    name: Text
    total: Index | None = None
    rate: Rate
    concurrency: (
        Annotated[
            int,
            Field(ge=1, le=MOST_WORKERS * MOST_RUNNERS, description="parallel calls of process_url, over all runners"),
        ]
        | None
    ) = None
    start_index: Index = 0
    job_data: Any = None
    max_errors: MaxErrors | None = None
    retries: Annotated[int, Field(ge=1, le=100)] = 5
    retry_delay: Annotated[float, Field(ge=0, le=3600)] = 3
    priority: Priority = 5
    source: SourceBody | None = None
    on_item_failure: OnItemFailure = "stop"
    max_failed: MaxFailed | None = None
    max_failed_percent: MaxFailedPercent | None = None
    item_timeout: Annotated[
        int,
        Field(
            ge=1,
            le=LONGEST_ITEM_TIMEOUT,
            description="seconds to wait for a result; more than 600 only with ack `async`",
        ),
    ] = ITEM_TIMEOUT
    ack: Annotated[
        str,
        Field(
            pattern="^(sync|async)$",
            description="`sync`: the answer of process_url is the result; `async`: it is reported later",
        ),
    ] = "sync"
    items_per_call: Annotated[int, Field(ge=1, le=MOST_ITEMS_PER_CALL)] = 1
    runners: Annotated[
        int, Field(ge=1, le=MOST_RUNNERS, description="functions that process the batch in parallel and share its rate")
    ] = 1
    concurrency_key: (
        Annotated[
            str, Field(pattern=r"^[\w.:/-]{1,100}$", description="batches with the same key run one after another")
        ]
        | None
    ) = None
    pause_windows: PauseWindows = []
    progress_url: Annotated[Url, Field(description="gets the callback `batch.progress`")] | None = None
    progress_every_items: Annotated[int, Field(ge=1, le=10**15)] | None = None
    progress_every_percent: Annotated[float, Field(ge=1, le=100)] | None = None


def new_batch(body: BatchBody) -> NewBatch:
    fields = body.model_dump(exclude={"source", "pause_windows"})
    fields["pause_windows"] = tuple(window.seconds for window in body.pause_windows)
    return NewBatch(**fields, **(body.source.model_dump() if body.source else {}))


class BatchChanges(BatchBody):
    """Changes of the batch that a schedule creates. Fields that are left out stay as they are."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    biz_id: Text = ""
    name: Text = ""
    rate: Rate = LOWEST_RATE

    def fields(self) -> dict[str, Any]:
        """The fields that were given, as `NewBatch` has them."""
        changes = self.model_dump(exclude_unset=True, exclude={"source", "pause_windows"})
        if "pause_windows" in self.model_fields_set:
            changes["pause_windows"] = tuple(window.seconds for window in self.pause_windows)
        if "source" in self.model_fields_set:
            changes |= self.source.model_dump() if self.source else {"file_id": None, "format": None}
        return changes


class BatchPatch(Body):
    rate: Rate | None = None
    max_errors: MaxErrors | None = None
    on_item_failure: OnItemFailure | None = None
    max_failed: MaxFailed | None = None
    max_failed_percent: MaxFailedPercent | None = None
    pause_windows: PauseWindows | None = None
    job_data: Any = None


class ProgressAnswer(Answer):
    processed: int
    total: int | None = None
    percent: float | None = None
    errors: int
    succeeded: int
    failed: int
    abandoned: int
    failed_calls: int
    retrying: int
    awaiting: int
    rate_now: float
    offset: int
    eta: str | None = None


class SourceAnswer(Answer):
    file_id: str
    signature: str
    format: str


class BatchAnswer(Answer):
    batch_id: str
    biz_id: str
    name: str
    status: str
    progress: ProgressAnswer
    stop_reason: str | None = None
    total: int | None = None
    rate: float
    concurrency: int | None = None
    start_index: int
    max_errors: int | None = None
    retries: int
    retry_delay: float
    on_item_failure: str
    max_failed: int | None = None
    max_failed_percent: float | None = None
    item_timeout: int
    ack: str
    items_per_call: int
    runners: int
    concurrency_key: str | None = None
    pause_windows: list[dict[str, str]] | None = None
    progress_url: str | None = None
    progress_every_items: int | None = None
    progress_every_percent: float | None = None
    redrive_of: str | None = None
    source: SourceAnswer | None = None
    request_id: str | None = None
    queue_status: str | None = None
    channel: str | None = None
    last_wait_reason: str | None = None
    create_time: str
    start_time: str | None = None
    finish_time: str | None = None


class BatchList(Answer):
    items: list[BatchAnswer]
    next_cursor: str | None = None


class BizStartBody(Body):
    auth_code: AuthCode | None = None


class BizStopBody(Body):
    auth_code: AuthCode | None = None
    reason: Text | None = None


class DataBody(Body):
    job_data: Any
    auth_code: AuthCode | None = None


class ResultBody(Body):
    """The result of an item, in the format of an answer of process_url."""

    result: Annotated[str, Field(pattern="^(ok|error|abandon)$")]
    msg: Annotated[str, Field(max_length=1000)] | None = None
    stop: Annotated[str, Field(pattern="^(stop|finish)$")] | None = None
    logs: Annotated[list[Any], AfterValidator(_stored_lines)] | None = None
    attempt: Annotated[int, Field(ge=1, le=10**6)] | None = None
    auth_code: AuthCode | None = None


class ResultTaken(Answer):
    accepted: bool


class ItemAnswer(Answer):
    index: int
    state: str
    attempts: int
    answer: dict[str, Any]
    job_data: Any = None
    batch_data: Any = None


class ItemList(Answer):
    items: list[ItemAnswer]
    next_cursor: str | None = None


class ResultsAnswer(Answer):
    url: str
    file_name: str
    expires_in: int


class DryRunBody(Body):
    items: Annotated[int, Field(ge=1, le=MOST_DRY_ITEMS)] = 1


class DryRunItem(Answer):
    index: int
    answer: dict[str, Any]
    job_data: Any = None


class DryRunAnswer(Answer):
    items: list[DryRunItem]


class RedriveBody(Body):
    states: Annotated[list[ItemState], Field(min_length=1, max_length=3)] = ["failed"]


class LogBody(Body):
    message: Annotated[str, Field(min_length=1, max_length=1000), AfterValidator(_storable)]
    index: Index | None = None
    level: Annotated[str, Field(pattern="^[a-z]{1,20}$")] = "info"


class LogsBody(Body):
    items: Annotated[list[LogBody], Field(min_length=1, max_length=100)]


class LogAnswer(Answer):
    log_id: str
    time: str
    index: int | None = None
    level: str
    message: str


class LogList(Answer):
    items: list[LogAnswer]
    next_cursor: str | None = None


class LogsAdded(Answer):
    added: int


class LogsExported(Answer):
    task_id: str


# --- businesses
# Routes for businesses: the services that process the items of batches.

router = Router()
_TAGS = ["Batches"]


def _business_answer(business: Business) -> BusinessAnswer:
    hooks = ("process_url", "before_create_url", "before_run_url", "process_stop_url")
    fields = {name: getattr(business, name) for name in ("biz_id", "name", *hooks, "rate", "created_at")}
    return BusinessAnswer(**fields, has_auth_code=business.auth_code_sha256 is not None)


@router.post(
    "/v1/biz", scope="write", tags=_TAGS, summary="Register a business", status_code=201, middlewares=[idempotent]
)
def register(body: BusinessBody) -> Response[BusinessAnswer]:
    caller, entry = router.caller, BusinessEntry(**body.model_dump())
    return answer(_business_answer(app().batches.businesses.add(caller.project_id, entry, caller.key_id)), 201)


@router.get("/v1/biz", scope="read", tags=_TAGS, summary="List businesses")
def list_businesses(limit: Limit = 20, cursor: Cursor = None) -> BusinessList:
    page = app().batches.businesses.list(router.caller.project_id, limit, cursor)
    return BusinessList(items=[_business_answer(business) for business in page.items], next_cursor=page.next_cursor)


@router.get("/v1/biz/<biz_id>", scope="read", tags=_TAGS, summary="Get a business")
def show_business(biz_id: str) -> BusinessAnswer:
    return _business_answer(app().batches.businesses.get(router.caller.project_id, biz_id))


@router.put("/v1/biz/<biz_id>", scope="write", tags=_TAGS, summary="Replace a business")
def replace(biz_id: str, body: BusinessBody) -> BusinessAnswer:
    caller, entry = router.caller, BusinessEntry(**body.model_dump())
    return _business_answer(app().batches.businesses.replace(caller.project_id, biz_id, entry, caller.key_id))


# --- routes
# Routes for batches: items that are sent to a business at a given rate.


def _batch_answer(batch: Batch) -> BatchAnswer:
    return BatchAnswer.model_validate(app().batches.batches.shown(batch))


def _asking(url: str | None) -> AbstractContextManager[None]:
    """Holds one of the project's slow calls, if the business is asked at a URL."""
    return app().projects.slow_calls.held(router.caller.project_id) if url else nullcontext()


@router.post(
    "/v1/batches", scope="write", tags=_TAGS, summary="Create a batch", status_code=201, middlewares=[idempotent]
)
def create(body: BatchBody) -> Response[BatchAnswer]:
    caller, new = router.caller, new_batch(body)
    business = app().batches.businesses.get(caller.project_id, new.biz_id)
    with _asking(business.before_create_url):
        made = app().batches.batches.create(caller.project_id, new, who=caller.key_id)
    return answer(_batch_answer(made), 201)


@router.get("/v1/batches", scope="read", tags=_TAGS, summary="List batches")
def list_batches(
    status: Annotated[str | None, Query(max_length=20)] = None, limit: Limit = 20, cursor: Cursor = None
) -> Response[BatchList]:
    page = app().batches.batches.list(router.caller.project_id, status, limit, cursor)
    items = [BatchAnswer.model_validate(item) for item in page.items]
    return answer(BatchList(items=items, next_cursor=page.next_cursor))


@router.get("/v1/batches/<batch_id>", scope="read", tags=_TAGS, summary="Get a batch with its progress")
def show_batch(batch_id: str) -> Response[BatchAnswer]:
    return answer(_batch_answer(app().batches.batches.get(router.caller.project_id, batch_id)))


@router.patch(
    "/v1/batches/<batch_id>",
    scope="write",
    tags=_TAGS,
    summary="Change a batch",
    status_code=202,
)
def change(batch_id: str, body: BatchPatch) -> Response[BatchAnswer]:
    caller, changes = router.caller, body.model_dump(exclude_unset=True)
    if body.pause_windows is not None:
        changes["pause_windows"] = [list(window.seconds) for window in body.pause_windows]
    return answer(
        _batch_answer(app().batches.batches.update(caller.project_id, batch_id, changes, who=caller.key_id)), 202
    )


@router.post(
    "/v1/batches/<batch_id>/start",
    scope="write",
    tags=_TAGS,
    summary="Start or resume a batch",
    status_code=202,
    middlewares=[idempotent],
)
def start(batch_id: str) -> Response[BatchAnswer]:
    caller = router.caller
    batch = app().batches.batches.get(caller.project_id, batch_id)
    business = app().batches.businesses.get(caller.project_id, batch.biz_id)
    with _asking(business.before_run_url):
        started = app().batches.control.start(caller.project_id, batch_id, caller.key_id)
    return answer(_batch_answer(started), 202)


@router.post("/v1/batches/<batch_id>/stop", scope="write", tags=_TAGS, summary="Stop a batch", status_code=202)
def stop(batch_id: str) -> Response[BatchAnswer]:
    caller = router.caller
    return answer(_batch_answer(app().batches.control.stop(caller.project_id, batch_id, caller.key_id)), 202)


@router.post(
    "/v1/batches/<batch_id>/biz-start",
    scope="write",
    tags=_TAGS,
    summary="Confirm that the business is ready",
    status_code=202,
)
def biz_start(batch_id: str, body: BizStartBody | None = None) -> Response[BatchAnswer]:
    caller, auth_code = router.caller, body.auth_code if body else None
    started = app().batches.control.biz_start(caller.project_id, batch_id, auth_code, caller.key_id)
    return answer(_batch_answer(started), 202)


@router.post(
    "/v1/batches/<batch_id>/biz-stop",
    scope="write",
    tags=_TAGS,
    summary="Stop a batch on behalf of the business",
    status_code=202,
)
def biz_stop(batch_id: str, body: BizStopBody | None = None) -> Response[BatchAnswer]:
    caller, fields = router.caller, body or BizStopBody()
    stopped = app().batches.control.biz_stop(
        caller.project_id, batch_id, fields.auth_code, fields.reason, caller.key_id
    )
    return answer(_batch_answer(stopped), 202)


@router.post(
    "/v1/batches/<batch_id>/data", scope="write", tags=_TAGS, summary="Replace the data of a batch", status_code=202
)
def set_data(batch_id: str, body: DataBody) -> Response[BatchAnswer]:
    caller = router.caller
    changed = app().batches.batches.set_data(
        caller.project_id, batch_id, body.job_data, body.auth_code, who=caller.key_id
    )
    return answer(_batch_answer(changed), 202)


@router.get(
    "/v1/batches/<batch_id>/items",
    scope="read",
    tags=_TAGS,
    summary="List items that did not succeed at once",
)
def items(
    batch_id: str,
    state: Annotated[
        ItemState | None, Query(description="only items in this state: `failed`, `abandoned` or `recovered`")
    ] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ItemList:
    page = app().batches.batches.outcomes(router.caller.project_id, batch_id, state, limit, cursor)
    found, following = page.items, page.next_cursor
    fit = count_that_fit(found)
    if fit < len(found):
        # The cursor of this list is the index of the last item.
        found, following = found[:fit], str(found[fit - 1]["index"])
    return ItemList(items=[ItemAnswer.model_validate(item) for item in found], next_cursor=following)


@router.get(
    "/v1/batches/<batch_id>/results", scope="read", tags=_TAGS, summary="Download items that did not succeed at once"
)
def results(batch_id: str) -> ResultsAnswer:
    return ResultsAnswer.model_validate(app().batches.batches.results(router.caller.project_id, batch_id))


@router.post(
    "/v1/batches/<batch_id>/items/<index>/result",
    scope="write",
    tags=_TAGS,
    summary="Report the result of an item",
    status_code=202,
)
def item_result(batch_id: str, index: Annotated[int, Path(ge=0, le=10**15)], body: ResultBody) -> Response[ResultTaken]:
    result = body.model_dump(exclude={"auth_code", "attempt"}, exclude_none=True)
    project_id = router.caller.project_id
    app().batches.batches.add_result(project_id, batch_id, index, result, body.auth_code, body.attempt)
    return answer(ResultTaken(accepted=True), 202)


@router.post(
    "/v1/batches/<batch_id>/redrive",
    scope="write",
    tags=_TAGS,
    summary="Create a batch of the failed items",
    status_code=201,
    middlewares=[idempotent],
)
def redrive(batch_id: str, body: RedriveBody | None = None) -> Response[BatchAnswer]:
    caller, states = router.caller, (body or RedriveBody()).states
    made = app().batches.batches.redrive(caller.project_id, batch_id, states, who=caller.key_id)
    return answer(_batch_answer(made), 201)


@router.post(
    "/v1/batches/<batch_id>/dry-run",
    scope="write",
    tags=_TAGS,
    summary="Try a batch with its first items",
)
def dry_run(batch_id: str, body: DryRunBody | None = None) -> DryRunAnswer:
    project_id = router.caller.project_id
    with app().projects.slow_calls.held(project_id):
        tried = app().batches.dry_run(project_id, batch_id, (body or DryRunBody()).items)
    with_data = count_that_fit(tried)
    shown = [*tried[:with_data], *(item | {"job_data": None} for item in tried[with_data:])]
    return DryRunAnswer(items=[DryRunItem.model_validate(item) for item in shown])


@router.post(
    "/v1/batches/<batch_id>/logs",
    scope="write",
    tags=_TAGS,
    summary="Add log lines to a batch",
    status_code=201,
    middlewares=[idempotent],
)
def add_logs(batch_id: str, body: LogsBody) -> Response[LogsAdded]:
    lines = [line.model_dump() for line in body.items]
    return answer(LogsAdded(added=app().batches.logs.add(router.caller.project_id, batch_id, lines)), 201)


@router.get("/v1/batches/<batch_id>/logs", scope="read", tags=_TAGS, summary="List the log lines of a batch")
def logs(
    batch_id: str,
    index: Annotated[Index | None, Query(description="only lines of this item")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> LogList:
    page = app().batches.logs.list(router.caller.project_id, batch_id, index=index, limit=limit, cursor=cursor)
    return LogList(items=[LogAnswer.model_validate(line) for line in page.items], next_cursor=page.next_cursor)


@router.post(
    "/v1/batches/<batch_id>/logs/export",
    scope="write",
    tags=_TAGS,
    summary="Export the log lines of a batch",
    status_code=202,
    middlewares=[idempotent],
)
def export_logs(batch_id: str) -> Response[LogsExported]:
    caller = router.caller
    return answer(LogsExported(task_id=app().batches.export_logs(caller.project_id, batch_id, caller.key_id)), 202)
