"""Ends an export: publishes its file or reports its failure."""

from __future__ import annotations

from typing import Any

from tidegate.app import app
from tidegate.exports import steps


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return steps.publish(app().exports, event)
