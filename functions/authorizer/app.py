"""Identifies the caller. Requests without a valid key pass only at a limited rate. The routes answer them with 401.

The routes' answer is problem+json. Above the rate, API Gateway refuses such requests by itself.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.common.token_bucket import TokenBucket

logger = Logger(service="tidegate")
# Requests without a valid key are passed to the routes at a limited rate, for an answer that says why. The others are
# refused: API Gateway then answers 403 by itself, which AWS does not bill, and no other function runs.
_BURST_SECONDS = 50.0


@cache
def _strangers() -> TokenBucket:
    return TokenBucket(app().settings.strangers_per_second, 0.0, burst_seconds=_BURST_SECONDS)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    headers = {name.lower(): value for name, value in (event.get("headers") or {}).items()}
    scheme, _, key = headers.get("authorization", "").partition(" ")
    known = app().projects.authentication.key_of_token(key.strip()) if scheme.lower() == "bearer" and key else None
    if known is None:
        return {"isAuthorized": not _strangers().take(app().clock().timestamp()), "context": {}}
    logger.info("caller", key_id=known.key_id)
    described = {"key_id": known.key_id, "project_id": known.project_id, "scopes": " ".join(known.scopes)}
    if known.agent_id:
        described["agent_id"] = known.agent_id
        described["life"] = str(known.life)
    elif known.project_id:
        rate, is_default = app().projects.projects.request_rate(known.project_id)
        if rate is not None:
            described |= {"requests_per_s": str(rate)} | ({"default_rate": "yes"} if is_default else {})
    return {"isAuthorized": True, "context": described}
