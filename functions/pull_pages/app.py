"""Pulls pages of an export's source into the staging area, until the invocation's time is over."""

from __future__ import annotations

from typing import Any

from tidegate.app import app
from tidegate.exports import steps


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return steps.pull(app().exports, event, seconds_left=context.get_remaining_time_in_millis() / 1000)
