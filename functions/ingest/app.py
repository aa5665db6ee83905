"""One step of an ingest request: download, scan, associate, check, extract or verify.

The function also ends the request.
"""

from __future__ import annotations

from typing import Any

from tidegate.app import app
from tidegate.ingest.steps import work


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    return work(app().ingest, event, seconds_left=context.get_remaining_time_in_millis() / 1000)
