"""Identifies the caller. It refuses no request: the routes answer 401 and 403 themselves, as problem+json."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    scheme, _, key = headers.get("authorization", "").partition(" ")
    known = app().projects.known_keys.describe(key.strip()) if scheme.lower() == "bearer" and key else None
    logger.info("caller", key_id=known.key_id if known else None)
    if known is None:
        return {"isAuthorized": True, "context": {}}
    described = {"key_id": known.key_id, "project_id": known.project_id, "scopes": " ".join(known.scopes)}
    if known.agent_id:
        described["agent_id"] = known.agent_id
    elif known.project_id and (rate := app().projects.rate_quotas.of_project(known.project_id)) is not None:
        described["requests_per_s"] = str(rate)
    return {"isAuthorized": True, "context": described}
