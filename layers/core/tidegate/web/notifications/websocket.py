"""The route for WebSocket tickets."""

from __future__ import annotations

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.notifications.websocket_messages import Holder
from tidegate.web.idempotency import idempotent_secret
from tidegate.web.notifications.schemas import TicketAnswer
from tidegate.web.routing import Router, answer

router = Router()


@router.post(
    "/v1/ws-tickets",
    scope="any",
    tags=["Notifications"],
    summary="Create a ticket for one WebSocket connection",
    status_code=201,
    middlewares=[idempotent_secret],
)
def ticket() -> Response[TicketAnswer]:
    # With the scope `read` the connection can watch records; an agent's connection is told of new transfers.
    caller = router.caller
    may_watch = caller.is_admin or "read" in caller.scopes
    if not caller.agent_id and not may_watch:
        caller.require("read")
    key_record_id = app().projects.api_keys.record_id(caller.key_id)
    made = app().notifications.tickets.issue(Holder(caller.project_id, key_record_id, caller.agent_id, may_watch))
    ws_url = app().settings.socket_url
    return answer(TicketAnswer(ticket=made.ticket, expires_at=made.expires_at, ws_url=ws_url), 201)
