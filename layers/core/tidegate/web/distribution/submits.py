"""The hot submits, in a router of their own: the function that serves them imports nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from aws_lambda_powertools.event_handler.middlewares import NextMiddleware

from tidegate.app import app
from tidegate.distribution.model import TransferSpec, Wave
from tidegate.distribution.targets import Target
from tidegate.web.authentication import Caller
from tidegate.web.distribution.task_schemas import (
    DownloadBatchBody,
    DownloadBody,
    ParcelBody,
    SubmittedAnswer,
    SubmittedBatchAnswer,
    SubmittedTask,
)
from tidegate.web.routing import Router, answer

_TAGS = ["Distribution"]


def idempotent(resolver: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Most submits carry no Idempotency-Key; they need not wait for what handles it to be imported."""
    if not resolver.current_event.headers.get("idempotency-key"):
        return next_middleware(resolver)
    from tidegate.web.idempotency import idempotent as kept

    return kept(resolver, next_middleware)


def _parcel(body: ParcelBody) -> TransferSpec:
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
    """A router belongs to one resolver; these routes are in two: the one that serves them and the one with the docs."""
    router = Router()

    @router.post(
        "/v1/downloads", scope="write", tags=_TAGS, summary="To one target", status_code=202, middlewares=[idempotent]
    )
    def submit(body: DownloadBody) -> Response[SubmittedAnswer]:
        target = Target(body.target_agent_id, body.target_container_id)
        return answer(_one(router.caller, body, target), 202)

    @router.post(
        "/v1/downloads/batch", scope="write", tags=_TAGS, summary="To many", status_code=202, middlewares=[idempotent]
    )
    def submit_batch(body: DownloadBatchBody) -> Response[SubmittedBatchAnswer]:
        return answer(_many(router.caller, body), 202)

    return router


def _one(caller: Caller, body: ParcelBody, target: Target) -> SubmittedAnswer:
    parcel = _parcel(body)
    taken = app().distribution.submit.submit(caller.project_id, parcel, [target], body.callback, who=caller.key_id)
    (task,) = taken.tasks
    return SubmittedAnswer(
        task_id=parcel.task_id(task.uuid), job_id=taken.job.job_id, window_closes_at=taken.job.closes_at
    )


def _many(caller: Caller, body: DownloadBatchBody) -> SubmittedBatchAnswer:
    parcel = replace(_parcel(body), waves=_waves(body))
    targets = _targets(caller, body)
    submit = app().distribution.submit.submit_any_number
    taken = submit(caller.project_id, parcel, targets, body.callback, who=caller.key_id)
    tasks = [
        SubmittedTask(
            task_id=parcel.task_id(task.uuid), agent_id=task.target.agent_id, container_id=task.target.container_id
        )
        for task in taken.tasks
    ]
    return SubmittedBatchAnswer(
        job_id=taken.job.job_id, tasks=tasks, targets=len(targets), window_closes_at=taken.job.closes_at
    )


def _targets(caller: Caller, body: DownloadBatchBody) -> list[Target]:
    if body.targets is not None:
        return [Target(target.agent_id, target.container_id) for target in body.targets]
    fleet = app().distribution.fleet
    return [Target(name) for name in fleet.selected(caller.project_id, body.groups or (), body.labels or {})]


def _waves(body: DownloadBatchBody) -> tuple[Wave, ...]:
    """What they leave over follows as a last wave."""
    waves = [Wave(wave.percent, wave.wait_s, wave.max_failed_percent) for wave in body.waves or ()]
    if waves and waves[-1].percent < 100:
        waves.append(Wave(100, 0, 100))
    return tuple(waves)
