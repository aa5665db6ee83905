"""One of several workers that pull and render ranges of an export's pages, until the invocation's time is over."""

from __future__ import annotations

from typing import Any

from tidegate.app import app


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return app().exports.steps.render_ranges(event, seconds_left=context.get_remaining_time_in_millis() / 1000)
