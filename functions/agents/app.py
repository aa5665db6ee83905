"""The agents' inbox and results. Long polls wait here, in a small function, and take no room from the API's."""

from __future__ import annotations

from typing import Any

from tidegate.web.distribution import agents
from tidegate.web.resolver import build_resolver, serve

api = build_resolver([agents.build_router()])


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return serve(api, event, context)
