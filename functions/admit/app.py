"""A channel has room, or something new: one message at a time in each channel's FIFO group."""

from __future__ import annotations

import json
from typing import Any

from tidegate.app import app


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    for channel in dict.fromkeys(json.loads(record["body"])["channel"] for record in event["Records"]):
        app().queue.admission.admit(channel)
    return {"batchItemFailures": []}
