"""Ends a Job and sends its notices. Failed steps of the state machine lead here too."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import control, transfer
from tidegate.distribution.model import failure
from tidegate.errors import Frozen

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    error = event.get("error") or {}
    if error.get("Error") == Frozen.__name__:
        control.park(app().distribution, event["project_id"], event["job_key"])
        return {"state": "frozen", "wait": 0}
    if error:
        logger.error("a step of the Job failed", job_key=event["job_key"], error=error)
    reason = failure(str(error.get("Error", "")), str(error.get("Cause", "")))
    state = transfer.finish(app().distribution, event["project_id"], event["job_key"], reason)
    logger.info("finished", job_key=event["job_key"], state=state)
    return {"state": state, "wait": 0}
