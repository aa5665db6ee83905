"""Routes for batches: items that are sent to a business at a given rate."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Annotated

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path, Query

from tidegate.app import app
from tidegate.batches.model import Batch
from tidegate.web.answer_size import count_that_fit
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
    return answer(_shown(made), 201)


@router.get("/v1/batches", scope="read", tags=_TAGS, summary="List batches")
def list_batches(
    status: Annotated[str | None, Query(max_length=20)] = None, limit: Limit = 20, cursor: Cursor = None
) -> Response[BatchList]:
    page = app().batches.batches.list(router.caller.project_id, status, limit, cursor)
    items = [BatchAnswer.model_validate(item) for item in page.items]
    return answer(BatchList(items=items, next_cursor=page.next_cursor))


@router.get("/v1/batches/<batch_id>", scope="read", tags=_TAGS, summary="Get a batch with its progress")
def show(batch_id: str) -> Response[BatchAnswer]:
    return answer(_shown(app().batches.batches.get(router.caller.project_id, batch_id)))


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
    return answer(_shown(app().batches.batches.update(caller.project_id, batch_id, changes, who=caller.key_id)), 202)


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
    return answer(_shown(started), 202)


@router.post("/v1/batches/<batch_id>/stop", scope="write", tags=_TAGS, summary="Stop a batch", status_code=202)
def stop(batch_id: str) -> Response[BatchAnswer]:
    caller = router.caller
    return answer(_shown(app().batches.control.stop(caller.project_id, batch_id, caller.key_id)), 202)


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
    return answer(_shown(started), 202)


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
    return answer(_shown(stopped), 202)


@router.post(
    "/v1/batches/<batch_id>/data", scope="write", tags=_TAGS, summary="Replace the data of a batch", status_code=202
)
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
    result = body.model_dump(exclude={"auth_code"}, exclude_none=True)
    project_id = router.caller.project_id
    accepted = app().batches.batches.add_result(project_id, batch_id, index, result, body.auth_code)
    return answer(ResultTaken(accepted=accepted), 202)


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
    return answer(_shown(made), 201)


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
