"""The WebSocket's routes: connect with a ticket, watch and unwatch, disconnect."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Logger

from tidegate.app import app
from tidegate.errors import RateLimited

logger = Logger(service="tidegate")


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    request = event["requestContext"]
    connection_id, kind = request["connectionId"], request["eventType"]
    status = 200
    if kind == "CONNECT":
        given = event.get("queryStringParameters") or {}
        try:
            connected = app().notifications.websocket.connect(connection_id, given.get("ticket", ""), given)
            status = 200 if connected else 401
        except RateLimited:
            status = 429
    elif kind == "DISCONNECT":
        app().notifications.websocket.disconnect(connection_id)
    else:
        app().notifications.websocket.receive(connection_id, event.get("body") or "")
    logger.info("websocket", event_type=kind, status=status)
    return {"statusCode": status}
