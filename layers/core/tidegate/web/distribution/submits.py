"""The two submit routes, in a router of their own: the function `submit` imports no other routes."""

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
    SubmittedAnswer,
    SubmittedBatchAnswer,
    SubmittedTask,
    TransferBody,
)
from tidegate.web.routing import Router, answer

_TAGS = ["Distribution"]


def idempotent(resolver: APIGatewayHttpResolver, next_middleware: NextMiddleware) -> Response[Any]:
    """Imports idempotency only for requests with an Idempotency-Key, which few submits have: cold starts are faster."""
    if not resolver.current_event.headers.get("idempotency-key"):
        return next_middleware(resolver)
    from tidegate.web.idempotency import idempotent as run_idempotent

    return run_idempotent(resolver, next_middleware)


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
    submitted = app().distribution.submit.submit(caller.project_id, spec, [target], body.callback, who=caller.key_id)
    (task,) = submitted.tasks
    job = submitted.job
    return SubmittedAnswer(task_id=spec.task_id(task.uuid), job_id=job.job_id, window_closes_at=job.closes_at)


def _many(caller: Caller, body: DownloadBatchBody) -> SubmittedBatchAnswer:
    spec = replace(_transfer_spec(body), waves=_waves(body))
    targets = _targets(caller, body)
    submit = app().distribution.submit.submit_any_number
    submitted = submit(caller.project_id, spec, targets, body.callback, who=caller.key_id)
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
