"""Ends an export: publishes its file or reports its failure."""

from __future__ import annotations

from typing import Any

from tidegate.app import app


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return app().exports.steps.publish(event)
