"""Routes for requests: units of queued work."""

from __future__ import annotations

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.queue.model import Request
from tidegate.web.idempotency import idempotent
from tidegate.web.queue.operations import in_utc
from tidegate.web.queue.request_payloads import checked_payload
from tidegate.web.queue.schemas import (
    BulkAnswer,
    BulkBody,
    LogAnswer,
    LogList,
    PriorityBody,
    RequestAnswer,
    RequestBody,
)
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Requests"]


def _shown(request: Request) -> RequestAnswer:
    return RequestAnswer.model_validate(request.shown())


@router.post(
    "/v1/requests", scope="write", tags=_TAGS, summary="Submit a request", status_code=202, middlewares=[idempotent]
)
def create(body: RequestBody) -> Response[RequestAnswer]:
    caller = router.caller
    request = app().ingest.submit.submit(
        caller.project_id,
        body.type,
        checked_payload(body.type, body.payload),
        subscription_id=body.subscription_id,
        priority=body.priority,
        channel=body.channel,
        not_before=in_utc(body.not_before, "not_before") if body.not_before else None,
        dedupe_key=body.dedupe_key,
        who=caller.key_id,
    )
    return answer(_shown(request), 202)


@router.post("/v1/requests/bulk", scope="write", tags=_TAGS, summary="Cancel, retry or prioritise many requests")
def bulk(body: BulkBody) -> BulkAnswer:
    caller = router.caller
    names = ("type", "channel", "status", "subscription_id")
    wanted = {name: value for name in names if (value := getattr(body, name))}
    outcome = app().queue.bulk.act(
        caller.project_id, body.action, wanted, body.limit, body.cursor, priority=body.priority, who=caller.key_id
    )
    return BulkAnswer.model_validate(outcome)


@router.get("/v1/requests/<request_id>", scope="read", tags=_TAGS, summary="Get a request")
def show(request_id: str) -> RequestAnswer:
    return _shown(app().queue.queue.get(router.caller.project_id, request_id))


@router.get("/v1/requests/<request_id>/log", scope="read", tags=_TAGS, summary="List the steps of a request")
def log(request_id: str, limit: Limit = 20, cursor: Cursor = None) -> LogList:
    caller = router.caller
    app().queue.queue.get(caller.project_id, request_id)
    page = app().queue.log.list(caller.project_id, request_id, limit, cursor)
    shown = [line.shown(with_stack=caller.is_admin) for line in page.items]
    return LogList(items=[LogAnswer.model_validate(line) for line in shown], next_cursor=page.next_cursor)


@router.post("/v1/requests/<request_id>/cancel", scope="write", tags=_TAGS, summary="Cancel a request")
def cancel(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _shown(app().queue.control.cancel(caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/pause", scope="write", tags=_TAGS, summary="Pause a request")
def pause(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _shown(app().queue.control.pause(caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/resume", scope="write", tags=_TAGS, summary="Resume a paused request")
def resume(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _shown(app().queue.control.resume(caller.project_id, request_id, caller.key_id))


@router.post("/v1/requests/<request_id>/retry", scope="write", tags=_TAGS, summary="Retry a failed request")
def retry(request_id: str) -> RequestAnswer:
    caller = router.caller
    return _shown(app().queue.control.retry(caller.project_id, request_id, caller.key_id))


@router.post(
    "/v1/requests/<request_id>/prioritize", scope="write", tags=_TAGS, summary="Change the priority of a request"
)
def prioritize(request_id: str, body: PriorityBody) -> RequestAnswer:
    caller = router.caller
    return _shown(app().queue.control.prioritize(caller.project_id, request_id, body.priority, caller.key_id))
