"""Runs once a minute: queues scans of subscriptions that are due."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, int]:
    if app().freeze.now().frozen:
        return {"fired": 0}
    fired = app().ingest.scans.fire()
    logger.info("scans queued", count=fired)
    return {"fired": fired}
