"""Takes targets from their queue and binds them to Jobs."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution.collect import TargetMessage
from tidegate.distribution.ports import Arrival
from tidegate.distribution.target_queue import NewTasks

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    messages, unreadable = [], []
    for record in event["Records"]:
        try:
            messages.append(_message(record))
        except (ValueError, KeyError, TypeError):
            logger.exception("a message cannot be read", message_id=record["messageId"])
            unreadable.append(record["messageId"])
    failed = [*unreadable, *app().distribution.collect.collect(messages)]
    logger.info("collected", messages=len(event["Records"]), failed=len(failed))
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}


def _message(record: dict[str, Any]) -> TargetMessage:
    body = json.loads(record["body"])
    arrivals = [Arrival(*row) for row in body["targets"]]
    new = NewTasks(*body["new"]) if "new" in body else None
    return TargetMessage(record["messageId"], body["project_id"], body["job_id"], arrivals, new)
