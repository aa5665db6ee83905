"""Routes for subscriptions, and for the credentials that their sources need."""

from __future__ import annotations

from typing import Annotated, Any

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Path

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.http.credentials import check_origins
from tidegate.ingest.source_list import Selection
from tidegate.ingest.subscription_model import Subscription
from tidegate.projects.audit import act
from tidegate.projects.credential_records import CredentialRecord
from tidegate.web.idempotency import idempotent
from tidegate.web.ingest.schemas import (
    CredentialAnswer,
    CredentialBody,
    CredentialList,
    PreviewAnswer,
    PreviewBody,
    PreviewEntry,
    SubscriptionAnswer,
    SubscriptionBody,
    SubscriptionChanges,
    SubscriptionList,
)
from tidegate.web.queue.request_payloads import CREDENTIAL_NAME
from tidegate.web.queue.schemas import RequestAnswer, RequestList
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
CredentialInPath = Annotated[str, Path(pattern=CREDENTIAL_NAME)]
_TAGS = ["Subscriptions"]
_PREVIEWED = 100


def _shown(subscription: Subscription) -> SubscriptionAnswer:
    return SubscriptionAnswer.model_validate(subscription.shown())


def _politeness(body: SubscriptionBody | SubscriptionChanges) -> dict[str, Any]:
    """The limits that are set; one that is left out or null is no limit."""
    return {"politeness": body.politeness.model_dump(exclude_none=True)} if body.politeness else {}


@router.post(
    "/v1/subscriptions",
    scope="write",
    tags=_TAGS,
    summary="Create a subscription",
    status_code=201,
    middlewares=[idempotent],
)
def create(body: SubscriptionBody) -> Response[SubscriptionAnswer]:
    caller = router.caller
    described = Subscription("", caller.project_id, created_at="", **(body.model_dump() | _politeness(body)))
    return answer(_shown(app().ingest.subscriptions.create(described, who=caller.key_id)), 201)


@router.post("/v1/subscriptions/preview", scope="write", tags=_TAGS, summary="Preview the files of a source")
def preview(body: PreviewBody) -> PreviewAnswer:
    selection = Selection(body.format, body.include, body.exclude, body.file_path)
    project_id = router.caller.project_id
    with app().projects.slow_calls.held(project_id):
        found = app().ingest.subscriptions.preview(project_id, body.source_url, selection)
    entries = found.entries or []
    items = [
        PreviewEntry(
            url=entry.url, file_path=entry.path, file_name=entry.name, size=entry.size, signature=entry.signature
        )
        for entry in entries[:_PREVIEWED]
    ]
    return PreviewAnswer(format=found.format, listed=found.listed, chosen=len(entries), items=items)


@router.get("/v1/subscriptions", scope="read", tags=_TAGS, summary="List subscriptions")
def list_subscriptions(limit: Limit = 20, cursor: Cursor = None) -> SubscriptionList:
    page = app().ingest.subscriptions.list(router.caller.project_id, limit, cursor)
    return SubscriptionList(items=[_shown(item) for item in page.items], next_cursor=page.next_cursor)


@router.get("/v1/subscriptions/<subscription_id>", scope="read", tags=_TAGS, summary="Get a subscription")
def show(subscription_id: str) -> SubscriptionAnswer:
    return _shown(app().ingest.subscriptions.get(router.caller.project_id, subscription_id))


@router.patch("/v1/subscriptions/<subscription_id>", scope="write", tags=_TAGS, summary="Change a subscription")
def change(subscription_id: str, body: SubscriptionChanges) -> SubscriptionAnswer:
    caller = router.caller
    changes = body.model_dump(exclude_unset=True) | _politeness(body)
    return _shown(app().ingest.subscriptions.change(caller.project_id, subscription_id, changes, who=caller.key_id))


@router.post("/v1/subscriptions/<subscription_id>/pause", scope="write", tags=_TAGS, summary="Pause the schedule")
def pause(subscription_id: str) -> SubscriptionAnswer:
    caller = router.caller
    return _shown(app().ingest.subscriptions.pause(caller.project_id, subscription_id, who=caller.key_id))


@router.post("/v1/subscriptions/<subscription_id>/resume", scope="write", tags=_TAGS, summary="Resume the schedule")
def resume(subscription_id: str) -> SubscriptionAnswer:
    caller = router.caller
    return _shown(app().ingest.subscriptions.resume(caller.project_id, subscription_id, who=caller.key_id))


@router.delete(
    "/v1/subscriptions/<subscription_id>",
    scope="write",
    tags=_TAGS,
    summary="Delete a subscription and cancel its queued requests",
    status_code=204,
)
def delete(subscription_id: str) -> Response[Any]:
    caller = router.caller
    app().ingest.subscriptions.delete(caller.project_id, subscription_id, caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/subscriptions/<subscription_id>/download",
    scope="write",
    tags=_TAGS,
    summary="Scan the source now",
    status_code=202,
    middlewares=[idempotent],
)
def download(subscription_id: str) -> Response[RequestAnswer]:
    caller = router.caller
    request = app().ingest.subscriptions.download(caller.project_id, subscription_id, caller.key_id)
    return answer(RequestAnswer.model_validate(request.shown()), 202)


@router.get(
    "/v1/subscriptions/<subscription_id>/tasks", scope="read", tags=_TAGS, summary="List a subscription's requests"
)
def tasks(subscription_id: str, limit: Limit = 20, cursor: Cursor = None) -> RequestList:
    page = app().ingest.subscriptions.tasks(router.caller.project_id, subscription_id, limit, cursor)
    items = [RequestAnswer.model_validate(item.shown()) for item in page.items]
    return RequestList(items=items, next_cursor=page.next_cursor)


@router.get(
    "/v1/credentials",
    scope="read",
    tags=_TAGS,
    summary="List credentials",
)
def list_credentials() -> CredentialList:
    found = app().projects.credential_records.list(router.caller.project_id)
    return CredentialList(items=[CredentialAnswer.model_validate(record) for record in found])


@router.put(
    "/v1/credentials/<name>",
    scope="write",
    tags=_TAGS,
    summary="Store a credential",
    status_code=204,
)
def put_credential(name: CredentialInPath, body: CredentialBody) -> Response[Any]:
    project_id = router.caller.project_id
    check_origins(body.origins, plain_text=app().projects.projects.get(project_id).allow_private_urls)
    now, who = app().clock(), router.caller.key_id
    record = CredentialRecord(name, body.origins, sorted(body.headers), iso(now), who)
    app().projects.credential_records.put(project_id, record, act(project_id, name, now, who, "credential.put"))
    app().projects.credentials.put(project_id, name, body.headers, body.origins)
    return answer(None, 204)


@router.delete("/v1/credentials/<name>", scope="write", tags=_TAGS, summary="Delete a credential", status_code=204)
def delete_credential(name: CredentialInPath) -> Response[Any]:
    # The secret first: a crash in between leaves only a listed name, which can be deleted again.
    caller = router.caller
    app().projects.credentials.delete(caller.project_id, name)
    line = act(caller.project_id, name, app().clock(), caller.key_id, "credential.delete")
    app().projects.credential_records.delete(caller.project_id, name, line)
    return answer(None, 204)
