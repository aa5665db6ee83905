"""Routes for callbacks, the secrets that sign them, and WebSocket tickets."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.errors import Invalid
from tidegate.http.guard import read_origin
from tidegate.notifications.deliveries import Attempt, CallbackDelivery
from tidegate.notifications.websocket import Holder
from tidegate.records import F, view_of
from tidegate.web.idempotency import idempotent_secret
from tidegate.web.routing import Cursor, Limit, Router, answer
from tidegate.web.schemas import Answer, Page

# --- schemas


class AttemptAnswer(Answer, record=Attempt):
    pass


class CallbackAnswer(Answer, record=CallbackDelivery):
    """A callback and its delivery attempts."""

    attempts: list[AttemptAnswer]
    body: str | None = None


class CallbackList(Page):
    items: list[CallbackAnswer]


class SecretAnswer(Answer):
    project_id: Annotated[str, F("id of the project")]
    callback_secret: Annotated[str, F("the project's `whsec_…`, with which you verify the signature of callbacks")]


class OriginSecretAnswer(Answer):
    """The newest secret of one receiver."""

    origin: Annotated[str, F("the receiver, as `https://host:port`")]
    callback_secret: Annotated[str, F("the `whsec_…` with which this receiver, and no other, verifies what it gets")]


class TicketAnswer(Answer):
    """A ticket, and the URL at which to connect with it."""

    ticket: Annotated[str, F("pass it as `?ticket=` when you connect; valid once, for 60 seconds")]
    expires_at: Annotated[str, F("until when it is valid, ISO 8601 UTC")]
    ws_url: Annotated[str, F("URL at which to connect to the WebSocket")]


# --- callbacks

router = Router("Notifications")


def _callback_answer(delivery: CallbackDelivery) -> CallbackAnswer:
    return CallbackAnswer.model_validate(view_of(delivery) | {"body": delivery.body or None})


@router.get("/v1/callbacks", scope="read", summary="List callbacks with their delivery attempts")
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
    return CallbackList(items=[_callback_answer(delivery) for delivery in page.items], next_cursor=page.next_cursor)


@router.get("/v1/callbacks/<delivery_id>", scope="read", summary="Get a callback with its body")
def show_callback(delivery_id: str) -> CallbackAnswer:
    return _callback_answer(app().notifications.callbacks.get(router.caller.project_id, delivery_id))


@router.post(
    "/v1/callbacks/<delivery_id>/redeliver", scope="write", summary="Deliver a callback again", status_code=202
)
def redeliver(delivery_id: str) -> Response[CallbackAnswer]:
    caller = router.caller
    return answer(
        _callback_answer(app().notifications.callbacks.redeliver(caller.project_id, delivery_id, caller.key_id)), 202
    )


@router.get("/v1/callback-secret", scope="write", summary="Get the callback secret of one receiver")
def show_secret(
    origin: Annotated[
        str, Query(max_length=300, description="origin of the receiver, as `https://host` or `https://host:port`")
    ],
) -> Response[OriginSecretAnswer]:
    project = app().projects.projects.get(router.caller.required_project())
    try:
        wanted = read_origin(origin)
    except ValueError as error:
        raise Invalid(str(error), errors=[{"loc": ["query", "origin"], "msg": str(error)}]) from error
    newest = app().projects.callback_secrets.of_origin(project, wanted)[0]
    return answer(OriginSecretAnswer(origin=wanted, callback_secret=newest))


@router.post(
    "/v1/projects/<project_id>/callback-secrets",
    scope="admin",
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
    summary="Retire the previous callback secret",
    status_code=204,
)
def retire_secret(project_id: str) -> Response[Any]:
    app().projects.callback_secrets.retire(project_id, router.caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/ws-tickets",
    scope="any",
    summary="Create a ticket for one WebSocket connection",
    status_code=201,
    middlewares=[idempotent_secret],
)
def ticket() -> Response[TicketAnswer]:
    # With the scope `read` the connection can watch records; an agent's connection is told of new transfers.
    caller = router.caller
    may_watch = caller.is_admin or "read" in caller.scopes
    if not caller.agent_id and not may_watch:
        caller.require("read")
    key_record_id = app().projects.api_keys.record_id(caller.key_id)
    holder = Holder(caller.project_id, key_record_id, caller.agent_id, may_watch, caller.life)
    made = app().notifications.websocket.issue_ticket(holder)
    ws_url = app().settings.socket_url
    return answer(TicketAnswer(ticket=made.ticket, expires_at=made.expires_at, ws_url=ws_url), 201)
