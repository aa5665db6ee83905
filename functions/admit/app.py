"""Admits waiting requests of channels.

Each channel is a FIFO group, so only one invocation at a time serves a channel.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tidegate.app import app
from tidegate.queue.admission import admit_each


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    messages: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for record in event["Records"]:
        messages[json.loads(record["body"])["channel"]].append(record)
    failed = [_newest(messages[name]) for name in admit_each(app().queue, messages)]
    if failed:
        app().queue.admission_queue.retry_soon(failed)
    return {"batchItemFailures": [{"itemIdentifier": record["messageId"]} for record in failed]}


def _newest(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the message that SQS has delivered least often, so that SQS can still deliver it several times.

    One message is enough, because its run does the work that all of them ask for.
    """
    return min(records, key=lambda record: int(record["attributes"]["ApproximateReceiveCount"]))
