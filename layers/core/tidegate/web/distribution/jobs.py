"""Routes for Jobs and their targets."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import unquote

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.web.distribution.job_schemas import (
    JobAnswer,
    JobList,
    JobMapAnswer,
    JobTargetAnswer,
    JobTargetList,
    RedriveBody,
    RedrivenAnswer,
)
from tidegate.web.distribution.task_schemas import Status
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Number

router = Router()
_TAGS = ["Distribution"]


@router.get("/v1/jobs/<job>", scope="read", tags=_TAGS, summary="Get a Job")
def show(job: str) -> JobAnswer:
    return JobAnswer.model_validate(app().distribution.lookup.job(router.caller.project_id, unquote(job)))


@router.post(
    "/v1/jobs/<job>/cancel",
    scope="write",
    tags=_TAGS,
    summary="Cancel a Job",
    status_code=202,
)
def cancel(job: str) -> Response[JobAnswer]:
    caller = router.caller
    cancelled = app().distribution.control.cancel(caller.project_id, unquote(job), caller.key_id)
    return answer(JobAnswer.model_validate(cancelled.shown()), 202)


@router.post(
    "/v1/jobs/<job>/redrive",
    scope="write",
    tags=_TAGS,
    summary="Retry the failed targets of a Job in a new Job",
    status_code=202,
    middlewares=[idempotent],
)
def redrive(job: str, body: RedriveBody | None = None) -> Response[RedrivenAnswer]:
    caller, fields = router.caller, body or RedriveBody()
    made = app().distribution.control.redrive(
        caller.project_id, unquote(job), fields.statuses, fields.callback, caller.key_id
    )
    return answer(RedrivenAnswer(job_id=made.job.job_id, key=made.job.key, targets=made.targets), 202)


@router.get("/v1/jobs/<job>/targets", scope="read", tags=_TAGS, summary="List the targets of a Job")
def list_targets(
    job: str, status: Annotated[Status | None, Query()] = None, limit: Limit = 20, cursor: Cursor = None
) -> JobTargetList:
    page = app().distribution.lookup.targets(router.caller.project_id, unquote(job), status, limit, cursor)
    items = [JobTargetAnswer.model_validate(target) for target in page.items]
    return JobTargetList(items=items, next_cursor=page.next_cursor)


@router.get("/v1/jobs/<job>/map", scope="read", tags=_TAGS, summary="Get the state of all targets in compact form")
def target_map(job: str, shard: Annotated[int, Query(ge=0, le=100_000)] = 0) -> JobMapAnswer:
    return JobMapAnswer.model_validate(app().distribution.lookup.map(router.caller.project_id, unquote(job), shard))


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
