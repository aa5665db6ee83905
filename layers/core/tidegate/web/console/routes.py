"""Routes for the console: its page, its files, and what only the console reads."""

from __future__ import annotations

from urllib.parse import urlsplit

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.errors import RecordNotFound, RouteNotFound
from tidegate.web.console import overview as overviews
from tidegate.web.console.bundle import console
from tidegate.web.console.schemas import ChannelOverview, Me, Overview, TypeAnswer
from tidegate.web.distribution.job_schemas import JobAnswer
from tidegate.web.queue import compensation
from tidegate.web.queue.schemas import RequestAnswer
from tidegate.web.routing import Router
from tidegate.web.static import asset_response, page_headers

router = Router()
_TAGS = ["Console"]


@router.get("/", scope="open", include_in_schema=False)
def page() -> Response[str]:
    return asset_response(router, console().page, page_headers(_connect_origins()))


@router.get("/console/<name>", scope="open", include_in_schema=False)
def asset(name: str) -> Response[str]:
    found = console().assets.get(name)
    if found is None:
        raise RouteNotFound(f"the console has no file {name[:100]}: reload the page, which may be of an older version")
    return asset_response(router, found)


@router.get("/v1/me", scope="read", tags=_TAGS, summary="Get the project and scopes of the key")
def me() -> Me:
    caller = router.caller
    return Me(
        project_id=caller.project_id,
        project_name=_name_of(caller.project_id),
        scopes=sorted(caller.scopes),
        agent_id=caller.agent_id,
        window_seconds=app().settings.collect_window_seconds,
    )


@router.get("/v1/overview", scope="read", tags=_TAGS, summary="Get current activity and the last hour")
def overview() -> Overview:
    reader = overviews.OverviewReader(app().distribution.lookup, app().queue.store, app().clock)
    data = reader.read(router.caller.project_id)
    return Overview(
        channels=[ChannelOverview.model_validate(channel) for channel in app().queue.channels.stats()],
        jobs=[JobAnswer.model_validate(job) for job in data.jobs],
        requests=[RequestAnswer.model_validate(request.shown()) for request in data.requests],
        stats=[TypeAnswer.model_validate(summary) for summary in data.stats],
        complete=data.complete,
        compensation=compensation.show().model_dump(),
    )


def _name_of(project_id: str) -> str | None:
    """The project's name; None for an admin key without a project."""
    try:
        return app().projects.projects.get(project_id).name
    except RecordNotFound:
        return None


def _connect_origins() -> set[str]:
    """The origins that the console connects to besides the API: the upload bucket and the WebSocket."""
    origins = {_origin(app().files.bucket.presign_put("uploads/", 60))}
    if socket_url := app().settings.socket_url:
        origins.add(_origin(socket_url))
    return origins


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
