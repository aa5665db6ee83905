"""Checks that the file is in the library and matches its signature."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import transfer
from tidegate.distribution.model import HOPELESS, next_wait, refused
from tidegate.errors import Frozen

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    seconds_left = context.get_remaining_time_in_millis() / 1000
    try:
        state = transfer.prepare(app().distribution, event["project_id"], event["job_key"], seconds_left)
    except (Frozen, *HOPELESS) as error:
        logger.warning("refused", job_key=event["job_key"], error=error.code, detail=error.detail)
        return refused(error)
    logger.info("prepared", job_key=event["job_key"], state=state)
    return {"state": state, "wait": next_wait(event.get("wait", 0))}
