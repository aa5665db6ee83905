"""Routes for businesses: the services that process the items of batches."""

from __future__ import annotations

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.batches.model import Business
from tidegate.batches.registry import BusinessEntry
from tidegate.web.batches.schemas import BusinessAnswer, BusinessBody, BusinessList
from tidegate.web.idempotency import idempotent
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Batches"]


def _shown(business: Business) -> BusinessAnswer:
    hooks = ("process_url", "before_create_url", "before_run_url", "process_stop_url")
    fields = {name: getattr(business, name) for name in ("biz_id", "name", *hooks, "rate", "created_at")}
    return BusinessAnswer(**fields, has_auth_code=business.auth_code_sha256 is not None)


@router.post(
    "/v1/biz", scope="write", tags=_TAGS, summary="Register a business", status_code=201, middlewares=[idempotent]
)
def register(body: BusinessBody) -> Response[BusinessAnswer]:
    caller, entry = router.caller, BusinessEntry(**body.model_dump())
    return answer(_shown(app().batches.businesses.add(caller.project_id, entry, caller.key_id)), 201)


@router.get("/v1/biz", scope="read", tags=_TAGS, summary="List businesses")
def list_businesses(limit: Limit = 20, cursor: Cursor = None) -> BusinessList:
    page = app().batches.businesses.list(router.caller.project_id, limit, cursor)
    return BusinessList(items=[_shown(business) for business in page.items], next_cursor=page.next_cursor)


@router.get("/v1/biz/<biz_id>", scope="read", tags=_TAGS, summary="Get a business")
def show(biz_id: str) -> BusinessAnswer:
    return _shown(app().batches.businesses.get(router.caller.project_id, biz_id))


@router.put("/v1/biz/<biz_id>", scope="write", tags=_TAGS, summary="Replace a business")
def replace(biz_id: str, body: BusinessBody) -> BusinessAnswer:
    caller, entry = router.caller, BusinessEntry(**body.model_dump())
    return _shown(app().batches.businesses.replace(caller.project_id, biz_id, entry, caller.key_id))
