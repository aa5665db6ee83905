"""Keys: the admin's part."""

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


def _listed(page: Listed[ApiKey]) -> KeyList:
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
    # Who may only read, and a host, have no use for what proves that a callback is ours. Derived before the key is
    # made: a root secret that cannot be read leaves no key behind that nobody has seen.
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
    summary="List a project's keys; never the keys themselves",
)
def list_keys(project_id: str, limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _listed(app().projects.api_keys.list(project_id, limit, cursor))


@router.post(
    "/v1/keys",
    scope="admin",
    tags=_TAGS,
    summary="Create an admin key",
    status_code=201,
    middlewares=[idempotent_secret],
)
def create_admin_key(body: AdminKeyBody) -> Response[NewKeyAnswer]:
    made = app().projects.api_keys.add_admin(name=body.name, expires_in=body.expires_in, by=router.caller.key_id)
    return answer(NewKeyAnswer(key_id=made.key_id, key=made.key), 201)


@router.get("/v1/keys", scope="admin", tags=_TAGS, summary="List admin keys; the deployment's own has the id admin")
def list_admin_keys(limit: Limit = 20, cursor: Cursor = None) -> KeyList:
    return _listed(app().projects.api_keys.list_admin(limit, cursor))


@router.post(
    "/v1/keys/<key_id>/rotate",
    scope="admin",
    tags=_TAGS,
    summary="A new key in place of this one, which works for the overlap",
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
