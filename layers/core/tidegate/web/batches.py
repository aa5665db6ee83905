"""Routes for batches and businesses, with their bodies and answers."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, Any, Literal, Self

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query
from pydantic import AfterValidator, ConfigDict, Field, model_serializer, model_validator

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.batches import batches, control
from tidegate.batches.model import (
    LOWEST_RATE,
    SOURCE_FIELDS,
    Backoff,
    Batch,
    BatchLogLine,
    Business,
    Index,
    NewBatch,
    NewBusiness,
    PauseWindow,
    ProgressView,
    Rate,
    RowSource,
    seconds_of_day,
)
from tidegate.queue.model import WaitReason
from tidegate.records import record_from
from tidegate.web.api import count_that_fit
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, F, Page, Text, without_defaults

# --- schemas

ItemState = Annotated[str, Field(pattern="^(failed|abandoned|recovered)$")]
_BUCKET = "[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
AuthCode = Annotated[str, F("the code that was given when the business was registered", min_length=1, max_length=200)]


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _stored_lines(logs: list[Any]) -> list[Any]:
    """Returns the log lines that are stored.

    Long lines are cut, because a result must fit into one item of the table.
    """
    from tidegate.batches.items import read_answer

    lines = read_answer({"result": "ok", "logs": logs}).lines
    return [{"level": level, "message": message} for level, message in lines]


class BusinessBody(Body, record=NewBusiness):
    auth_code: Annotated[
        AuthCode | None, F("a code that biz-start, biz-stop, data and result must contain; only its hash is stored")
    ] = None


class BusinessAnswer(Answer, record=Business):
    pass


class BusinessList(Page):
    items: list[BusinessAnswer]


class SourceBody(Body):
    """A file of the library whose rows are the items, or objects of a bucket: exactly one of `file_id`, `s3_prefix` and
    `s3_inventory`."""

    file_id: Annotated[Text | None, F("id of the file in the library")] = None
    format: Annotated[
        str | None, F("`csv` or `ndjson`; default: by the ending of the file's name", pattern="^(csv|ndjson)$")
    ] = None
    encoding: Annotated[
        Literal["utf-8", "utf-8-sig", "gb18030", "gbk", "big5", "shift_jis", "windows-1252", "utf-16"] | None,
        F("encoding of the text; a byte order mark in the file comes first; default: utf-8"),
    ] = None
    delimiter: Annotated[
        Literal[",", ";", "\t", "|"] | None, F("what separates the values of a CSV row; default: a comma")
    ] = None
    compression: Annotated[Literal["gzip"] | None, F("default: by the file's first bytes; up to 5 GiB unpacked")] = None
    s3_prefix: Annotated[
        str | None,
        F(
            "the objects with this prefix are the items, such as `s3://bucket/2026/`; the stack's parameter "
            "SourceBucket and the project's `read_from` must allow them",
            pattern=rf"^s3://{_BUCKET}/[\s\S]{{0,1024}}$",
        ),
    ] = None
    s3_inventory: Annotated[
        str | None,
        F(
            "the manifest.json of an S3 inventory in CSV, whose objects are the items; it must be allowed as well",
            pattern=rf"^s3://{_BUCKET}/[\s\S]{{0,1011}}manifest\.json$",
        ),
    ] = None

    @model_validator(mode="after")
    def _check_one(self) -> Self:
        if sum(each is not None for each in (self.file_id, self.s3_prefix, self.s3_inventory)) != 1:
            raise ValueError("must have exactly one of file_id, s3_prefix and s3_inventory")
        if self.file_id is None and (self.format or self.encoding or self.delimiter or self.compression):
            raise ValueError("format, encoding, delimiter and compression are only for a file_id")
        return self


def _time_of_day(text: str) -> str:
    seconds_of_day(text)
    return text


TimeOfDay = Annotated[str, AfterValidator(_time_of_day)]


class PauseWindowBody(Body):
    """A time of day (UTC) during which no items are sent. A window that ends before it starts spans midnight."""

    start: Annotated[TimeOfDay, F("start of the window, as HH:MM")]
    end: Annotated[TimeOfDay, F("end of the window, as HH:MM")]

    @model_serializer
    def _seconds(self) -> tuple[int, int]:
        return PauseWindow(seconds_of_day(self.start), seconds_of_day(self.end))


PauseWindows = Annotated[list[PauseWindowBody], Field(max_length=24)]


class BackoffBody(Body, record=Backoff):
    """The pauses between the attempts of an item."""

    # It is also part of a body of changes, whose schema has no defaults.
    model_config = ConfigDict(json_schema_extra=without_defaults)


class BatchBody(Body, record=NewBatch, without=SOURCE_FIELDS):
    source: Annotated[
        SourceBody | None, F("a file of the library whose rows are the items, or objects of a bucket")
    ] = None
    backoff: BackoffBody | None = None
    pause_windows: PauseWindows = []


def new_batch(body: BatchBody) -> NewBatch:
    fields = body.model_dump(exclude={"source"})
    return record_from(NewBatch, fields | (body.source.model_dump() if body.source else {}))


class BatchChanges(BatchBody):
    """Changes of the batch that a schedule creates. Fields that are left out stay as they are."""

    model_config = ConfigDict(json_schema_extra=without_defaults)

    biz_id: Annotated[Text, F("id of the registered business that processes the items (POST /v1/biz)")] = ""
    name: Annotated[Text, F("a name for people")] = ""
    rate: Annotated[Rate, F("items per second")] = LOWEST_RATE

    def fields(self) -> dict[str, Any]:
        """The fields that were given, as `NewBatch` has them."""
        changes = self.model_dump(exclude_unset=True, exclude={"source"})
        if "pause_windows" in changes:
            changes["pause_windows"] = tuple(PauseWindow(*window) for window in changes["pause_windows"])
        if "source" in self.model_fields_set:
            changes |= self.source.model_dump() if self.source else dict.fromkeys(SOURCE_FIELDS)
        return changes


class BatchPatch(Body, changes=Batch):
    backoff: BackoffBody | None = None
    pause_windows: PauseWindows | None = None
    job_data: Annotated[Any, F("any JSON; sent to process_url with every item")] = None


class ProgressAnswer(Answer, record=ProgressView):
    """How far a batch is."""


class SourceAnswer(Answer, record=RowSource):
    pass


class BackoffAnswer(Answer, record=Backoff):
    pass


class BatchAnswer(Answer, record=Batch):
    source: SourceAnswer | None = None
    backoff: BackoffAnswer | None = None
    waiting: Annotated[
        str | None, F("`business_down`: process_url does not answer; one call at a time tests it until it does")
    ] = None
    pause_windows: list[dict[str, str]] | None = None
    progress: Annotated[ProgressAnswer, F("how far the batch is")]
    queue_status: Annotated[str | None, F("status of the batch's request in the queue")] = None
    channel: Annotated[str | None, F("the channel of the queue")] = None
    last_wait_reason: WaitReason = None


class BatchList(Page):
    items: list[BatchAnswer]


class BizStartBody(Body):
    auth_code: AuthCode | None = None


class BizStopBody(Body):
    auth_code: AuthCode | None = None
    reason: Annotated[Text | None, F("the reason, for people")] = None


class DataBody(Body):
    job_data: Annotated[Any, F("any JSON; sent to process_url with every item")]
    auth_code: AuthCode | None = None


class ItemResultBody(Body):
    """The result of an item, in the format of an answer of process_url."""

    result: Annotated[
        str,
        F("`ok`, `error` (the item is retried) or `abandon` (the item is not retried)", pattern="^(ok|error|abandon)$"),
    ]
    msg: Annotated[str | None, F("the reason, for people, if the item did not succeed", max_length=1000)] = None
    stop: Annotated[
        str | None, F("`stop`: stop the batch after this item; `finish`: end it as finished", pattern="^(stop|finish)$")
    ] = None
    logs: Annotated[
        list[Any] | None, F("log lines: texts, or `{level, message}`; the first twenty are stored", check=_stored_lines)
    ] = None
    attempt: Annotated[int | None, F("number of the attempt, from 1", ge=1, le=10**6)] = None
    auth_code: AuthCode | None = None


class ResultTaken(Answer):
    accepted: Annotated[bool, F("always true: a result that does not count is refused with 409")]


class ItemAnswer(Answer):
    index: Annotated[int, F("index of the item")]
    state: Annotated[str, F("`failed`, `abandoned` or `recovered` (succeeded after a retry)")]
    attempts: Annotated[int, F("number of attempts so far")]
    answer: Annotated[dict[str, Any], F("the last answer: `result`, and `detail` with the reason (`msg`)")]
    job_data: Annotated[Any, F("the item's data, as it was sent to process_url")] = None
    batch_data: Annotated[Any, F("the batch's own job_data, if the items are rows of a file")] = None


class ItemList(Page):
    items: list[ItemAnswer]


class ResultsAnswer(Answer):
    url: Annotated[str, F("a presigned URL of a file with one line for each item: JSON lines, or CSV if asked for")]
    file_name: Annotated[str, F("name of the file")]
    expires_in: Annotated[int, F("seconds for which it is valid")]


class DryRunBody(Body):
    items: Annotated[int, F("how many items to send", ge=1, le=batches.MOST_ITEMS)] = 1


class DryRunItem(Answer):
    index: Annotated[int, F("index of the item")]
    answer: Annotated[dict[str, Any], F("the answer: `result`, and `detail` with the reason (`msg`)")]
    job_data: Annotated[
        Any, F("the item's data, as it was sent to process_url; null if the answer would be too large")
    ] = None


class DryRunAnswer(Answer):
    items: list[DryRunItem]


class BatchRedriveBody(Body):
    states: Annotated[
        list[ItemState], F("which items: `failed`, `abandoned`, `recovered`", min_length=1, max_length=3)
    ] = ["failed"]


class LogBody(Body):
    message: Annotated[str, F("text of the line", min_length=1, max_length=1000, check=_storable)]
    index: Annotated[Index | None, F("the item that the line is about")] = None
    level: Annotated[
        str, F("`info`, `warning`, `error` or another word in lower-case letters", pattern="^[a-z]{1,20}$")
    ] = "info"


class LogsBody(Body):
    items: Annotated[list[LogBody], F("the lines, up to 100", min_length=1, max_length=100)]


class BatchLogAnswer(Answer, record=BatchLogLine):
    pass


class BatchLogList(Page):
    items: list[BatchLogAnswer]


class LogsAdded(Answer):
    added: Annotated[int, F("number of lines that were added")]


class LogsExported(Answer):
    task_id: Annotated[str, F("id of the export: GET /v1/task?task_id=")]


# --- businesses

router = Router("Batches")


def _new_business(body: BusinessBody) -> NewBusiness:
    return record_from(NewBusiness, body.model_dump())


@router.post("/v1/biz", scope="write", summary="Register a business", status_code=201, middlewares=[idempotent])
def register(body: BusinessBody) -> Response[BusinessAnswer]:
    caller = router.caller
    if earlier := made_before():
        return answer(show_business(earlier["biz_id"]), 201)
    made = batches.add_business(app().batches, caller.project_id, _new_business(body), body.auth_code, caller.key_id)
    return answer(BusinessAnswer.model_validate(made), 201)


@router.get("/v1/biz", scope="read", summary="List businesses")
def list_businesses(limit: Limit = 20, cursor: Cursor = None) -> BusinessList:
    return BusinessList.model_validate(app().batches.businesses.list(router.caller.project_id, limit, cursor))


@router.get("/v1/biz/<biz_id>", scope="read", summary="Get a business")
def show_business(biz_id: str) -> BusinessAnswer:
    return BusinessAnswer.model_validate(batches.get_business(app().batches, router.caller.project_id, biz_id))


@router.put("/v1/biz/<biz_id>", scope="write", summary="Replace a business")
def replace(biz_id: str, body: BusinessBody) -> BusinessAnswer:
    caller, new = router.caller, _new_business(body)
    return BusinessAnswer.model_validate(
        batches.replace_business(app().batches, caller.project_id, biz_id, new, body.auth_code, caller.key_id)
    )


@router.delete("/v1/biz/<biz_id>", scope="write", summary="Delete an unused business", status_code=204)
def delete_business(biz_id: str) -> Response[Any]:
    caller = router.caller
    batches.delete_business(app().batches, caller.project_id, biz_id, who=caller.key_id)
    return answer(None, 204)


# --- routes


def _batch_answer(batch: Batch) -> BatchAnswer:
    return BatchAnswer.model_validate(batches.view(app().batches, batch))


def _made_before(status: int = 201) -> Response[BatchAnswer] | None:
    """Returns the answer for the batch that an earlier run of this request has created or changed.

    None if there was no such run.
    """
    if (made := made_before()) is None:
        return None
    project_id = router.caller.project_id
    # A start without asking the business creates only the request.
    batch_id = made.get("batch_id") or app().queue.get(project_id, made["request_id"]).payload["batch_id"]
    return answer(_batch_answer(batches.get(app().batches, project_id, batch_id)), status)


def _asking(url: str | None) -> AbstractContextManager[None]:
    """Holds a slot for slow calls while the business is asked.

    Without a URL, the business is not asked and needs no slot.
    """
    return app().projects.slow_calls.held(router.caller.project_id) if url else nullcontext()


@router.post("/v1/batches", scope="write", summary="Create a batch", status_code=201, middlewares=[idempotent])
def create(body: BatchBody) -> Response[BatchAnswer]:
    if earlier := _made_before():
        return earlier
    caller, new = router.caller, new_batch(body)
    business = batches.get_business(app().batches, caller.project_id, new.biz_id)
    with _asking(business.before_create_url):
        made = batches.create(app().batches, business, new, who=caller.key_id)
    return answer(_batch_answer(made), 201)


@router.get("/v1/batches", scope="read", summary="List batches")
def list_batches(
    status: Annotated[str | None, Query(max_length=20)] = None, limit: Limit = 20, cursor: Cursor = None
) -> Response[BatchList]:
    page = batches.list_batches(app().batches, router.caller.project_id, status, limit, cursor)
    return answer(BatchList.model_validate(page))


@router.get("/v1/batches/<batch_id>", scope="read", summary="Get a batch with its progress")
def show_batch(batch_id: str) -> Response[BatchAnswer]:
    return answer(_batch_answer(batches.get(app().batches, router.caller.project_id, batch_id)))


@router.patch("/v1/batches/<batch_id>", scope="write", summary="Change a batch", status_code=202)
def change(batch_id: str, body: BatchPatch) -> Response[BatchAnswer]:
    caller, changes = router.caller, body.model_dump(exclude_unset=True)
    return answer(
        _batch_answer(batches.update(app().batches, caller.project_id, batch_id, changes, who=caller.key_id)), 202
    )


@router.delete("/v1/batches/<batch_id>", scope="write", summary="Delete a batch that does not run", status_code=204)
def delete(batch_id: str) -> Response[Any]:
    caller = router.caller
    batches.delete(app().batches, caller.project_id, batch_id, who=caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/batches/<batch_id>/start",
    scope="write",
    summary="Start or resume a batch",
    status_code=202,
    middlewares=[idempotent],
)
def start(batch_id: str) -> Response[BatchAnswer]:
    if earlier := _made_before(202):
        return earlier
    caller = router.caller
    batch = batches.get(app().batches, caller.project_id, batch_id)
    business = batches.get_business(app().batches, caller.project_id, batch.biz_id)
    with _asking(business.before_run_url):
        started = control.start(app().batches, batch, business, caller.key_id)
    return answer(_batch_answer(started), 202)


@router.post("/v1/batches/<batch_id>/stop", scope="write", summary="Stop a batch", status_code=202)
def stop(batch_id: str) -> Response[BatchAnswer]:
    caller = router.caller
    return answer(_batch_answer(control.stop(app().batches, caller.project_id, batch_id, caller.key_id)), 202)


@router.post(
    "/v1/batches/<batch_id>/biz-start", scope="write", summary="Confirm that the business is ready", status_code=202
)
def biz_start(batch_id: str, body: BizStartBody | None = None) -> Response[BatchAnswer]:
    caller, auth_code = router.caller, body.auth_code if body else None
    started = control.biz_start(app().batches, caller.project_id, batch_id, auth_code, caller.key_id)
    return answer(_batch_answer(started), 202)


@router.post(
    "/v1/batches/<batch_id>/biz-stop", scope="write", summary="Stop a batch on behalf of the business", status_code=202
)
def biz_stop(batch_id: str, body: BizStopBody | None = None) -> Response[BatchAnswer]:
    caller, fields = router.caller, body or BizStopBody()
    stopped = control.biz_stop(
        app().batches, caller.project_id, batch_id, fields.auth_code, fields.reason, caller.key_id
    )
    return answer(_batch_answer(stopped), 202)


@router.post("/v1/batches/<batch_id>/data", scope="write", summary="Replace the data of a batch", status_code=202)
def set_data(batch_id: str, body: DataBody) -> Response[BatchAnswer]:
    caller = router.caller
    changed = batches.set_data(
        app().batches, caller.project_id, batch_id, body.job_data, body.auth_code, who=caller.key_id
    )
    return answer(_batch_answer(changed), 202)


@router.get("/v1/batches/<batch_id>/items", scope="read", summary="List items that did not succeed at once")
def items(
    batch_id: str,
    state: Annotated[
        ItemState | None, Query(description="only items in this state: `failed`, `abandoned` or `recovered`")
    ] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ItemList:
    page = batches.outcomes(app().batches, router.caller.project_id, batch_id, state, limit, cursor)
    found, following = page.items, page.next_cursor
    fit = count_that_fit(found)
    if fit < len(found):
        # The cursor of this list is the index of the last item.
        found, following = found[:fit], str(found[fit - 1]["index"])
    return ItemList(items=[ItemAnswer.model_validate(item) for item in found], next_cursor=following)


@router.get("/v1/batches/<batch_id>/results", scope="read", summary="Download items that did not succeed at once")
def results(
    batch_id: str,
    all: Annotated[
        bool, Query(description="all items that are done, of a batch that was created with `report`")
    ] = False,
    format: Annotated[
        Literal["jsonl", "csv"], Query(description="format of the report of all items: `jsonl` or `csv`")
    ] = "jsonl",
) -> ResultsAnswer:
    project_id = router.caller.project_id
    if all:
        return ResultsAnswer.model_validate(batches.report(app().batches, project_id, batch_id, format))
    return ResultsAnswer.model_validate(batches.results(app().batches, project_id, batch_id))


@router.post(
    "/v1/batches/<batch_id>/items/<index>/result",
    scope="write",
    summary="Report the result of an item",
    status_code=202,
)
def item_result(
    batch_id: str, index: Annotated[int, Path(ge=0, le=10**15)], body: ItemResultBody
) -> Response[ResultTaken]:
    result = body.model_dump(exclude={"auth_code", "attempt"}, exclude_none=True)
    project_id = router.caller.project_id
    batches.add_result(app().batches, project_id, batch_id, index, result, body.auth_code, body.attempt)
    return answer(ResultTaken(accepted=True), 202)


@router.post(
    "/v1/batches/<batch_id>/redrive",
    scope="write",
    summary="Create a batch of the failed items",
    status_code=201,
    middlewares=[idempotent],
)
def redrive(batch_id: str, body: BatchRedriveBody | None = None) -> Response[BatchAnswer]:
    if earlier := _made_before():
        return earlier
    caller, states = router.caller, (body or BatchRedriveBody()).states
    made = batches.redrive(app().batches, caller.project_id, batch_id, states, who=caller.key_id)
    return answer(_batch_answer(made), 201)


@router.post("/v1/batches/<batch_id>/dry-run", scope="write", summary="Try a batch with its first items")
def dry_run(batch_id: str, body: DryRunBody | None = None) -> DryRunAnswer:
    project_id = router.caller.project_id
    with app().projects.slow_calls.held(project_id):
        batch = batches.get(app().batches, project_id, batch_id)
        tried = batches.dry_run(app().batches, batch, (body or DryRunBody()).items)
    with_data = count_that_fit(tried)
    shown = [*tried[:with_data], *(item | {"job_data": None} for item in tried[with_data:])]
    return DryRunAnswer(items=[DryRunItem.model_validate(item) for item in shown])


@router.post(
    "/v1/batches/<batch_id>/logs",
    scope="write",
    summary="Add log lines to a batch",
    status_code=201,
    middlewares=[idempotent],
)
def add_logs(batch_id: str, body: LogsBody) -> Response[LogsAdded]:
    lines = [line.model_dump() for line in body.items]
    return answer(LogsAdded(added=batches.add_logs(app().batches, router.caller.project_id, batch_id, lines)), 201)


@router.get("/v1/batches/<batch_id>/logs", scope="read", summary="List the log lines of a batch")
def logs(
    batch_id: str,
    index: Annotated[Index | None, Query(description="only lines of this item")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> BatchLogList:
    page = batches.list_logs(app().batches, router.caller.project_id, batch_id, index=index, limit=limit, cursor=cursor)
    return BatchLogList.model_validate(page)


@router.post(
    "/v1/batches/<batch_id>/logs/export",
    scope="write",
    summary="Export the log lines of a batch",
    status_code=202,
    middlewares=[idempotent],
)
def export_logs(batch_id: str) -> Response[LogsExported]:
    from tidegate.exports.model import CSV, ExportOptions, ExportSpec, TableSpec

    caller = router.caller
    if earlier := made_before():
        return answer(LogsExported(task_id=earlier["request_id"]), 202)
    rows = batches.log_rows(app().batches, caller.project_id, batch_id)
    columns = {name: name for name in ("time", "index", "level", "message")}
    spec = ExportSpec(type=CSV, tables=(TableSpec(data=rows, template=columns),))
    options = ExportOptions(name="Batch logs", file_name=f"{batch_id}-logs")
    task_id = app().exports.orders.submit(caller.project_id, spec, options, caller.key_id)
    return answer(LogsExported(task_id=task_id), 202)
