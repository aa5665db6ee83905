"""Renders the staged rows of an export into one file in the bucket."""

from __future__ import annotations

from typing import Any

from tidegate.app import app
from tidegate.exports import steps


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return steps.render(app().exports, event)
