"""Starts a channel's admission when a back-off is over.

The function has a separate queue, because messages of a FIFO queue cannot be delayed one by one.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from tidegate.app import app


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    now = app().clock()
    due: list[str] = []
    for record in event["Records"]:
        body = json.loads(record["body"])
        at = datetime.fromisoformat(body["at"])
        if at > now:
            app().queue.admission_queue.wake(body["channel"], at, now)
        else:
            due.append(body["channel"])
    app().queue.admission_queue.trigger(*due)
    return {"batchItemFailures": []}
