"""The two submit routes, in a router of their own: the function `submit` imports no other routes."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import AfterValidator, Field, StrictInt, model_validator

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.distribution import submit
from tidegate.distribution.model import Target, TransferSpec, Wave
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Caller, Router, answer
from tidegate.web.schemas import Answer, Body, FileName, FilePath, Number, Signature, Text

# --- task schemas
# Bodies and answers of submits and Tasks.

_ID_BYTES = 128

Status = Literal["Pending", "Running", "Success", "Failed", "Timeout", "Cancelled", "Superseded"]


def _machine_id(value: str) -> str:
    if len(value.encode("utf-8", "surrogatepass")) > _ID_BYTES:
        raise ValueError(f"must have at most {_ID_BYTES} bytes")
    if any(char.isspace() or ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF or char in "/\x7f" for char in value):
        raise ValueError("must not contain spaces, slashes or control characters")
    return value


def _absolute(value: str) -> str:
    if not (value.startswith("/") or (value[1:3] in (":\\", ":/") and value[0].isalpha())):
        raise ValueError("must be an absolute path, such as /srv/releases")
    return value


def _web(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must be a URL that starts with http:// or https://")
    return value


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
Group = Annotated[str, Field(pattern=_NAME, description="1 to 63 letters, digits and `._/-`")]
LabelValue = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/@:-]{0,63}$")]
AgentId = Annotated[str, Field(min_length=1), AfterValidator(_machine_id)]
ContainerId = Annotated[str, AfterValidator(_machine_id)]
Directory = Annotated[FilePath, AfterValidator(_absolute)]
Callback = Annotated[str, Field(min_length=1, max_length=300), AfterValidator(_web)]


def _moment(value: str) -> str:
    """The time in the one format in which times are stored, so that requests for the same time join one window."""
    try:
        moment = datetime.fromisoformat(value.upper())
    except ValueError:
        moment = None
    # Python accepts more than RFC 3339, such as dates without a time.
    if moment is None or moment.tzinfo is None or not _RFC3339.fullmatch(value):
        raise ValueError(f"must be a date and time with an offset, such as 2026-12-24T18:00:00Z, not {value!r}")
    try:
        return iso(moment.astimezone(UTC))
    except OverflowError as error:
        raise ValueError("must be between the years 1 and 9999") from error


_RFC3339 = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]\d{2}:\d{2}:\d{2}(\.\d{1,9})?([Zz]|[+-]\d{2}:\d{2})")
ActivateAt = Annotated[str, AfterValidator(_moment)]
Mode = Annotated[
    str, Field(pattern=r"^0?[0-7]{3}$", description="permissions of the file on the host in octal, such as `0640`")
]


class TransferBody(Body):
    biz_id: Number
    app_id: Number
    file_path: FilePath
    file_name: FileName
    target_user: Text
    target_file_dir: Directory
    file_signature: Signature
    mode: Mode | None = None
    swarm: Annotated[
        Literal["auto", "off"],
        Field(description="`auto`: hosts also send the file to each other; `off`: every host downloads it from S3"),
    ] = "auto"
    limit_rate: (
        Annotated[
            StrictInt, Field(ge=1024, le=2**40, description="limit in bytes per second on each host, for this Job")
        ]
        | None
    ) = None
    activate_at: (
        Annotated[
            ActivateAt,
            Field(
                max_length=40,
                description="hosts download the file now and put it in place then (RFC 3339, at most 7 days ahead)",
            ),
        ]
        | None
    ) = None
    callback: Callback | None = None


class DownloadBody(TransferBody):
    target_agent_id: AgentId
    target_container_id: ContainerId = ""


class TargetBody(Body):
    agent_id: AgentId
    container_id: ContainerId = ""


class WaveBody(Body):
    """A stage of a rollout: the Job is sent to `percent` of its targets in total. The next wave starts when all targets
    of this one have ended, at most `max_failed_percent` of them failed, and `wait_s` has passed since it was sent."""

    percent: Annotated[StrictInt, Field(ge=1, le=100)]
    wait_s: Annotated[StrictInt, Field(ge=0, le=3600)] = 0
    max_failed_percent: Annotated[StrictInt, Field(ge=0, le=100)] = 0


class DownloadBatchBody(TransferBody):
    """Either `targets`, or `groups` (hosts in any of them) and `labels` (hosts with all of them)."""

    targets: Annotated[list[TargetBody], Field(min_length=1, max_length=1000)] | None = None
    groups: Annotated[list[Group], Field(min_length=1, max_length=20)] | None = None
    labels: Annotated[dict[Group, LabelValue], Field(min_length=1, max_length=20)] | None = None
    waves: Annotated[list[WaveBody], Field(min_length=1, max_length=10)] | None = None

    @model_validator(mode="after")
    def _check_targets_and_waves(self) -> DownloadBatchBody:
        if (self.targets is None) == (self.groups is None and self.labels is None):
            raise ValueError("give either targets, or groups or labels or both, but not targets with them")
        percents = [wave.percent for wave in self.waves or ()]
        if percents != sorted(set(percents)):
            raise ValueError(f"waves: each percent must be higher than the previous one, not {percents}")
        return self


class SubmittedAnswer(Answer):
    task_id: str
    job_id: str
    status: Status = "Pending"
    window_closes_at: str


class SubmittedTask(Answer):
    task_id: str
    agent_id: str
    container_id: str


class SubmittedBatchAnswer(Answer):
    job_id: str
    tasks: list[SubmittedTask]
    targets: int
    window_closes_at: str


class FiguresAnswer(Answer):
    """Figures of a target's transfer, as far as its host reported them. Times are by the host's clock."""

    size: int | None = None
    speed: int | None = None
    start_time: str | None = None
    end_time: str | None = None


class TaskAnswer(FiguresAnswer):
    task_id: str
    job_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_agent_id: str
    target_container_id: str
    target_file_dir: str
    target_user: str
    activate_at: str | None = None
    status: Status
    error_code: int | None = None
    error_msg: str | None = None
    progress: int | None = None
    staged_at: (
        Annotated[str, Field(description="since when the host has the file and waits for activate_at")] | None
    ) = None
    create_time: str
    update_time: str


class TaskList(Answer):
    items: list[TaskAnswer]
    next_cursor: str | None = None


# --- submits
# The two submit routes, in a router of their own: the function `submit` imports no other routes.

_TAGS = ["Distribution"]


def _transfer_spec(body: TransferBody) -> TransferSpec:
    return TransferSpec(
        biz_id=body.biz_id,
        app_id=body.app_id,
        file_path=body.file_path,
        file_name=body.file_name,
        file_signature=body.file_signature,
        target_user=body.target_user,
        target_file_dir=body.target_file_dir,
        mode=body.mode and body.mode.zfill(4),
        swarm="off" if body.swarm == "off" else None,
        limit_rate=body.limit_rate,
        activate_at=body.activate_at,
    )


def build_router() -> Router:
    """A new router: it can belong to one resolver only, and the functions `submit` and `api` both have these routes."""
    router = Router()

    @router.post(
        "/v1/downloads",
        scope="write",
        tags=_TAGS,
        summary="Send a file to one target",
        status_code=202,
        middlewares=[idempotent],
    )
    def submit(body: DownloadBody) -> Response[SubmittedAnswer]:
        target = Target(body.target_agent_id, body.target_container_id)
        return answer(_one(router.caller, body, target), 202)

    @router.post(
        "/v1/downloads/batch",
        scope="write",
        tags=_TAGS,
        summary="Send a file to many targets",
        status_code=202,
        middlewares=[idempotent],
    )
    def submit_batch(body: DownloadBatchBody) -> Response[SubmittedBatchAnswer]:
        return answer(_many(router.caller, body), 202)

    return router


def _one(caller: Caller, body: TransferBody, target: Target) -> SubmittedAnswer:
    spec = _transfer_spec(body)
    who, is_admin, d = caller.key_id, caller.is_admin, app().distribution
    submitted = submit.submit(d, caller.project_id, spec, [target], body.callback, who=who, is_admin=is_admin)
    (task,) = submitted.tasks
    job = submitted.job
    return SubmittedAnswer(task_id=spec.task_id(task.uuid), job_id=job.job_id, window_closes_at=job.closes_at)


def _many(caller: Caller, body: DownloadBatchBody) -> SubmittedBatchAnswer:
    spec = replace(_transfer_spec(body), waves=_waves(body))
    targets = _targets(caller, body)
    who, is_admin, d = caller.key_id, caller.is_admin, app().distribution
    submitted = submit.submit_any_number(d, caller.project_id, spec, targets, body.callback, who=who, is_admin=is_admin)
    tasks = [
        SubmittedTask(
            task_id=spec.task_id(task.uuid), agent_id=task.target.agent_id, container_id=task.target.container_id
        )
        for task in submitted.tasks
    ]
    return SubmittedBatchAnswer(
        job_id=submitted.job.job_id, tasks=tasks, targets=len(targets), window_closes_at=submitted.job.closes_at
    )


def _targets(caller: Caller, body: DownloadBatchBody) -> list[Target]:
    if body.targets is not None:
        return [Target(target.agent_id, target.container_id) for target in body.targets]
    fleet = app().distribution.fleet
    return [Target(name) for name in fleet.selected(caller.project_id, body.groups or (), body.labels or {})]


def _waves(body: DownloadBatchBody) -> tuple[Wave, ...]:
    """The waves of the body, and a last one for the remaining targets if they do not add up to 100 percent."""
    waves = [Wave(wave.percent, wave.wait_s, wave.max_failed_percent) for wave in body.waves or ()]
    if waves and waves[-1].percent < 100:
        waves.append(Wave(100, 0, 100))
    return tuple(waves)
