"""Routes that agents call. A key of scope `agent` is bound to one agent and has access to its transfers only."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Annotated
from urllib.parse import unquote

from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.distribution.fleet.agents import OfferedTransfer, Result
from tidegate.distribution.swarm.figures import SwarmFigures
from tidegate.distribution.swarm.presence import Presence
from tidegate.distribution.targets import Figures, TargetReport
from tidegate.web.distribution.agent_schemas import (
    PresenceAnswer,
    PresenceBody,
    ResultBody,
    ResultsBody,
    SwarmAnswer,
    SwarmResult,
    TakenAnswer,
    TransferAnswer,
    TransferList,
)
from tidegate.web.routing import Router

_TAGS = ["Agents"]


def build_router() -> Router:
    """A new router: it can belong to one resolver only, and the functions `agents` and `api` both have these routes."""
    router = Router()

    @router.get(
        "/v1/agents/<agent_id>/transfers",
        scope="agent",
        tags=_TAGS,
        summary="List the transfers of an agent",
    )
    def inbox(agent_id: str, wait: Annotated[int, Query(ge=0, le=20)] = 0) -> TransferList:
        # A header, because an older API ignores it; it would refuse an unknown parameter.
        can_stage = "stage" in (router.current_event.headers.get("x-tidegate-can") or "").split(",")
        project_id, host = router.caller.project_id, unquote(agent_id)
        # A poll that waits holds a function.
        with app().projects.slow_calls.poll_held(project_id, host) if wait else nullcontext():
            offers = app().distribution.agents.inbox(project_id, host, wait, can_stage=can_stage)
        return TransferList(items=[_shown(offer) for offer in offers])

    @router.post("/v1/agents/<agent_id>/results", scope="agent", tags=_TAGS, summary="Report results of transfers")
    def report(agent_id: str, body: ResultsBody) -> TakenAnswer:
        results = [_result(item) for item in body.items]
        app().distribution.agents.report(router.caller.project_id, unquote(agent_id), results)
        return TakenAnswer(taken=len(results))

    @router.put(
        "/v1/agents/<agent_id>/presence",
        scope="agent",
        tags=_TAGS,
        summary="Announce an agent to its peers",
    )
    def put_presence(agent_id: str, body: PresenceBody) -> PresenceAnswer:
        caller = router.caller
        presence = Presence(
            unquote(agent_id), body.site, body.zone, tuple(body.listen), body.pin, body.upload_mbit, body.reached
        )
        source = router.current_event.request_context.http.source_ip
        return PresenceAnswer(expires_at=app().distribution.presences.put(caller.project_id, presence, source))

    return router


def _result(item: ResultBody) -> Result:
    reported = Figures(item.size, item.speed, item.start_time, item.end_time)
    figures = reported if any(value is not None for value in reported) else None
    swarm, staged_at = _swarm_figures(item.swarm), item.staged_at
    report = TargetReport(item.error_code, item.error_msg or "", item.progress, figures, swarm, staged_at)
    return Result(item.transfer_id, item.container_id, report)


def _swarm_figures(result: SwarmResult | None) -> SwarmFigures | None:
    if result is None:
        return None
    reasons: dict[str, int] = {} if result.fell_back == "none" else {result.fell_back: 1}
    return SwarmFigures(
        result.origin_bytes,
        result.peer_bytes,
        result.bad_pieces,
        fallbacks=len(reasons),
        hosts=1,
        bad_peers=tuple(result.bad_peers),
        reused_bytes=result.reused_bytes,
        fallback_reasons=reasons,
    )


def _shown(offer: OfferedTransfer) -> TransferAnswer:
    entry = offer.entry
    return TransferAnswer(
        transfer_id=entry.transfer_id,
        container_id=entry.target.container_id,
        url=offer.url,
        expires_at=offer.expires_at,
        file_name=entry.file_name,
        target_file_dir=entry.target_file_dir,
        target_user=entry.target_user,
        signature=entry.signature,
        size=entry.size,
        job_id=entry.job_id,
        sequence=entry.sequence,
        mode=entry.mode,
        spread_s=entry.spread_s or None,
        limit_rate=entry.limit_rate,
        activate_at=entry.activate_at,
        activate_until=iso(datetime.fromtimestamp(entry.until, UTC)) if entry.activate_at else None,
        staged_at=entry.state.staged_at,
        swarm=SwarmAnswer.model_validate(offer.swarm) if offer.swarm else None,
    )
