"""Subscriptions, and the credentials that their sources ask for."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.ingest.subscription_model import Subscription
from tidegate.web.idempotency import idempotent
from tidegate.web.ingest.schemas import CredentialBody, SubscriptionAnswer, SubscriptionBody, SubscriptionList
from tidegate.web.queue.schemas import RequestAnswer, RequestList
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Subscriptions"]


def _shown(subscription: Subscription) -> SubscriptionAnswer:
    return SubscriptionAnswer.model_validate(subscription.shown())


@router.post("/v1/subscriptions", tags=_TAGS, summary="Watch a source", status_code=201, middlewares=[idempotent])
def create(body: SubscriptionBody) -> Response[SubscriptionAnswer]:
    described = Subscription("", router.caller.project_id, created_at="", **body.model_dump())
    return answer(_shown(app().ingest.subscriptions.create(described)), 201)


@router.get("/v1/subscriptions", tags=_TAGS, summary="List subscriptions")
def list_subscriptions(limit: Limit = 20, cursor: Cursor = None) -> SubscriptionList:
    page = app().ingest.subscriptions.list(router.caller.project_id, limit, cursor)
    return SubscriptionList(items=[_shown(item) for item in page.items], next_cursor=page.next_cursor)


@router.get("/v1/subscriptions/<subscription_id>", tags=_TAGS, summary="One subscription")
def show(subscription_id: str) -> SubscriptionAnswer:
    return _shown(app().ingest.subscriptions.get(router.caller.project_id, subscription_id))


@router.delete(
    "/v1/subscriptions/<subscription_id>", tags=_TAGS, summary="Forget it and cancel what it queued", status_code=204
)
def delete(subscription_id: str) -> Response[Any]:
    caller = router.caller
    app().ingest.subscriptions.delete(caller.project_id, subscription_id, caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/subscriptions/<subscription_id>/download",
    tags=_TAGS,
    summary="Look at the source now",
    status_code=202,
    middlewares=[idempotent],
)
def download(subscription_id: str) -> Response[RequestAnswer]:
    caller = router.caller
    request = app().ingest.subscriptions.download(caller.project_id, subscription_id, caller.key_id)
    return answer(RequestAnswer.model_validate(request.shown()), 202)


@router.get("/v1/subscriptions/<subscription_id>/tasks", tags=_TAGS, summary="Its requests")
def tasks(subscription_id: str, limit: Limit = 20, cursor: Cursor = None) -> RequestList:
    page = app().ingest.subscriptions.tasks(router.caller.project_id, subscription_id, limit, cursor)
    items = [RequestAnswer.model_validate(item.shown()) for item in page.items]
    return RequestList(items=items, next_cursor=page.next_cursor)


@router.put("/v1/credentials/<name>", tags=_TAGS, summary="Keep headers for a source under a name", status_code=204)
def put_credential(name: str, body: CredentialBody) -> Response[Any]:
    app().projects.credentials.put(router.caller.project_id, name, body.headers)
    return answer(None, 204)


@router.delete("/v1/credentials/<name>", tags=_TAGS, summary="Forget them", status_code=204)
def delete_credential(name: str) -> Response[Any]:
    app().projects.credentials.delete(router.caller.project_id, name)
    return answer(None, 204)
