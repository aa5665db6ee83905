"""What is open to everyone: health, the contract, its reading page."""

from __future__ import annotations

import json
from functools import cache
from typing import cast

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.aws import keys
from tidegate.web.console.bundle import Asset, console
from tidegate.web.openapi import Api, contract
from tidegate.web.routing import Router
from tidegate.web.static import page_headers, sent

router = Router()


@router.get("/healthz", scope="open", tags=["System"], summary="Is the table there?")
def health() -> dict[str, str]:
    app().table.get(keys.project("healthz"))
    return {"status": "ok"}


@router.get("/docs", scope="open", include_in_schema=False)
def docs() -> Response[str]:
    return sent(router, console().docs, page_headers())


@router.get("/start", scope="open", include_in_schema=False)
def start() -> Response[str]:
    return sent(router, console().start, page_headers())


@router.get("/openapi.json", scope="open", include_in_schema=False)
def published() -> Response[str]:
    return sent(router, _contract(cast(Api, router.api_resolver)))


@cache
def _contract(api: Api) -> Asset:
    """Made once a process: reading it from the routes takes longer than most requests."""
    return Asset("application/json", json.dumps(contract(api), separators=(",", ":")), lasting=False)
