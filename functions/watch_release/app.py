"""Looks once at the hosts of a roll-out. Then it wakes hosts that are behind, opens the next wave, or rolls back."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.releases import rollout

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    name, before = event["name"], event["step"]
    at = (before["revision"], before["generation"], before["looks"], before["wait"])
    step = rollout.look(app().releases, event["project_id"], name, *at)
    logger.info("looked at a release", release=name, revision=step["revision"], state=step["state"])
    return step
