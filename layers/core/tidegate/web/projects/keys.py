"""Routes for API keys, for admins."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.common.listing import Listed
from tidegate.projects.model import ApiKey
from tidegate.web.idempotency import idempotent_secret
from tidegate.web.projects.schemas import AdminKeyBody, KeyAnswer, KeyBody, KeyList, KeyRecord, NewKeyAnswer, RotateBody
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Projects"]


def _key_list(page: Listed[ApiKey]) -> KeyList:
    now = app().clock()
    return KeyList(items=[KeyRecord.of(key, now) for key in page.items], next_cursor=page.next_cursor)


@router.post(
    "/v1/projects/<project_id>/keys",
    scope="admin",
    tags=_TAGS,
    summary="Create a key",
    status_code=201,
    middlewares=[idempotent_secret],
)
def create_key(project_id: str, body: KeyBody) -> Response[KeyAnswer]:
    # Only keys of scope write get the callback secret. It is derived before the key is created: if the root secret
    # cannot be read, no key is left behind that nobody has seen.
    secret = (
        app().projects.callback_secrets.newest(app().projects.projects.get(project_id))
        if "write" in body.scopes
        else None
    )
    made = app().projects.api_keys.add(
        project_id,
        body.scopes,
        body.agent_id,
        name=body.name,
        expires_in=body.expires_in,
        by=router.caller.key_id,
    )
    return answer(KeyAnswer(key_id=made.key_id, key=made.key, callback_secret=secret), 201)


@router.get(
    "/v1/projects/<project_id>/keys",
    scope="admin",
    tags=_TAGS,
    summary="List a project's keys",
)
def list_keys(project_id: str, limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _key_list(app().projects.api_keys.list(project_id, limit, cursor))


@router.post(
    "/v1/keys",
    scope="admin",
    tags=_TAGS,
    summary="Create an admin key",
    status_code=201,
    middlewares=[idempotent_secret],
)
def create_admin_key(body: AdminKeyBody | None = None) -> Response[NewKeyAnswer]:
    fields = body or AdminKeyBody()
    made = app().projects.api_keys.add_admin(name=fields.name, expires_in=fields.expires_in, by=router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.get("/v1/keys", scope="admin", tags=_TAGS, summary="List admin keys")
def list_admin_keys(limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _key_list(app().projects.api_keys.list_admin(limit, cursor))


@router.post(
    "/v1/keys/<key_id>/rotate",
    scope="admin",
    tags=_TAGS,
    summary="Replace a key with a new one",
    status_code=201,
    middlewares=[idempotent_secret],
)
def rotate_key(key_id: str, body: RotateBody | None = None) -> Response[NewKeyAnswer]:
    made = app().projects.api_keys.rotate(key_id, (body or RotateBody()).overlap_s, router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.delete(
    "/v1/keys/<key_id>", scope="admin", tags=_TAGS, summary="Revoke a key and close its WebSockets", status_code=204
)
def delete_key(key_id: str) -> Response[Any]:
    app().projects.api_keys.revoke(key_id, router.caller.key_id)
    return answer(None, 204)
