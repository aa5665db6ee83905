"""Wakes connected agents when they have new transfers or new goals of releases, or when a transfer was ended."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import fleet

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    for record in event["Records"]:
        body = json.loads(record["body"])
        also = {name: body[name] for name in ("ended", "releases", "repeat") if name in body}
        woken = fleet.wake_now(app().distribution, body["project_id"], body["agents"], int(body["within_s"]), **also)
        logger.info("agents were woken", project_id=body["project_id"], agents=len(body["agents"]), told=woken)
    return {"batchItemFailures": []}
