"""Runs one slice of a batch, a few minutes long, or handles the failure of one."""

from __future__ import annotations

from typing import Any

from tidegate.app import app
from tidegate.batches import slice as batch_slice


def handler(event: dict[str, Any], _: Any) -> dict[str, Any]:
    return batch_slice.step(app().batches, event)
