"""What is open to everyone: health, the contract, its reading page."""

from __future__ import annotations

import json
from typing import cast

from aws_lambda_powertools.event_handler import Response

from tidegate.adapters.dynamo import keys
from tidegate.bootstrap import app
from tidegate.web.contract import Api, contract
from tidegate.web.routing import Router

router = Router()


@router.get("/healthz", scope="open", tags=["System"], summary="Is the table there?")
def health() -> dict[str, str]:
    app().table.get(keys.project("healthz"))
    return {"status": "ok"}


@router.get("/openapi.json", scope="open", include_in_schema=False)
def published() -> Response[str]:
    body = json.dumps(contract(cast(Api, router.api_resolver)))
    return Response(status_code=200, content_type="application/json", body=body)
