"""One of several workers that pull and render ranges of an export's pages, until the invocation's time is over."""

from __future__ import annotations

from typing import Any

from tidegate.app import app
from tidegate.exports import steps


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return steps.render_ranges(app().exports, event, seconds_left=context.get_remaining_time_in_millis() / 1000)
