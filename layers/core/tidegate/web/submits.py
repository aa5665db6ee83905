"""The two submit routes, in a router of their own: the function `submit` imports no other routes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Literal

from aws_lambda_powertools.event_handler import Response
from pydantic import AfterValidator, Field, model_validator

from tidegate.app import app
from tidegate.aws.table import made_before
from tidegate.common.ids import iso
from tidegate.distribution import submit
from tidegate.distribution.model import Remarks, Target, TransferSpec, Wave
from tidegate.records import record_from
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Caller, Router, answer
from tidegate.web.schemas import Answer, Body, F

# --- task schemas

_ID_BYTES = 128

Status = Literal["Pending", "Running", "Success", "Failed", "Timeout", "Cancelled", "Superseded"]


def _machine_id(value: str) -> str:
    if len(value.encode("utf-8", "surrogatepass")) > _ID_BYTES:
        raise ValueError(f"must have at most {_ID_BYTES} bytes")
    if any(char.isspace() or ord(char) < 32 or 0xD800 <= ord(char) <= 0xDFFF or char in "/\x7f" for char in value):
        raise ValueError("must not contain spaces, slashes or control characters")
    return value


def _web(value: str) -> str:
    if not value.startswith(("http://", "https://")):
        raise ValueError("must be a URL that starts with http:// or https://")
    return value


_NAME = r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,62}$"
Group = Annotated[str, F("1 to 63 letters, digits and `._/-`", pattern=_NAME)]
LabelValue = Annotated[str, F(pattern=r"^[A-Za-z0-9._/@:-]{0,63}$")]
Groups = Annotated[list[Group], Field(max_length=20)]
Labels = Annotated[dict[Group, LabelValue], Field(max_length=20)]
AgentId = Annotated[str, F(min_length=1, check=_machine_id)]
ContainerId = Annotated[str, F(check=_machine_id)]
Callback = Annotated[str, F(min_length=1, max_length=300, check=_web)]


def stored_moment(value: str) -> str:
    """Returns the time in the format in which times are stored. So requests for the same time join one window."""
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


class TransferBody(Body, record=(TransferSpec, Remarks), without=("waves", "wave_ranks", "redrive_of", "release")):
    swarm: Annotated[
        Literal["auto", "off"],
        F("`auto`: hosts of a site also send the file to each other; `off`: every host downloads it from S3"),
    ] = "auto"
    activate_at: Annotated[str, Field(max_length=40), AfterValidator(stored_moment)] | None = None
    callback: Annotated[
        Callback | None, F("an http or https URL that gets a signed POST when the record has ended")
    ] = None


class DownloadBody(TransferBody):
    target_agent_id: Annotated[AgentId, F("id of the host that gets the file")]
    target_container_id: Annotated[ContainerId, F("a container on that host; empty for the host itself")] = ""


class TargetBody(Body):
    agent_id: Annotated[AgentId, F("id of the host")]
    container_id: Annotated[ContainerId, F("a container on the host; empty for the host itself")] = ""


class WaveBody(Body, record=Wave):
    """A stage of a rollout: the Job is sent to `percent` of its targets in total. The next wave starts when all targets
    of this one have ended, at most `max_failed_percent` of them failed, and `wait_s` has passed since it was sent."""


def rising_waves(waves: list[WaveBody]) -> list[WaveBody]:
    percents = [Wave(**vars(wave)).percent for wave in waves]
    if percents != sorted(set(percents)):
        raise ValueError(f"waves: each percent must be higher than the previous one, not {percents}")
    return waves


class DownloadBatchBody(TransferBody):
    """Either `targets`, or `groups` (hosts in any of them) and `labels` (hosts with all of them)."""

    targets: Annotated[
        list[TargetBody] | None, F("the hosts; or select them by `groups` and `labels`", min_length=1, max_length=1000)
    ] = None
    groups: Annotated[list[Group] | None, F("all hosts in any of these groups", min_length=1, max_length=20)] = None
    labels: Annotated[
        dict[Group, LabelValue] | None, F("all hosts with all of these labels", min_length=1, max_length=20)
    ] = None
    waves: Annotated[
        list[WaveBody] | None,
        F("send the file in stages, and stop if too many targets of one fail", min_length=1, max_length=10),
    ] = None

    @model_validator(mode="after")
    def _check_targets_and_waves(self) -> DownloadBatchBody:
        if (self.targets is None) == (self.groups is None and self.labels is None):
            raise ValueError("give either targets, or groups or labels or both, but not targets with them")
        rising_waves(self.waves or [])
        return self


JobId = Annotated[str, F("id of the Job: one file, one window, all its targets")]
WindowEnd = Annotated[str, F("when the window closes and the Job is sent, ISO 8601 UTC")]


class SubmittedAnswer(Answer):
    task_id: Annotated[str, F("id of the Task: GET /v1/downloads/{task}")]
    job_id: JobId
    status: Annotated[Status, F("`Pending`: the window is open until window_closes_at")] = "Pending"
    window_closes_at: WindowEnd


class SubmittedTask(Answer):
    task_id: Annotated[str, F("id of the Task")]
    agent_id: Annotated[str, F("id of the host")]
    container_id: Annotated[str, F("a container on the host; empty for the host itself")]


class SubmittedBatchAnswer(Answer):
    job_id: JobId
    tasks: Annotated[
        list[SubmittedTask],
        F("one Task for each target; empty for more than 1,000 targets: list them with GET /v1/downloads?job_id="),
    ]
    targets: Annotated[int, F("number of targets")]
    window_closes_at: WindowEnd


# --- submits


def _transfer_spec(body: TransferBody) -> TransferSpec:
    """Returns the spec of the body.

    If the last wave is below 100 percent, another wave is added for the other targets.
    """
    spec = record_from(TransferSpec, vars(body), swarm="off" if body.swarm == "off" else None)
    rest = (Wave(100, 0, 100),) if spec.waves and spec.waves[-1].percent < 100 else ()
    return replace(spec, waves=(*spec.waves, *rest))


def build_router() -> Router:
    """Returns a new router with these routes.

    Two functions serve these routes, `submit` and `api`. Each needs a router of its own, because a router belongs to
    one resolver.
    """
    router = Router("Distribution")

    @router.post(
        "/v1/downloads", scope="write", summary="Send a file to one target", status_code=202, middlewares=[idempotent]
    )
    def submit(body: DownloadBody) -> Response[SubmittedAnswer]:
        target = Target(body.target_agent_id, body.target_container_id)
        return answer(_one(router.caller, body, target), 202)

    @router.post(
        "/v1/downloads/batch",
        scope="write",
        summary="Send a file to many targets",
        status_code=202,
        middlewares=[idempotent],
    )
    def submit_batch(body: DownloadBatchBody) -> Response[SubmittedBatchAnswer]:
        return answer(_many(router.caller, body), 202)

    return router


def _require_free_path(caller: Caller, spec: TransferSpec, targets: Sequence[Target]) -> None:
    """Raises PathTaken (409) if a release has the path on one of the hosts.

    Targets in containers are not checked, because containers have paths of their own.
    """
    hosts = [target.agent_id for target in targets if not target.container_id]
    # A repeat goes on with what was accepted.
    if hosts and not spec.force and not made_before():
        from tidegate.releases.rollout import require_free_path

        path = f"{spec.target_file_dir.rstrip('/')}/{spec.file_name}"
        require_free_path(app().releases, caller.project_id, path, hosts)


def _one(caller: Caller, body: TransferBody, target: Target) -> SubmittedAnswer:
    spec = _transfer_spec(body)
    _require_free_path(caller, spec, [target])
    submitted = submit.submit(
        app().distribution,
        caller.project_id,
        spec,
        [target],
        body.callback,
        who=caller.key_id,
        remarks=record_from(Remarks, vars(body)),
        is_admin=caller.is_admin,
    )
    (task,) = submitted.tasks
    job = submitted.job
    return SubmittedAnswer(task_id=spec.task_id(task.uuid), job_id=job.job_id, window_closes_at=job.closes_at)


def _many(caller: Caller, body: DownloadBatchBody) -> SubmittedBatchAnswer:
    spec = _transfer_spec(body)
    targets = _targets(caller, body)
    _require_free_path(caller, spec, targets)
    submitted = submit.submit(
        app().distribution,
        caller.project_id,
        spec,
        targets,
        body.callback,
        who=caller.key_id,
        remarks=record_from(Remarks, vars(body)),
        is_admin=caller.is_admin,
    )
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
