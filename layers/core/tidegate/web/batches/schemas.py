"""Bodies and answers of batches and businesses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Field

from tidegate.batches.dry_run import MOST_ITEMS as MOST_DRY_ITEMS
from tidegate.batches.model import (
    HIGHEST_RATE,
    ITEM_TIMEOUT,
    LONGEST_ITEM_TIMEOUT,
    LOWEST_RATE,
    MOST_ITEMS_PER_CALL,
    MOST_RUNNERS,
    MOST_WORKERS,
    NewBatch,
)
from tidegate.batches.pause_windows import seconds_of_day
from tidegate.web.schemas import Answer, Body, Priority, Text

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
    from tidegate.batches.run.answers import read_answer

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
