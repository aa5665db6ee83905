"""Reads the state of a Job's targets. The interval between polls grows."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import transfer
from tidegate.distribution.model import HOPELESS, next_wait, refused

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    try:
        polled = transfer.poll(app().distribution, event["project_id"], event["job_key"], float(event.get("wait", 0)))
    except HOPELESS as error:
        logger.warning("refused", job_key=event["job_key"], error=error.code, detail=error.detail)
        return refused(error)
    logger.info("polled", job_key=event["job_key"], state=polled.state)
    return {"state": polled.state, "wait": next_wait(event.get("wait", 0), polled.longest_wait)}
