"""Routes for Tasks, Jobs and their targets, with their bodies and answers."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Literal
from urllib.parse import unquote

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from tidegate.app import app
from tidegate.distribution import control
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, Number
from tidegate.web.submits import Callback, FiguresAnswer, Status, TaskAnswer, TaskList

# --- tasks
# Routes for Tasks.

router = Router()
_TAGS = ["Distribution"]


@router.get("/v1/downloads/<task>", scope="read", tags=_TAGS, summary="Get a Task")
def show_task(task: str) -> TaskAnswer:
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


# --- job schemas
# Bodies and answers of Jobs.


class CountsAnswer(Answer):
    total: int
    success: int
    failed: int
    downloading: Annotated[int, Field(description="targets that have begun")]
    timeout: int
    waiting: Annotated[int, Field(description="targets that have not begun; absent if there are none")] | None = None
    staged: (
        Annotated[
            int, Field(description="targets that have the file and wait for activate_at; absent if there are none")
        ]
        | None
    ) = None
    cancelled: Annotated[int, Field(description="cancelled targets; absent if there are none")] | None = None
    superseded: (
        Annotated[
            int,
            Field(
                description="targets whose host has newer content for the path, neither successes nor failures; absent "
                "if there are none"
            ),
        ]
        | None
    ) = None

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        # A return annotation would replace the fields in the OpenAPI schema.
        return {name: value for name, value in serialize(self).items() if value is not None}


class SpeedAnswer(Answer):
    """Totals of the hosts that reported figures."""

    moved_bytes: int
    mean: int
    hosts: int


class WaveAnswer(Answer):
    percent: int
    wait_s: int
    max_failed_percent: int
    targets: int | None = None


class ErrorAnswer(Answer):
    code: str
    detail: str


class JobSwarmAnswer(Answer):
    """Where the bytes of the file came from: the sum over hosts that took part in a swarm and have ended."""

    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fallbacks: int
    hosts: int
    bad_peers: list[str]
    reused_bytes: int = 0
    fallback_reasons: Annotated[
        dict[str, int], Field(description="number of hosts by the reason why they fell back to S3: see `fell_back`")
    ] = {}
    egress: (
        Annotated[
            float, Field(description="bytes sent by S3 divided by the size of the file (origin_bytes ÷ file_size)")
        ]
        | None
    ) = None


class JobAnswer(Answer):
    job_id: str
    key: str
    status: Status
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_file_dir: str
    target_user: str
    mode: str | None = None
    limit_rate: Annotated[int, Field(description="limit in bytes per second on each host")] | None = None
    file_size: Annotated[int, Field(description="size of the file in bytes; absent until it is sent")] | None = None
    activate_at: Annotated[str, Field(description="when the hosts put the file in place")] | None = None
    transfer_id: str | None = None
    window_closes_at: str
    create_time: str
    execute_time: str | None = None
    finish_time: str | None = None
    counts: CountsAnswer
    error: ErrorAnswer | None = None
    swarm: JobSwarmAnswer | None = None
    speed: SpeedAnswer | None = None
    cancelled_at: str | None = None
    redrive_of: Annotated[str, Field(description="the key of the Job whose targets this Job retries")] | None = None
    waves: list[WaveAnswer] | None = None
    wave: Annotated[int, Field(description="number of the current wave, from 1")] | None = None


class JobList(Answer):
    items: list[JobAnswer]
    next_cursor: str | None = None


class JobTargetAnswer(FiguresAnswer):
    agent_id: str
    container_id: str
    status: Status
    error_code: int | None = None
    error_msg: str | None = None
    progress: int | None = None
    staged_at: (
        Annotated[str, Field(description="since when the host has the file and waits for activate_at")] | None
    ) = None
    agent_state: Literal["online", "offline"] | None = None


class JobTargetList(Answer):
    items: list[JobTargetAnswer]
    next_cursor: str | None = None


class JobMapAnswer(Answer):
    """The state of thousands of targets in a compact form."""

    names: list[str]
    states: Annotated[
        str,
        Field(
            description="one letter for each name: W waiting, R running, S success, F failed, T timeout, C cancelled, "
            "N superseded by newer content"
        ),
    ]
    next_shard: int | None = None


class RedriveBody(Body):
    statuses: Annotated[
        list[Literal["Failed", "Timeout", "Cancelled", "Superseded"]], Field(min_length=1, max_length=4)
    ] = ["Failed", "Timeout"]
    callback: Callback | None = None
    force: Annotated[
        bool, Field(description="send the content also to targets that have, or are to get, newer content")
    ] = False


class SkippedTarget(Answer):
    agent_id: str
    container_id: str
    newer_job: Annotated[str, Field(description="the key of the newest Job that sent content to this path since")]


class RedrivenAnswer(Answer):
    job_id: str
    key: str
    targets: Annotated[int, Field(description="how many targets the new Job has")]
    skipped: Annotated[
        list[SkippedTarget],
        Field(description="targets that were left out, because a newer Job sent content to their path; at most 1,000"),
    ] = []
    skipped_targets: Annotated[int, Field(description="how many targets were left out")] = 0


# --- jobs
# Routes for Jobs and their targets.

# More would be megabytes.
_SKIPPED_SHOWN = 1000


@router.get("/v1/jobs/<job>", scope="read", tags=_TAGS, summary="Get a Job")
def show_job(job: str) -> JobAnswer:
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
    cancelled = control.cancel(app().distribution, caller.project_id, unquote(job), caller.key_id)
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
    made = control.redrive(
        app().distribution,
        caller.project_id,
        unquote(job),
        fields.statuses,
        fields.callback,
        caller.key_id,
        is_admin=caller.is_admin,
        force=fields.force,
    )
    skipped = [
        SkippedTarget(agent_id=target.agent_id, container_id=target.container_id, newer_job=newer)
        for target, newer in islice(made.skipped.items(), _SKIPPED_SHOWN)
    ]
    redriven = RedrivenAnswer(
        job_id=made.job.job_id,
        key=made.job.key,
        targets=made.targets,
        skipped=skipped,
        skipped_targets=len(made.skipped),
    )
    return answer(redriven, 202)


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
