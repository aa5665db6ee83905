"""Routes for exports: submit, look up, list, delete, download."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import BaseModel, ValidationError

from tidegate.app import app
from tidegate.errors import ContentTooLarge
from tidegate.files.model import content_disposition
from tidegate.web.answer_size import count_that_fit, fits
from tidegate.web.exports.schemas import (
    Deleted,
    MultipleBody,
    SampleAnswer,
    SampleBody,
    SyncBody,
    SyncMultipleBody,
    TaskAccepted,
    TaskAnswer,
    TaskBody,
    TaskIds,
    TaskList,
)
from tidegate.web.files.schemas import LinkAnswer
from tidegate.web.idempotency import idempotent
from tidegate.web.problems import invalid_fields
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Exports"]
TaskId = Annotated[str, Query(min_length=1, max_length=100)]
Filter = Annotated[str | None, Query(max_length=200)]
B = TypeVar("B", bound=BaseModel)


@router.post(
    "/v1/task", scope="write", tags=_TAGS, summary="Submit an export", status_code=202, middlewares=[idempotent]
)
def submit(body: TaskBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post(
    "/v1/task/multiple",
    scope="write",
    tags=_TAGS,
    summary="Submit an export of several tables",
    status_code=202,
    middlewares=[idempotent],
)
def submit_multiple(body: MultipleBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post("/v1/task/sample", scope="write", tags=_TAGS, summary="Preview the first rows of a source")
def sample(body: SampleBody) -> SampleAnswer:
    project_id = router.caller.project_id
    with app().projects.slow_calls.held(project_id):
        found = app().exports.sample(project_id, body.source_url)
    rows = found.rows[: count_that_fit([found.answered, *found.rows]) - 1]
    if not fits([found.answered, *rows]) or (found.rows and not rows):
        raise ContentTooLarge(
            "the first row of the source, with its header, footer and template, is larger than this call can return: "
            "create the export without a sample"
        )
    return SampleAnswer(rows=rows, total=found.total, answered=found.answered)


def _submitted(body: TaskBody | MultipleBody) -> Response[TaskAccepted]:
    project_id = router.caller.acting_for(body.project_id)
    spec = body.spec(exact_source_data())
    task_id = app().exports.exports.submit(project_id, spec, body.options(), router.caller.key_id)
    return answer(TaskAccepted(task_id=task_id), 202)


@router.get("/v1/task", scope="read", tags=_TAGS, summary="Get an export")
def show(task_id: TaskId) -> Response[TaskAnswer]:
    return answer(TaskAnswer(**app().exports.exports.get(router.caller.project_id, task_id)))


@router.get("/v1/tasks", scope="read", tags=_TAGS, summary="List exports")
def list_tasks(
    status: Filter = None,
    operator_id: Filter = None,
    merchant_type: Annotated[int | None, Query(ge=0, le=3)] = None,
    merchant_id: Filter = None,
    name: Filter = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> TaskList:
    filters = {
        "operator_id": operator_id,
        "merchant_type": merchant_type,
        "merchant_id": merchant_id,
        "name": name,
    }
    page = app().exports.exports.list(
        router.caller.project_id,
        status=status,
        wanted={field: value for field, value in filters.items() if value is not None},
        limit=limit,
        cursor=cursor,
    )
    return TaskList(items=[TaskAnswer(**record) for record in page.items], next_cursor=page.next_cursor)


@router.post("/v1/tasks/delete", scope="write", tags=_TAGS, summary="Delete exports and their files")
def delete(body: TaskIds) -> Deleted:
    caller = router.caller
    return Deleted(deleted=app().exports.exports.delete(caller.project_id, body.task_ids, caller.key_id))


@router.get("/v1/download/url", scope="read", tags=_TAGS, summary="Get a download link, valid for 300 s")
def link(task_id: TaskId) -> Response[LinkAnswer]:
    return answer(LinkAnswer.model_validate(app().exports.exports.link(router.caller.project_id, task_id)))


@router.get(
    "/v1/download/async", scope="read", tags=_TAGS, summary="Permanent URL of an export's file", status_code=302
)
def permanent(task_id: TaskId) -> Response[None]:
    fresh = app().exports.exports.link(router.caller.project_id, task_id)
    return answer(None, 302, {"location": fresh.url})


@router.post("/v1/download/sync", scope="read", tags=_TAGS, summary="Create a small export and return its file")
def sync(body: SyncBody) -> Response[Any]:
    return _file_response(body, exact_source_data())


@router.post(
    "/v1/download/sync/multiple",
    scope="read",
    tags=_TAGS,
    summary="Create a small export of several tables and return its file",
)
def sync_multiple(body: SyncMultipleBody) -> Response[Any]:
    return _file_response(body, exact_source_data())


@router.get(
    "/v1/download/sync", scope="read", tags=_TAGS, summary="Create a small export from query parameters and return it"
)
def sync_by_query() -> Response[Any]:
    return _from_query(SyncBody)


@router.get(
    "/v1/download/sync/multiple",
    scope="read",
    tags=_TAGS,
    summary="Create a small export of several tables from query parameters and return it",
)
def sync_multiple_by_query() -> Response[Any]:
    return _from_query(SyncMultipleBody)


def exact_source_data() -> Any:
    """The body's `source_data` with decimals as they were written: as a float, 100.00 would become 100.0.

    None if the body has no `source_data`, or no decimal point.
    """
    text = router.current_event.decoded_body or ""
    if '"source_data"' not in text or "." not in text:
        return None
    from tidegate.exports.source_json import read_exact

    return read_exact(text).get("source_data")


def _from_query(model: type[SyncBody] | type[SyncMultipleBody]) -> Response[Any]:
    query = dict(router.current_event.query_string_parameters or {})
    return _file_response(validated(model, query, "query"), query.get("source_data"))


def validated(model: type[B], fields: Mapping[str, Any], place: str = "body") -> B:
    """The model of these fields. Raises Invalid, which names the fields that are wrong."""
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        raise invalid_fields([{**entry, "loc": (place, *entry["loc"])} for entry in error.errors()]) from error


def _file_response(body: SyncBody | SyncMultipleBody, exact_data: Any) -> Response[Any]:
    project_id = router.caller.acting_for(body.project_id)
    spec = body.spec(exact_data)
    with app().projects.slow_calls.held(project_id):
        made = app().exports.sync.make(project_id, spec, body.file_name)
    if made.url:
        return answer(None, 303, {"location": made.url})
    headers: dict[str, str | list[str]] = {
        "content-disposition": content_disposition(made.file_name),
        "cache-control": "no-store",
    }
    # Encoded here, because Powertools' response validation would decode bytes as UTF-8.
    content = base64.b64encode(made.body).decode()
    response: Response[Any] = Response(200, made.content_type, content, headers)
    response.base64_encoded = True
    return response
