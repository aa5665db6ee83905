"""Routes that need no key: health, the OpenAPI document and the pages that show it."""

from __future__ import annotations

from functools import cache
from typing import cast

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.aws import keys
from tidegate.web.console.bundle import Asset, console
from tidegate.web.openapi import Api, document
from tidegate.web.routing import Router
from tidegate.web.static import asset_response, page_headers

router = Router("System")


@router.get("/healthz", scope="open", summary="Health check")
def health() -> dict[str, str]:
    app().table.get(keys.project("healthz"))
    return {"status": "ok"}


@router.get("/docs", scope="open", include_in_schema=False)
def docs() -> Response[str]:
    return asset_response(router, console().docs, page_headers())


@router.get("/start", scope="open", include_in_schema=False)
def start() -> Response[str]:
    return asset_response(router, console().start, page_headers())


@router.get("/openapi.json", scope="open", include_in_schema=False)
def openapi_json() -> Response[str]:
    return asset_response(router, _openapi_asset(cast(Api, router.api_resolver)))


@cache
def _openapi_asset(api: Api) -> Asset:
    return Asset("application/json", document(api), lasting=False)
