"""Ends an export: its file is published, or its failure is told."""

from __future__ import annotations

from typing import Any

from tidegate.app import app


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return app().exports.steps.publish(event)
