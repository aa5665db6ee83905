"""Starts each transfer of a Job with its engine, once."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import transfer
from tidegate.distribution.model import FIRST_WAIT, HOPELESS, next_wait, refused
from tidegate.errors import Frozen

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    try:
        state = transfer.dispatch(app().distribution, event["project_id"], event["job_key"])
    except (Frozen, *HOPELESS) as error:
        logger.warning("refused", job_key=event["job_key"], error=error.code, detail=error.detail)
        return refused(error)
    logger.info("dispatched", job_key=event["job_key"], state=state)
    # Retries back off until the engine accepts; after that, polling starts at short intervals.
    return {"state": state, "wait": next_wait(event.get("wait", 0)) if state == transfer.WAITING else FIRST_WAIT}
