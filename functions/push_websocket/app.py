"""Pushes notices from the topic to the WebSocket clients that watch the record."""

from __future__ import annotations

import json
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> None:
    for record in event["Records"]:
        notice = json.loads(record["Sns"]["Message"])
        sent = app().notifications.websocket.push(notice)
        logger.info("pushed", record_id=notice["record_id"], type=notice["type"], told=sent)
