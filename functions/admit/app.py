"""Admits waiting requests of a channel. Each channel is a FIFO group, so one message of it runs at a time."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    failed: list[str] = []
    for record in event["Records"]:
        channel = json.loads(record["body"])["channel"]
        try:
            app().queue.admission.admit(channel)
        except Exception:
            logger.exception("admission failed and will be retried", channel=channel)
            app().queue.admission_queue.retry_soon(record)
            failed.append(record["messageId"])
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
