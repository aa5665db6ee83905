"""Routes for the fleet: its hosts, and enrolment, by which a new host gets its key."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import unquote

from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.openapi.params import Query

from tidegate.app import app
from tidegate.distribution.fleet.model import Inventory
from tidegate.web.distribution.fleet_schemas import (
    AgentAnswer,
    AgentChange,
    AgentList,
    AgentPeers,
    AgentState,
    EnrolBody,
    EnrolledAnswer,
    EnrolmentAnswer,
    EnrolmentBody,
)
from tidegate.web.idempotency import idempotent_secret
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()
_TAGS = ["Fleet"]


@router.get("/v1/agents", scope="read", tags=_TAGS, summary="List agents")
def list_agents(
    group: Annotated[str | None, Query(max_length=63)] = None,
    state: Annotated[AgentState | None, Query()] = None,
    limit: Limit = 20,
    cursor: Cursor = None,
) -> AgentList:
    page = app().distribution.fleet.list(router.caller.project_id, group, state, limit, cursor)
    items = [AgentAnswer.model_validate(agent) for agent in page.items]
    return AgentList(items=items, next_cursor=page.next_cursor)


@router.post("/v1/agents/enrol", scope="open", tags=_TAGS, summary="Enrol a host", status_code=201)
def enrol(body: EnrolBody) -> Response[EnrolledAnswer]:
    made = app().distribution.enrolments.enrol(body.token, body.agent_id, Inventory(body.version, body.zone))
    return answer(EnrolledAnswer.model_validate(made), 201)


@router.get("/v1/agents/<agent_id>", scope="read", tags=_TAGS, summary="Get an agent")
def show(agent_id: str) -> AgentAnswer:
    project_id, name = router.caller.project_id, unquote(agent_id)
    agent = AgentAnswer.model_validate(app().distribution.fleet.get(project_id, name))
    presence = app().distribution.presences.of(project_id, name)
    if presence is None:
        return agent
    peers = AgentPeers(
        site=presence.site, listen=list(presence.listen), reached=presence.reached, upload_mbit=presence.upload_mbit
    )
    return agent.model_copy(update={"peers": peers})


@router.patch("/v1/agents/<agent_id>", scope="write", tags=_TAGS, summary="Change the groups and labels of an agent")
def change(agent_id: str, body: AgentChange) -> AgentAnswer:
    caller = router.caller
    changed = app().distribution.fleet.change(
        caller.project_id, unquote(agent_id), body.groups, body.labels, caller.key_id
    )
    return AgentAnswer.model_validate(changed)


@router.delete(
    "/v1/agents/<agent_id>",
    scope="write",
    tags=_TAGS,
    summary="Delete an agent and revoke its enrolment key",
    status_code=204,
)
def remove(agent_id: str) -> Response[Any]:
    caller = router.caller
    app().distribution.fleet.remove(caller.project_id, unquote(agent_id), caller.key_id)
    return answer(None, 204)


@router.post(
    "/v1/enrolments",
    scope="admin",
    tags=_TAGS,
    summary="Create an enrolment token for hosts",
    status_code=201,
    middlewares=[idempotent_secret],
)
def add_enrolment(body: EnrolmentBody | None = None) -> Response[EnrolmentAnswer]:
    caller, fields = router.caller, body or EnrolmentBody()
    made = app().distribution.enrolments.add(
        caller.project_id, fields.groups, fields.labels, fields.uses, fields.expires_in, caller.key_id
    )
    return answer(EnrolmentAnswer.model_validate(made), 201)
