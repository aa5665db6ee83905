"""Routes for Tasks."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.web.distribution.task_schemas import Status, TaskAnswer, TaskList
from tidegate.web.routing import Cursor, Limit, Router

router = Router()
_TAGS = ["Distribution"]


@router.get("/v1/downloads/<task>", scope="read", tags=_TAGS, summary="Get a Task")
def show(task: str) -> TaskAnswer:
    return TaskAnswer.model_validate(app().distribution.lookup.task(router.caller.project_id, unquote(task)))


@router.get("/v1/downloads", scope="read", tags=_TAGS, summary="List Tasks")
def list_tasks(
    job_id: Annotated[str | None, Query(max_length=2000)] = None,
    status: Annotated[Status | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> TaskList:
    page = app().distribution.lookup.tasks(router.caller.project_id, job_id, status, limit, cursor)
    return TaskList(items=[TaskAnswer.model_validate(task) for task in page.items], next_cursor=page.next_cursor)
