"""The hot path alone: POST /v1/downloads and /batch."""

from __future__ import annotations

from typing import Any

from tidegate.web.resolver import build_resolver, serve
from tidegate.web.routes import submits

api = build_resolver([submits.build_router()])


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return serve(api, event, context)
