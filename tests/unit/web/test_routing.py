"""Routers and the caller whose request they serve."""

from __future__ import annotations

from typing import Any

from tests.support.moto.cloud import lambda_context
from tidegate.web.resolver import build_resolver, serve
from tidegate.web.routing import Router


def asked(key_id: str, project_id: str) -> dict[str, Any]:
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


def test_a_router_shared_by_two_resolvers_knows_the_caller_of_either() -> None:
    router = Router()

    @router.get("/v1/files", scope="read")
    def mine() -> dict[str, str]:
        return {"project": router.caller.project_id}

    first, second = build_resolver([router]), build_resolver([router])

    def answered(resolver: Any, project_id: str) -> str:
        return str(serve(resolver, asked("key", project_id), lambda_context("api"))["body"])

    assert answered(first, "prj-1") == '{"project":"prj-1"}'
    assert answered(second, "prj-2") == '{"project":"prj-2"}'
    assert answered(first, "prj-3") == '{"project":"prj-3"}'
