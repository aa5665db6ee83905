"""Closes a Job's window. The Job then accepts no more targets, and the targets that it has are written as shards."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.distribution import window
from tidegate.distribution.model import PENDING

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    running = app()
    if running.freeze.is_on:
        # The next step ends the execution, even if the freeze is over by then.
        return {"status": "frozen", "targets": 0, "deadline": None}
    job = window.close(running.distribution, event["project_id"], event["job_key"])
    said = "no target has arrived yet" if job.status == PENDING else "closed"
    logger.info(said, job_id=job.job_id, status=job.status, targets=job.counts.total, shards=job.shard_count)
    return {"status": job.status, "targets": job.counts.total, "deadline": job.deadline}
