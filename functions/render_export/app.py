"""Renders the staged rows of an export into one file in the bucket."""

from __future__ import annotations

from typing import Any

from tidegate.app import app


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return app().exports.steps.render(event)
