"""Routes for Tasks, Jobs and their targets, with their bodies and answers."""

from __future__ import annotations

from itertools import islice
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query
from pydantic import SerializerFunctionWrapHandler, model_serializer

from tidegate.app import app
from tidegate.distribution import control
from tidegate.distribution.model import (
    Figures,
    Job,
    Remarks,
    SwarmFigures,
    TargetCounts,
    Task,
    TransferSpec,
    Wave,
    job_key_of,
)
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Body, ErrorAnswer, F, Number, Page
from tidegate.web.submits import Callback, Status

# --- schemas


class OutcomeAnswer(Answer, record=Figures):
    error_code: Annotated[int | None, F("0 success, 115 in progress, any other value failure")] = None
    error_msg: Annotated[str | None, F("the reason of a failure, for people")] = None
    progress: Annotated[int | None, F("progress in percent")] = None
    staged_at: Annotated[str | None, F("since when the host has the file and waits for activate_at")] = None
    arrived: Annotated[
        bool | None, F("true for a cancelled target whose host had put the file in place; absent otherwise")
    ] = None


class DownloadAnswer(OutcomeAnswer, record=(TransferSpec, Task, Remarks)):
    task_id: Annotated[str, F("id of the Task: one target gets one file")]
    target_agent_id: Annotated[str, F("id of the host that gets the file")]
    target_container_id: Annotated[str, F("a container on that host; empty for the host itself")]
    status: Annotated[
        Status,
        F("`Pending` (its window is open), `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded`"),
    ]


class DownloadList(Page):
    items: list[DownloadAnswer]


class CountsAnswer(Answer, record=TargetCounts):
    waiting: int | None = None
    staged: int | None = None
    cancelled: int | None = None
    superseded: int | None = None

    @model_serializer(mode="wrap")
    def _without_none(self, serialize: SerializerFunctionWrapHandler):  # type: ignore[no-untyped-def]
        # A return annotation would replace the fields in the OpenAPI schema.
        return {name: value for name, value in serialize(self).items() if value is not None}


class SpeedAnswer(Answer):
    """Totals of the hosts that reported figures."""

    moved_bytes: Annotated[int, F("bytes that the hosts downloaded in total")]
    mean: Annotated[int, F("mean speed of the hosts in bytes per second")]
    hosts: Annotated[int, F("number of hosts that reported figures")]


class WaveAnswer(Answer, record=Wave):
    targets: Annotated[int | None, F("number of targets in this wave")] = None


class JobSwarmAnswer(Answer, record=SwarmFigures):
    """Where the bytes of the file came from: the sum over hosts that took part in a swarm and have ended."""

    reused_bytes: int = 0
    fallback_reasons: dict[str, int] = {}
    egress: Annotated[
        float | None, F("bytes sent by S3 divided by the size of the file (origin_bytes ÷ file_size)")
    ] = None


class JobAnswer(Answer, record=Job):
    status: Status
    error: ErrorAnswer | None = None
    counts: Annotated[CountsAnswer, F("number of targets in each state")]
    swarm: Annotated[
        JobSwarmAnswer | None, F("where the bytes came from; absent until hosts of a swarm have reported")
    ] = None
    speed: Annotated[SpeedAnswer | None, F("how fast the transfer was; absent until hosts have reported")] = None
    waves: Annotated[list[WaveAnswer] | None, F("the stages in which the Job is sent")] = None
    wave: Annotated[int | None, F("number of the current wave, from 1")] = None


class JobPatch(Body, changes=Remarks):
    """Fields that are left out stay as they are; null removes one."""


class JobList(Page):
    items: list[JobAnswer]


class JobTargetAnswer(OutcomeAnswer):
    agent_id: Annotated[str, F("id of the host")]
    container_id: Annotated[str, F("a container on the host; empty for the host itself")]
    status: Annotated[
        Status,
        F(
            "`Pending`, `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded` (the host has newer "
            "content for the path)"
        ),
    ]
    agent_state: Annotated[
        Literal["online", "offline"] | None, F("whether the host is connected: `online` or `offline`")
    ] = None


class JobTargetList(Page):
    items: list[JobTargetAnswer]


class JobMapAnswer(Answer):
    """The state of thousands of targets in a compact form."""

    names: Annotated[list[str], F("the targets: agent_id, and after a space the container if there is one")]
    states: Annotated[
        str,
        F(
            "one letter for each name: W waiting, R running, S success, F failed, T timeout, C cancelled, N superseded "
            "by newer content"
        ),
    ]
    next_shard: Annotated[int | None, F("pass it as `shard` to continue; absent at the end")] = None


class JobRedriveBody(Body):
    statuses: Annotated[
        list[Literal["Failed", "Timeout", "Cancelled", "Superseded"]],
        F("which targets are retried", min_length=1, max_length=4),
    ] = ["Failed", "Timeout"]
    callback: Annotated[
        Callback | None, F("an http or https URL that gets a signed POST when the record has ended")
    ] = None
    force: Annotated[bool, F("send the content also to targets that have, or are to get, newer content")] = False


class SkippedTarget(Answer):
    agent_id: Annotated[str, F("id of the host")]
    container_id: Annotated[str, F("a container on the host; empty for the host itself")]
    newer_job: Annotated[str, F("the key of the newest Job that sent content to this path since")]


class RedrivenAnswer(Answer):
    job_id: Annotated[str, F("id of the new Job")]
    key: Annotated[str, F("a short form of the new Job's id, for use in paths")]
    targets: Annotated[int, F("how many targets the new Job has")]
    skipped: Annotated[
        list[SkippedTarget],
        F("targets that were left out, because a newer Job sent content to their path; at most 1,000"),
    ] = []
    skipped_targets: Annotated[int, F("how many targets were left out")] = 0


# --- routes

router = Router("Distribution")


@router.get("/v1/downloads/<task>", scope="read", summary="Get a Task")
def show_task(task: str) -> DownloadAnswer:
    return DownloadAnswer.model_validate(app().distribution.lookup.task(router.caller.project_id, task))


@router.get("/v1/downloads", scope="read", summary="List Tasks")
def list_tasks(
    job_id: Annotated[str | None, Query(max_length=2000)] = None,
    status: Annotated[Status | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> DownloadList:
    page = app().distribution.lookup.tasks(router.caller.project_id, job_id, status, limit, cursor)
    return DownloadList.model_validate(page)


# A longer list would have megabytes.
_SKIPPED_SHOWN = 1000


@router.get("/v1/jobs/<job>", scope="read", summary="Get a Job")
def show_job(job: str) -> JobAnswer:
    return JobAnswer.model_validate(app().distribution.lookup.job(router.caller.project_id, job))


@router.patch("/v1/jobs/<job>", scope="write", summary="Change the note of a Job")
def change_job(job: str, body: JobPatch) -> JobAnswer:
    caller, d = router.caller, app().distribution
    found = d.jobs.require(caller.project_id, job_key_of(job), named=job)
    changed = d.jobs.change(found, d.clock(), body.model_dump(exclude_unset=True), caller.key_id)
    return JobAnswer.model_validate(changed.view())


@router.post("/v1/jobs/<job>/cancel", scope="write", summary="Cancel a Job", status_code=202)
def cancel(job: str) -> Response[JobAnswer]:
    caller = router.caller
    cancelled = control.cancel(app().distribution, caller.project_id, job, caller.key_id)
    return answer(JobAnswer.model_validate(cancelled.view()), 202)


@router.post(
    "/v1/jobs/<job>/redrive",
    scope="write",
    summary="Retry the failed targets of a Job in a new Job",
    status_code=202,
    middlewares=[idempotent],
)
def redrive(job: str, body: JobRedriveBody | None = None) -> Response[RedrivenAnswer]:
    caller, fields = router.caller, body or JobRedriveBody()
    made = control.redrive(
        app().distribution,
        caller.project_id,
        job,
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


@router.get("/v1/jobs/<job>/targets", scope="read", summary="List the targets of a Job")
def list_targets(
    job: str, status: Annotated[Status | None, Query()] = None, limit: Limit = 20, cursor: Cursor = None
) -> JobTargetList:
    page = app().distribution.lookup.targets(router.caller.project_id, job, status, limit, cursor)
    return JobTargetList.model_validate(page)


@router.get("/v1/jobs/<job>/map", scope="read", summary="Get the state of all targets in compact form")
def target_map(job: str, shard: Annotated[int, Query(ge=0, le=100_000)] = 0) -> JobMapAnswer:
    return JobMapAnswer.model_validate(app().distribution.lookup.map(router.caller.project_id, job, shard))


@router.get("/v1/jobs", scope="read", summary="List Jobs")
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
    return JobList.model_validate(page)
