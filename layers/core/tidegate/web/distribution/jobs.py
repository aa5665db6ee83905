"""Jobs and their targets."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.web.distribution.job_schemas import JobAnswer, JobList, JobTargetAnswer, JobTargetList
from tidegate.web.distribution.task_schemas import Status
from tidegate.web.routing import Cursor, Limit, Router
from tidegate.web.schemas import Number

router = Router()
_TAGS = ["Distribution"]


@router.get("/v1/jobs/<job>", scope="read", tags=_TAGS, summary="One Job")
def show(job: str) -> JobAnswer:
    return JobAnswer.model_validate(app().distribution.lookup.job(router.caller.project_id, unquote(job)))


@router.get("/v1/jobs/<job>/targets", scope="read", tags=_TAGS, summary="The targets of a Job")
def list_targets(
    job: str, status: Annotated[Status | None, Query()] = None, limit: Limit = 20, cursor: Cursor = None
) -> JobTargetList:
    page = app().distribution.lookup.targets(router.caller.project_id, unquote(job), status, limit, cursor)
    items = [JobTargetAnswer.model_validate(target) for target in page.items]
    return JobTargetList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/jobs", scope="read", tags=_TAGS, summary="List Jobs")
def list_jobs(
    biz_id: Annotated[Number | None, Query()] = None,
    app_id: Annotated[Number | None, Query()] = None,
    file_path: Annotated[str | None, Query(max_length=1024)] = None,
    status: Annotated[Status | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> JobList:
    page = app().distribution.lookup.jobs(
        router.caller.project_id, limit, cursor, file_path=file_path, biz_id=biz_id, app_id=app_id, status=status
    )
    return JobList(items=[JobAnswer.model_validate(job) for job in page.items], next_cursor=page.next_cursor)
