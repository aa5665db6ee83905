"""The console's page and what only it asks: who am I, and everything at a glance."""

from __future__ import annotations

from urllib.parse import urlsplit

from aws_lambda_powertools.event_handler import Response

from tidegate.app import app
from tidegate.errors import RecordNotFound, RouteNotFound
from tidegate.web.console import overview as overviews
from tidegate.web.console.bundle import console
from tidegate.web.console.schemas import Lane, Me, Overview, TypeAnswer
from tidegate.web.distribution.job_schemas import JobAnswer
from tidegate.web.queue import compensation
from tidegate.web.queue.schemas import RequestAnswer
from tidegate.web.routing import Router
from tidegate.web.static import page_headers, sent

router = Router()
_TAGS = ["Console"]


@router.get("/", scope="open", include_in_schema=False)
def page() -> Response[str]:
    return sent(router, console().page, page_headers(_reached()))


@router.get("/console/<name>", scope="open", include_in_schema=False)
def asset(name: str) -> Response[str]:
    found = console().assets.get(name)
    if found is None:
        raise RouteNotFound("no such file of the console")
    return sent(router, found)


@router.get("/v1/me", scope="read", tags=_TAGS, summary="Whose key this is")
def me() -> Me:
    caller = router.caller
    return Me(
        project_id=caller.project_id,
        project_name=_name_of(caller.project_id),
        scopes=sorted(caller.scopes),
        agent_id=caller.agent_id,
        window_seconds=app().settings.collect_window_seconds,
    )


@router.get("/v1/overview", scope="read", tags=_TAGS, summary="Everything at a glance")
def overview() -> Overview:
    glance = overviews.OverviewReader(app().distribution.lookup, app().queue.store, app().clock).of(
        router.caller.project_id
    )
    return Overview(
        channels=[Lane.model_validate(channel) for channel in app().queue.channels.stats()],
        jobs=[JobAnswer.model_validate(job) for job in glance.jobs],
        requests=[RequestAnswer.model_validate(request.shown()) for request in glance.requests],
        stats=[TypeAnswer.model_validate(summary) for summary in glance.stats],
        complete=glance.complete,
        compensation=compensation.show().model_dump(),
    )


def _name_of(project_id: str) -> str | None:
    """None for an admin who has not chosen a project yet."""
    try:
        return app().projects.projects.get(project_id).name
    except RecordNotFound:
        return None


def _reached() -> set[str]:
    """Beside the API itself: the bucket that uploads go to, and the socket."""
    reached = {_origin(app().files.bucket.presign_put("uploads/", 60))}
    if address := app().settings.socket_url:
        reached.add(_origin(address))
    return reached


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
