"""Serves the routes of agents. This is a separate function, so that long polls do not use up the API's concurrency."""

from __future__ import annotations

from typing import Any

from tidegate.web import agents
from tidegate.web.api import build_resolver, serve

api = build_resolver([agents.build_router()])


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return serve(api, event, context)
