"""Serves the two submits of distribution, POST /v1/downloads and /v1/downloads/batch, which are called most often."""

from __future__ import annotations

from typing import Any

from tidegate.web import submits
from tidegate.web.api import build_resolver, serve

api = build_resolver([submits.build_router()])


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return serve(api, event, context)
