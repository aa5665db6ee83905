"""The whole API. A cold start imports only the routes of the path that it serves."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tidegate.web.openapi import Api
from tidegate.web.resolver import with_error_handlers

if TYPE_CHECKING:
    from aws_lambda_powertools.event_handler.api_gateway import ResponseBuilder
    from aws_lambda_powertools.event_handler.openapi.models import OpenAPI

# Start of a path (two parts under /v1, else one) → the modules of `tidegate.web` with routes that start so.
ROUTES: dict[str, tuple[str, ...]] = {
    "/": ("console.routes",),
    "/console": ("console.routes",),
    "/docs": ("system",),
    "/healthz": ("system",),
    "/openapi.json": ("system",),
    "/start": ("system",),
    "/v1/agents": ("agents", "fleet"),
    "/v1/archive": ("queue",),
    "/v1/audit": ("queue",),
    "/v1/batch-schedules": ("schedules",),
    "/v1/batches": ("batches",),
    "/v1/biz": ("batches",),
    "/v1/callback-secret": ("notifications",),
    "/v1/callbacks": ("notifications",),
    "/v1/cleanup": ("queue",),
    "/v1/compensation": ("queue",),
    "/v1/credentials": ("ingest",),
    "/v1/download": ("exports",),
    "/v1/downloads": ("submits", "distribution"),
    "/v1/enrolments": ("fleet",),
    "/v1/export-schedules": ("schedules",),
    "/v1/files": ("files",),
    "/v1/host-pauses": ("ingest",),
    "/v1/jobs": ("distribution",),
    "/v1/keys": ("projects",),
    "/v1/me": ("console.routes",),
    "/v1/ops": ("queue",),
    "/v1/overview": ("console.routes",),
    "/v1/projects": ("notifications", "projects"),
    "/v1/queue": ("queue",),
    "/v1/releases": ("releases",),
    "/v1/requests": ("queue",),
    "/v1/sign-in": ("projects",),
    "/v1/sign-in-tickets": ("projects",),
    "/v1/stats": ("queue",),
    "/v1/subscriptions": ("ingest",),
    "/v1/system": ("console.routes",),
    "/v1/task": ("exports",),
    "/v1/tasks": ("exports",),
    "/v1/ws-tickets": ("notifications",),
}


class WholeApi(Api):
    """Includes a module's routes at the first request for them; all of them for the OpenAPI document."""

    def __init__(self) -> None:
        super().__init__()
        self._included: set[str] = set()

    def include_all(self) -> None:
        """Includes every module. Raises ScopeNotDeclared if any route has no scope."""
        for start in ROUTES:
            self.include_routes_of(start)

    def get_openapi_schema(self, **options: Any) -> OpenAPI:
        self.include_all()
        return super().get_openapi_schema(**options)

    def _resolve(self) -> ResponseBuilder[Any]:
        self.include_routes_of(self.current_event.path)
        return super()._resolve()

    def include_routes_of(self, path: str) -> None:
        for name in ROUTES.get(start_of(path), ()):
            if name not in self._included:
                module = import_module(f"tidegate.web.{name}")
                self.include_router(module.build_router() if hasattr(module, "build_router") else module.router)
                self._included.add(name)


def start_of(path: str) -> str:
    """The key in ROUTES of a path or a route's rule."""
    parts = path.split("/")
    return "/".join(parts[: 3 if parts[1:2] == ["v1"] else 2])


def build_api() -> WholeApi:
    """The API without any routes yet."""
    return with_error_handlers(WholeApi())
