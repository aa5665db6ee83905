"""What is open to everyone: health, the contract, its reading page."""

from __future__ import annotations

import json
from typing import cast

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.aws import keys
from tidegate.web.openapi import Api, contract
from tidegate.web.routing import Router

router = Router()


@router.get("/healthz", tags=["System"], summary="Is the table there?")
def health() -> dict[str, str]:
    app().table.get(keys.project("healthz"))
    return {"status": "ok"}


@router.get("/openapi.json", include_in_schema=False)
def published() -> Response[str]:
    body = json.dumps(contract(cast(Api, router.api_resolver)))
    return Response(status_code=200, content_type="application/json", body=body)
