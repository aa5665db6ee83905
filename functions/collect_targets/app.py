"""Receives targets from the queue and binds them to Jobs."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import window
from tidegate.distribution.submit import read_message

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    messages, unreadable = [], []
    for record in event["Records"]:
        try:
            messages.append(read_message(record["messageId"], json.loads(record["body"])))
        except (ValueError, KeyError, TypeError):
            logger.exception("a message cannot be parsed", message_id=record["messageId"])
            unreadable.append(record["messageId"])
    failed = [*unreadable, *window.collect(app().distribution, messages)]
    if failed:
        app().distribution.target_messages.retry_soon(
            [record for record in event["Records"] if record["messageId"] in failed]
        )
    logger.info("collected", messages=len(event["Records"]), failed=len(failed))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
