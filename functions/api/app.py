"""Serves the API, its docs and the console: all routes except the two submits of distribution."""

from __future__ import annotations

from typing import Any

from tidegate.web.api import build_api, serve

api = build_api()


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return serve(api, event, context)
