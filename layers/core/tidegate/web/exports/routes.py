"""Exports: the download centre's tasks and files."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import BaseModel, ValidationError

from tidegate.app import app
from tidegate.errors import Invalid
from tidegate.files.model import content_disposition
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
from tidegate.web.problems import field_errors
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Exports"]
TaskId = Annotated[str, Query(min_length=1, max_length=100)]
Filter = Annotated[str | None, Query(max_length=200)]
B = TypeVar("B", bound=BaseModel)


@router.post(
    "/v1/task", scope="write", tags=_TAGS, summary="Order an export", status_code=202, middlewares=[idempotent]
)
def submit(body: TaskBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post(
    "/v1/task/multiple",
    scope="write",
    tags=_TAGS,
    summary="Order an export of several tables",
    status_code=202,
    middlewares=[idempotent],
)
def submit_multiple(body: MultipleBody) -> Response[TaskAccepted]:
    return _submitted(body)


@router.post(
    "/v1/task/sample", scope="write", tags=_TAGS, summary="The first rows of a source; nothing is queued or kept"
)
def sample(body: SampleBody) -> SampleAnswer:
    return SampleAnswer.model_validate(app().exports.sample(router.caller.project_id, body.source_url))


def _submitted(body: TaskBody | MultipleBody) -> Response[TaskAccepted]:
    project_id = router.caller.acting_for(body.project_id)
    task_id = app().exports.exports.submit(project_id, body.spec(exact_data()), body.order(), router.caller.key_id)
    return answer(TaskAccepted(task_id=task_id), 202)


@router.get("/v1/task", scope="read", tags=_TAGS, summary="One export")
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
    wanted = {
        "operator_id": operator_id,
        "merchant_type": merchant_type,
        "merchant_id": merchant_id,
        "name": name,
    }
    page = app().exports.exports.list(
        router.caller.project_id,
        status=status,
        wanted={field: value for field, value in wanted.items() if value is not None},
        limit=limit,
        cursor=cursor,
    )
    return TaskList(items=[TaskAnswer(**record) for record in page.items], next_cursor=page.next_cursor)


@router.post("/v1/tasks/delete", scope="write", tags=_TAGS, summary="Delete exports and their files")
def delete(body: TaskIds) -> Deleted:
    caller = router.caller
    return Deleted(deleted=app().exports.exports.delete(caller.project_id, body.task_ids, caller.key_id))


@router.get("/v1/download/url", scope="read", tags=_TAGS, summary="A link that lives 300 s")
def link(task_id: TaskId) -> Response[LinkAnswer]:
    return answer(LinkAnswer.model_validate(app().exports.exports.link(router.caller.project_id, task_id)))


@router.get(
    "/v1/download/async", scope="read", tags=_TAGS, summary="The permanent URL: leads to a fresh link", status_code=302
)
def permanent(task_id: TaskId) -> Response[None]:
    made = app().exports.exports.link(router.caller.project_id, task_id)
    return answer(None, 302, {"location": made.url})


@router.post("/v1/download/sync", scope="read", tags=_TAGS, summary="A small export at once")
def sync(body: SyncBody) -> Response[Any]:
    return _handed_over(body)


@router.post("/v1/download/sync/multiple", scope="read", tags=_TAGS, summary="A small export of several tables at once")
def sync_multiple(body: SyncMultipleBody) -> Response[Any]:
    return _handed_over(body)


@router.get("/v1/download/sync", scope="read", tags=_TAGS, summary="The same, its fields in the query")
def sync_by_query() -> Response[Any]:
    return _handed_over(_from_query(SyncBody))


@router.get("/v1/download/sync/multiple", scope="read", tags=_TAGS, summary="The same, its fields in the query")
def sync_multiple_by_query() -> Response[Any]:
    return _handed_over(_from_query(SyncMultipleBody))


def exact_data() -> Any:
    """`source_data` with its decimals as they were spelt: as floats, 100.00 would be 100.0."""
    text = router.current_event.decoded_body or ""
    if not text:
        return (router.current_event.query_string_parameters or {}).get("source_data") or None
    if '"source_data"' not in text or "." not in text:
        return None
    from tidegate.exports.source_json import read_exact

    return read_exact(text).get("source_data")


def _from_query(model: type[B]) -> B:
    return validated(model, dict(router.current_event.query_string_parameters or {}), "query")


def validated(model: type[B], given: Mapping[str, Any], place: str = "body") -> B:
    """What the model makes of fields that were put together here; Invalid names those that are wrong."""
    try:
        return model.model_validate(given)
    except ValidationError as error:
        fields = field_errors([{**entry, "loc": (place, *entry["loc"])} for entry in error.errors()])
        named = ", ".join(".".join(str(part) for part in field["loc"]) for field in fields)
        raise Invalid(f"not valid: {named}", errors=fields) from error


def _handed_over(body: SyncBody | SyncMultipleBody) -> Response[Any]:
    project_id = router.caller.acting_for(body.project_id)
    made = app().exports.sync.make(project_id, body.spec(exact_data()), body.file_name)
    if made.url:
        return answer(None, 303, {"location": made.url})
    headers: dict[str, str | list[str]] = {
        "content-disposition": content_disposition(made.file_name),
        "cache-control": "no-store",
    }
    # Encoded here: Powertools' response validation takes bytes for UTF-8.
    content = base64.b64encode(made.body).decode()
    sent: Response[Any] = Response(status_code=200, content_type=made.content_type, body=content, headers=headers)
    sent.base64_encoded = True
    return sent
