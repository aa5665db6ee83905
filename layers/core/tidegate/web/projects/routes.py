"""Projects and keys: the admin's part."""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.distribution.swarm.presence import SwarmSettings
from tidegate.web.idempotency import idempotent
from tidegate.web.projects.schemas import (
    KeyAnswer,
    KeyBody,
    ProjectAnswer,
    ProjectBody,
    ProjectList,
    SwarmSettingsAnswer,
    SwarmSettingsBody,
)
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()


@router.post("/v1/projects", tags=["Projects"], summary="Create a project", status_code=201, middlewares=[idempotent])
def create_project(body: ProjectBody) -> Response[ProjectAnswer]:
    project = app().projects.projects.create(body.name, body.group, allow_private_urls=body.allow_private_urls)
    return answer(ProjectAnswer.model_validate(project), 201)


@router.get("/v1/projects", tags=["Projects"], summary="List projects")
def list_projects(limit: Limit = 20, cursor: Cursor = None) -> ProjectList:
    page = app().projects.projects.list(limit, cursor)
    return ProjectList(items=[ProjectAnswer.model_validate(item) for item in page.items], next_cursor=page.next_cursor)


@router.post(
    "/v1/projects/<project_id>/keys",
    tags=["Projects"],
    summary="Create a key",
    status_code=201,
    middlewares=[idempotent],
)
def create_key(project_id: str, body: KeyBody) -> Response[KeyAnswer]:
    key = app().projects.projects.add_key(project_id, body.scopes, body.agent_id)
    return answer(KeyAnswer.model_validate(key), 201)


@router.delete("/v1/keys/<key_id>", tags=["Projects"], summary="Revoke a key", status_code=204)
def delete_key(key_id: str) -> Response[Any]:
    app().projects.projects.remove_key(key_id)
    return answer(None, 204)


@router.get("/v1/projects/<project_id>/swarm", tags=["Projects"], summary="The project's settings for swarms")
def show_swarm_settings(project_id: str) -> SwarmSettingsAnswer:
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.settings(project_id))


@router.put("/v1/projects/<project_id>/swarm", tags=["Projects"], summary="Set the project's settings for swarms")
def change_swarm_settings(project_id: str, body: SwarmSettingsBody) -> SwarmSettingsAnswer:
    wanted = SwarmSettings(body.swarm, tuple(body.peer_networks), tuple(body.free_sites))
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.change_settings(project_id, wanted))
