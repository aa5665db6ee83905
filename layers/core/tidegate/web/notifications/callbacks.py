"""Routes for callbacks (list, show, deliver again) and for the secrets that sign them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.common.ids import iso
from tidegate.notifications.delivery_model import Delivery
from tidegate.web.idempotency import idempotent_secret
from tidegate.web.notifications.schemas import CallbackAnswer, CallbackList, SecretAnswer
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Notifications"]


def _shown(delivery: Delivery) -> CallbackAnswer:
    return CallbackAnswer.of(delivery, lambda epoch: iso(datetime.fromtimestamp(epoch, UTC)))


@router.get("/v1/callbacks", scope="read", tags=_TAGS, summary="List callbacks with their delivery attempts")
def list_callbacks(
    task_id: Annotated[
        str | None,
        Query(
            max_length=2048,
            description="only callbacks about this record: a Task, a Job, an export, a batch or a request",
        ),
    ] = None,
    state: Annotated[Literal["pending", "delivered", "dead"] | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> CallbackList:
    page = app().notifications.callbacks.list(
        router.caller.project_id, record_id=task_id, state=state, limit=limit, cursor=cursor
    )
    return CallbackList(items=[_shown(delivery) for delivery in page.items], next_cursor=page.next_cursor)


@router.get("/v1/callbacks/<delivery_id>", scope="read", tags=_TAGS, summary="Get a callback with its body")
def show_callback(delivery_id: str) -> CallbackAnswer:
    return _shown(app().notifications.callbacks.get(router.caller.project_id, delivery_id))


@router.post(
    "/v1/callbacks/<delivery_id>/redeliver",
    scope="write",
    tags=_TAGS,
    summary="Deliver a callback again",
    status_code=202,
)
def redeliver(delivery_id: str) -> Response[CallbackAnswer]:
    caller = router.caller
    return answer(_shown(app().notifications.callbacks.redeliver(caller.project_id, delivery_id, caller.key_id)), 202)


@router.post(
    "/v1/projects/<project_id>/callback-secrets",
    scope="admin",
    tags=_TAGS,
    summary="Create a new callback secret",
    status_code=201,
    middlewares=[idempotent_secret],
)
def rotate_secret(project_id: str) -> Response[SecretAnswer]:
    made = app().projects.callback_secrets.rotate(project_id, router.caller.key_id)
    return answer(SecretAnswer(project_id=project_id, callback_secret=made), 201)


@router.delete(
    "/v1/projects/<project_id>/callback-secrets/previous",
    scope="admin",
    tags=_TAGS,
    summary="Retire the previous callback secret",
    status_code=204,
)
def retire_secret(project_id: str) -> Response[Any]:
    app().projects.callback_secrets.retire(project_id, router.caller.key_id)
    return answer(None, 204)
