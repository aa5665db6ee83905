"""Batches: N items through a business, at a rate."""

from __future__ import annotations

from typing import Annotated

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query

from tidegate.app import app
from tidegate.batches.model import Batch
from tidegate.web.batches.schemas import (
    BatchAnswer,
    BatchBody,
    BatchList,
    BatchPatch,
    BizStartBody,
    BizStopBody,
    DataBody,
    DryRunAnswer,
    DryRunBody,
    DryRunItem,
    Index,
    ItemAnswer,
    ItemList,
    ItemState,
    LogAnswer,
    LogList,
    LogsAdded,
    LogsBody,
    LogsExported,
    RedriveBody,
    ResultBody,
    ResultsAnswer,
    ResultTaken,
    new_batch,
)
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Batches"]


def _shown(batch: Batch) -> BatchAnswer:
    return BatchAnswer.model_validate(app().batches.batches.shown(batch))


@router.post(
    "/v1/batches", scope="write", tags=_TAGS, summary="Make a batch", status_code=201, middlewares=[idempotent]
)
def create(body: BatchBody) -> Response[BatchAnswer]:
    caller = router.caller
    made = app().batches.batches.create(caller.project_id, new_batch(body), who=caller.key_id)
    return answer(_shown(made), 201)


@router.get("/v1/batches", scope="read", tags=_TAGS, summary="List batches")
def list_batches(
    status: Annotated[str | None, Query(max_length=20)] = None, limit: Limit = 20, cursor: Cursor = None
) -> Response[BatchList]:
    page = app().batches.batches.list(router.caller.project_id, status, limit, cursor)
    items = [BatchAnswer.model_validate(item) for item in page.items]
    return answer(BatchList(items=items, next_cursor=page.next_cursor))


@router.get("/v1/batches/<batch_id>", scope="read", tags=_TAGS, summary="One batch and how far it is")
def show(batch_id: str) -> Response[BatchAnswer]:
    return answer(_shown(app().batches.batches.get(router.caller.project_id, batch_id)))


@router.patch(
    "/v1/batches/<batch_id>",
    scope="write",
    tags=_TAGS,
    summary="Change the rate, the limits on failures or the data",
    status_code=202,
)
def change(batch_id: str, body: BatchPatch) -> Response[BatchAnswer]:
    caller, changes = router.caller, body.model_dump(exclude_unset=True)
    if body.pause_windows is not None:
        changes["pause_windows"] = [list(window.seconds) for window in body.pause_windows]
    return answer(_shown(app().batches.batches.update(caller.project_id, batch_id, changes, who=caller.key_id)), 202)


@router.post(
    "/v1/batches/<batch_id>/start",
    scope="write",
    tags=_TAGS,
    summary="Start, or go on where it stopped",
    status_code=202,
    middlewares=[idempotent],
)
def start(batch_id: str) -> Response[BatchAnswer]:
    caller = router.caller
    return answer(_shown(app().batches.control.start(caller.project_id, batch_id, caller.key_id)), 202)


@router.post(
    "/v1/batches/<batch_id>/stop", scope="write", tags=_TAGS, summary="Stop; it keeps its place", status_code=202
)
def stop(batch_id: str) -> Response[BatchAnswer]:
    caller = router.caller
    return answer(_shown(app().batches.control.stop(caller.project_id, batch_id, caller.key_id)), 202)


@router.post(
    "/v1/batches/<batch_id>/biz-start", scope="write", tags=_TAGS, summary="The business is ready", status_code=202
)
def biz_start(batch_id: str, body: BizStartBody) -> Response[BatchAnswer]:
    caller = router.caller
    started = app().batches.control.biz_start(caller.project_id, batch_id, body.auth_code, caller.key_id)
    return answer(_shown(started), 202)


@router.post(
    "/v1/batches/<batch_id>/biz-stop", scope="write", tags=_TAGS, summary="The business cannot go on", status_code=202
)
def biz_stop(batch_id: str, body: BizStopBody) -> Response[BatchAnswer]:
    caller = router.caller
    stopped = app().batches.control.biz_stop(caller.project_id, batch_id, body.auth_code, body.reason, caller.key_id)
    return answer(_shown(stopped), 202)


@router.post("/v1/batches/<batch_id>/data", scope="write", tags=_TAGS, summary="Change the data", status_code=202)
def set_data(batch_id: str, body: DataBody) -> Response[BatchAnswer]:
    caller = router.caller
    changed = app().batches.batches.set_data(
        caller.project_id, batch_id, body.job_data, body.auth_code, who=caller.key_id
    )
    return answer(_shown(changed), 202)


@router.get(
    "/v1/batches/<batch_id>/items",
    scope="read",
    tags=_TAGS,
    summary="Items that failed, were abandoned or succeeded only after retries",
)
def items(
    batch_id: str,
    state: Annotated[ItemState | None, Query(description="failed, abandoned or recovered")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> ItemList:
    page = app().batches.batches.outcomes(router.caller.project_id, batch_id, state, limit, cursor)
    return ItemList(items=[ItemAnswer.model_validate(item) for item in page.items], next_cursor=page.next_cursor)


@router.get(
    "/v1/batches/<batch_id>/results", scope="read", tags=_TAGS, summary="The same as a JSONL file, behind a link"
)
def results(batch_id: str) -> ResultsAnswer:
    return ResultsAnswer.model_validate(app().batches.batches.results(router.caller.project_id, batch_id))


@router.post(
    "/v1/batches/<batch_id>/items/<index>/result",
    scope="write",
    tags=_TAGS,
    summary='The result of one item, with ack "async"',
    status_code=202,
)
def item_result(batch_id: str, index: Annotated[int, Path(ge=0, le=10**15)], body: ResultBody) -> Response[ResultTaken]:
    said = body.model_dump(exclude={"auth_code"}, exclude_none=True)
    project_id = router.caller.project_id
    taken = app().batches.batches.add_result(project_id, batch_id, index, said, body.auth_code)
    return answer(ResultTaken(accepted=taken), 202)


@router.post(
    "/v1/batches/<batch_id>/redrive",
    scope="write",
    tags=_TAGS,
    summary="A new batch of the failed items only",
    status_code=201,
    middlewares=[idempotent],
)
def redrive(batch_id: str, body: RedriveBody | None = None) -> Response[BatchAnswer]:
    caller, states = router.caller, (body or RedriveBody()).states
    made = app().batches.batches.redrive(caller.project_id, batch_id, states, who=caller.key_id)
    return answer(_shown(made), 201)


@router.post(
    "/v1/batches/<batch_id>/dry-run",
    scope="write",
    tags=_TAGS,
    summary="Send the first items to the business; nothing is counted",
)
def dry_run(batch_id: str, body: DryRunBody | None = None) -> DryRunAnswer:
    tried = app().batches.dry_run(router.caller.project_id, batch_id, (body or DryRunBody()).items)
    return DryRunAnswer(items=[DryRunItem.model_validate(item) for item in tried])


@router.post(
    "/v1/batches/<batch_id>/logs",
    scope="write",
    tags=_TAGS,
    summary="Write log lines",
    status_code=201,
    middlewares=[idempotent],
)
def add_logs(batch_id: str, body: LogsBody) -> Response[LogsAdded]:
    lines = [line.model_dump() for line in body.items]
    return answer(LogsAdded(added=app().batches.logs.add(router.caller.project_id, batch_id, lines)), 201)


@router.get("/v1/batches/<batch_id>/logs", scope="read", tags=_TAGS, summary="Log lines, newest first")
def logs(
    batch_id: str,
    index: Annotated[Index | None, Query(description="of this item only")] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> LogList:
    page = app().batches.logs.list(router.caller.project_id, batch_id, index=index, limit=limit, cursor=cursor)
    return LogList(items=[LogAnswer.model_validate(line) for line in page.items], next_cursor=page.next_cursor)


@router.post(
    "/v1/batches/<batch_id>/logs/export",
    scope="write",
    tags=_TAGS,
    summary="The log lines as a CSV file",
    status_code=202,
    middlewares=[idempotent],
)
def export_logs(batch_id: str) -> Response[LogsExported]:
    caller = router.caller
    return answer(LogsExported(task_id=app().batches.export_logs(caller.project_id, batch_id, caller.key_id)), 202)
