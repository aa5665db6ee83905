"""Routers return the caller of the current request."""

from __future__ import annotations

from typing import Any

from tests.support.moto.cloud import lambda_context
from tidegate.web.api import build_resolver, serve
from tidegate.web.routing import Router


def request_event(key_id: str, project_id: str) -> dict[str, Any]:
    caller = {"key_id": key_id, "project_id": project_id, "scopes": "read", "agent_id": ""}
    return {
        "version": "2.0",
        "rawPath": "/v1/files",
        "rawQueryString": "",
        "headers": {},
        "requestContext": {
            "http": {"method": "GET", "path": "/v1/files"},
            "requestId": "1",
            "stage": "$default",
            "authorizer": {"lambda": caller},
        },
    }


def test_router_in_two_resolvers_returns_the_current_caller() -> None:
    router = Router()

    @router.get("/v1/files", scope="read")
    def mine() -> dict[str, str]:
        return {"project": router.caller.project_id}

    first, second = build_resolver([router]), build_resolver([router])

    def body_of(resolver: Any, project_id: str) -> str:
        return str(serve(resolver, request_event("key", project_id), lambda_context("api"))["body"])

    assert body_of(first, "prj-1") == '{"project":"prj-1"}'
    assert body_of(second, "prj-2") == '{"project":"prj-2"}'
    assert body_of(first, "prj-3") == '{"project":"prj-3"}'
