"""The whole API: one router a resource."""

from __future__ import annotations

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver

from tidegate.web.resolver import build_resolver
from tidegate.web.routes import callbacks, compensation, files, projects, system


def build_api() -> APIGatewayHttpResolver:
    resolver = build_resolver([system.router, callbacks.router, compensation.router, projects.router, files.router])
    resolver.enable_swagger(path="/docs", title="Tidegate", version="1.0.0")
    return resolver
