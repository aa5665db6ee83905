"""The console's page and what only it asks: who am I, and everything at a glance."""

from __future__ import annotations

from urllib.parse import urlsplit

from aws_lambda_powertools.event_handler import Response

from tidegate.bootstrap import app
from tidegate.errors import RecordNotFound, RouteNotFound
from tidegate.schemas.console import Lane, Me, Overview, TypeAnswer
from tidegate.schemas.jobs import JobAnswer
from tidegate.schemas.queue import RequestAnswer
from tidegate.web.bundle import Asset, console
from tidegate.web.routes import compensation
from tidegate.web.routing import Router

router = Router()
_TAGS = ["Console"]
_YEAR = 31_536_000


@router.get("/", scope="open", include_in_schema=False)
def page() -> Response[str]:
    return _sent(console().page, {"content-security-policy": _policy(), "referrer-policy": "no-referrer"})


@router.get("/console/<name>", scope="open", include_in_schema=False)
def asset(name: str) -> Response[str]:
    found = console().assets.get(name)
    if found is None:
        raise RouteNotFound("no such file of the console")
    return _sent(found, {})


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
    glance = app().overview.of(router.caller.project_id)
    return Overview(
        channels=[Lane.model_validate(channel) for channel in app().channels.stats()],
        jobs=[JobAnswer.model_validate(job) for job in glance.jobs],
        requests=[RequestAnswer.model_validate(request.shown()) for request in glance.requests],
        stats=[TypeAnswer.model_validate(summary) for summary in glance.stats],
        complete=glance.complete,
        compensation=compensation.show().model_dump(),
    )


def _name_of(project_id: str) -> str | None:
    """None for an admin who has not chosen a project yet."""
    try:
        return app().projects.get(project_id).name
    except RecordNotFound:
        return None


def _sent(asset: Asset, more: dict[str, str]) -> Response[str]:
    asked = router.current_event.headers
    lasting = f"public, max-age={_YEAR}, immutable" if asset.lasting else "no-cache"
    headers: dict[str, str | list[str]] = {
        "etag": f'"{asset.digest}"',
        "cache-control": lasting,
        "vary": "accept-encoding",
        **more,
    }
    if asset.digest in (asked.get("if-none-match") or ""):
        return Response(status_code=304, headers=headers, body="")
    if "gzip" not in (asked.get("accept-encoding") or ""):
        return Response(200, asset.content_type, asset.text, headers)
    answer = Response(200, asset.content_type, asset.packed, {**headers, "content-encoding": "gzip"})
    answer.base64_encoded = True
    return answer


def _policy() -> str:
    """Only this page's own files, the API beside it, its socket and the bucket that uploads go to."""
    reached = {"'self'", _origin(app().bucket.presign_put("uploads/", 60))}
    if endpoint := app().settings.ws_endpoint:
        # Browsers connect where functions post, over the other scheme.
        reached.add(_origin(endpoint.replace("http", "ws", 1)))
    rules = {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self'",
        "connect-src": " ".join(sorted(reached)),
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return "; ".join(f"{name} {value}" for name, value in rules.items())


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
