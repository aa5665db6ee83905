"""Delivers callbacks from the queue in parallel, so that a slow receiver does not delay the rest of the batch."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    records = event["Records"]
    # Wired before the threads start; otherwise each thread would wire it.
    deliverer, callbacks = app().notifications.deliverer, app().notifications.callbacks

    def process(record: dict[str, Any]) -> bool:
        try:
            message = json.loads(record["body"])
            if "message_id" in message:
                deliverer.accept(message)
            elif "due" in message:
                deliverer.resume(message["project_id"], message["delivery_id"], message["due"])
            else:
                callbacks.redrive(message["project_id"], message["delivery_id"])
        except Exception:
            logger.exception("a callback failed and stays in the queue", message_id=record["messageId"])
            return False
        return True

    with ThreadPoolExecutor(len(records)) as threads:
        outcomes = list(threads.map(process, records))
    logger.info("callbacks", taken=len(records), failed=outcomes.count(False))
    failed = [record["messageId"] for record, done in zip(records, outcomes, strict=True) if not done]
    return {"batchItemFailures": [{"itemIdentifier": message_id} for message_id in failed]}
