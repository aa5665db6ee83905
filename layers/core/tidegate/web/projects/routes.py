"""Routes for projects, for admins."""

from __future__ import annotations

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.distribution.swarm.presence import SwarmSettings
from tidegate.projects.audit import act
from tidegate.projects.model import Project
from tidegate.web.idempotency import idempotent
from tidegate.web.projects.schemas import (
    ProjectAnswer,
    ProjectBody,
    ProjectChange,
    ProjectDetail,
    ProjectList,
    SwarmSettingsAnswer,
    SwarmSettingsBody,
)
from tidegate.web.routing import Cursor, Limit, Router, answer

router = Router()


def _shown(project: Project) -> ProjectDetail:
    return ProjectDetail.of(project, app().queue.project_usage(project.project_id))


@router.post(
    "/v1/projects",
    scope="admin",
    tags=["Projects"],
    summary="Create a project",
    status_code=201,
    middlewares=[idempotent],
)
def create_project(body: ProjectBody) -> Response[ProjectAnswer]:
    private, who = body.allow_private_urls, router.caller.key_id
    project = app().projects.projects.create(body.name, body.group, allow_private_urls=private, who=who)
    return answer(ProjectAnswer.model_validate(project), 201)


@router.get("/v1/projects", scope="admin", tags=["Projects"], summary="List projects")
def list_projects(limit: Limit = 20, cursor: Cursor = None) -> ProjectList:
    page = app().projects.projects.list(limit, cursor)
    return ProjectList(items=[ProjectAnswer.model_validate(item) for item in page.items], next_cursor=page.next_cursor)


@router.get(
    "/v1/projects/<project_id>",
    scope="admin",
    tags=["Projects"],
    summary="Get a project with its quotas and usage",
)
def show_project(project_id: str) -> ProjectDetail:
    return _shown(app().projects.projects.get(project_id, consistent=True))


@router.patch("/v1/projects/<project_id>", scope="admin", tags=["Projects"], summary="Change a project or its quotas")
def change_project(project_id: str, body: ProjectChange) -> ProjectDetail:
    return _shown(app().projects.projects.change(project_id, body.fields(), body.limits(), router.caller.key_id))


@router.get(
    "/v1/projects/<project_id>/swarm", scope="admin", tags=["Projects"], summary="Get a project's swarm settings"
)
def show_swarm_settings(project_id: str) -> SwarmSettingsAnswer:
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.settings(project_id))


@router.put(
    "/v1/projects/<project_id>/swarm", scope="admin", tags=["Projects"], summary="Replace a project's swarm settings"
)
def change_swarm_settings(project_id: str, body: SwarmSettingsBody) -> SwarmSettingsAnswer:
    wanted = SwarmSettings(body.swarm, tuple(body.peer_networks), tuple(body.free_sites))
    line = act(project_id, project_id, app().clock(), router.caller.key_id, "project.swarm", body.swarm)
    return SwarmSettingsAnswer.model_validate(app().distribution.presences.change_settings(project_id, wanted, line))
