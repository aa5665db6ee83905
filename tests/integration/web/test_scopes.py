"""The reviewed scope of each route, and that no spelling of a path bypasses it."""

from __future__ import annotations

import json
import re
from io import StringIO
from typing import Any

import pytest
from aws_lambda_powertools.event_handler import Response
from aws_lambda_powertools.event_handler.api_gateway import Route
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

from tests.support import sample
from tests.support.fuzz.path_spellings import odd_spellings
from tests.support.moto.cloud import MotoCloud, lambda_context
from tidegate.web.api import WholeApi, build_api, build_resolver, logger, serve
from tidegate.web.openapi import Api, contract
from tidegate.web.routing import Router, ScopeNotDeclared

AGENT = "host-1"
# Scope, method and path of every route. A change here changes who may do what: review it.
REVIEWED = """
open   GET    /
open   GET    /console/{name}
open   GET    /docs
open   GET    /healthz
open   GET    /openapi.json
open   GET    /start
read   GET    /v1/agents
open   POST   /v1/agents/enrol
write  DELETE /v1/agents/{agent_id}
read   GET    /v1/agents/{agent_id}
read   GET    /v1/agents/{agent_id}/files
write  PATCH  /v1/agents/{agent_id}
agent  POST   /v1/agents/{agent_id}/results
agent  GET    /v1/agents/{agent_id}/transfers
agent  PUT    /v1/agents/{agent_id}/releases
read   GET    /v1/releases
write  PUT    /v1/releases/{name}
read   GET    /v1/releases/{name}
write  DELETE /v1/releases/{name}
read   GET    /v1/releases/{name}/revisions
read   GET    /v1/releases/{name}/revisions/{number}
read   GET    /v1/releases/{name}/hosts
read   GET    /v1/releases/{name}/drift
write  POST   /v1/releases/{name}/rollback
write  POST   /v1/releases/{name}/pause
write  POST   /v1/releases/{name}/resume
write  POST   /v1/releases/{name}/activate
write  POST   /v1/releases/{name}/gate
admin  POST   /v1/sign-in-tickets
sign_in POST  /v1/sign-in
read   GET    /v1/archive
read   GET    /v1/audit
read   GET    /v1/batch-schedules
write  POST   /v1/batch-schedules
write  DELETE /v1/batch-schedules/{schedule_id}
read   GET    /v1/batch-schedules/{schedule_id}
write  PATCH  /v1/batch-schedules/{schedule_id}
read   GET    /v1/batch-schedules/{schedule_id}/runs
read   GET    /v1/batches
write  POST   /v1/batches
read   GET    /v1/batches/{batch_id}
write  PATCH  /v1/batches/{batch_id}
write  DELETE /v1/batches/{batch_id}
write  POST   /v1/batches/{batch_id}/biz-start
write  POST   /v1/batches/{batch_id}/biz-stop
write  POST   /v1/batches/{batch_id}/data
write  POST   /v1/batches/{batch_id}/dry-run
read   GET    /v1/batches/{batch_id}/items
write  POST   /v1/batches/{batch_id}/items/{index}/result
read   GET    /v1/batches/{batch_id}/logs
write  POST   /v1/batches/{batch_id}/logs
write  POST   /v1/batches/{batch_id}/logs/export
write  POST   /v1/batches/{batch_id}/redrive
read   GET    /v1/batches/{batch_id}/results
write  POST   /v1/batches/{batch_id}/start
write  POST   /v1/batches/{batch_id}/stop
read   GET    /v1/biz
write  POST   /v1/biz
read   GET    /v1/biz/{biz_id}
write  DELETE /v1/biz/{biz_id}
write  PUT    /v1/biz/{biz_id}
read   GET    /v1/callbacks
read   GET    /v1/callbacks/{delivery_id}
write  POST   /v1/callbacks/{delivery_id}/redeliver
admin  POST   /v1/cleanup
read   GET    /v1/compensation
admin  POST   /v1/compensation/trigger
read   GET    /v1/credentials
write  DELETE /v1/credentials/{name}
write  PUT    /v1/credentials/{name}
read   GET    /v1/download/async
read   GET    /v1/download/sync
read   POST   /v1/download/sync
read   GET    /v1/download/sync/multiple
read   POST   /v1/download/sync/multiple
read   GET    /v1/download/url
read   GET    /v1/downloads
write  POST   /v1/downloads
read   GET    /v1/downloads/{task}
write  POST   /v1/downloads/batch
admin  POST   /v1/enrolments
read   GET    /v1/files
write  POST   /v1/files
read   GET    /v1/files/{file_id}
write  POST   /v1/files/{file_id}/complete
write  POST   /v1/files/{file_id}/parts
write  DELETE /v1/files/{file_id}
read   GET    /v1/files/{file_id}/url
read   GET    /v1/host-pauses
write  DELETE /v1/host-pauses/{origin}
read   GET    /v1/jobs
read   GET    /v1/jobs/{job}
write  PATCH  /v1/jobs/{job}
write  POST   /v1/jobs/{job}/cancel
write  POST   /v1/jobs/{job}/redrive
read   GET    /v1/jobs/{job}/map
read   GET    /v1/jobs/{job}/targets
admin  DELETE /v1/keys/{key_id}
read   GET    /v1/me
admin  POST   /v1/ops/freeze
admin  POST   /v1/ops/reconcile
admin  POST   /v1/ops/thaw
read   GET    /v1/overview
admin  GET    /v1/projects
admin  POST   /v1/projects
write  GET    /v1/callback-secret
admin  POST   /v1/projects/{project_id}/callback-secrets
admin  DELETE /v1/projects/{project_id}/callback-secrets/previous
admin  GET    /v1/projects/{project_id}
admin  PATCH  /v1/projects/{project_id}
admin  GET    /v1/projects/{project_id}/keys
admin  GET    /v1/projects/{project_id}/swarm
admin  PUT    /v1/projects/{project_id}/swarm
agent  PUT    /v1/agents/{agent_id}/presence
admin  GET    /v1/keys
admin  POST   /v1/keys
admin  POST   /v1/keys/{key_id}/rotate
admin  POST   /v1/projects/{project_id}/keys
read   GET    /v1/queue
admin  POST   /v1/queue/capacity
admin  POST   /v1/queue/pause
admin  POST   /v1/queue/resume
read   GET    /v1/queue/stats
write  POST   /v1/requests
read   GET    /v1/requests/{request_id}
write  POST   /v1/requests/{request_id}/cancel
write  POST   /v1/requests/{request_id}/pause
write  POST   /v1/requests/{request_id}/prioritize
write  POST   /v1/requests/{request_id}/resume
write  POST   /v1/requests/{request_id}/retry
write  POST   /v1/requests/{request_id}/retry-now
read   GET    /v1/stats
admin  GET    /v1/system
read   GET    /v1/export-schedules
write  POST   /v1/export-schedules
write  POST   /v1/export-schedules/multiple
read   GET    /v1/export-schedules/{schedule_id}
write  PATCH  /v1/export-schedules/{schedule_id}
write  DELETE /v1/export-schedules/{schedule_id}
write  POST   /v1/export-schedules/{schedule_id}/pause
write  POST   /v1/export-schedules/{schedule_id}/resume
read   GET    /v1/export-schedules/{schedule_id}/runs
read   GET    /v1/subscriptions
write  POST   /v1/subscriptions
write  POST   /v1/subscriptions/preview
write  PATCH  /v1/subscriptions/{subscription_id}
write  POST   /v1/subscriptions/{subscription_id}/pause
write  POST   /v1/subscriptions/{subscription_id}/resume
write  POST   /v1/requests/bulk
read   GET    /v1/requests/{request_id}/log
write  DELETE /v1/subscriptions/{subscription_id}
read   GET    /v1/subscriptions/{subscription_id}
write  POST   /v1/subscriptions/{subscription_id}/download
read   GET    /v1/subscriptions/{subscription_id}/runs
read   GET    /v1/subscriptions/{subscription_id}/tasks
read   GET    /v1/task
write  PATCH  /v1/task
write  POST   /v1/task
write  POST   /v1/task/multiple
read   GET    /v1/task/placeholders
write  POST   /v1/task/sample
read   GET    /v1/tasks
write  POST   /v1/tasks/delete
any    POST   /v1/ws-tickets
"""
# The only statuses that a refused caller may see: bad path, no key, no scope, no such route or method.
REFUSALS = {(400, "bad_path"), (401, "unauthenticated"), (403, "scope_missing")} | {
    (404, "route_not_found"),
    (405, "method_not_allowed"),
}


def declared(api: WholeApi) -> dict[tuple[str, str], str]:
    api.include_all()
    return {(method, re.sub(r"<(\w+)>", r"{\1}", rule)): scope for (method, rule), scope in api.scopes.items()}


def reviewed() -> dict[tuple[str, str], str]:
    rows = (line.split() for line in REVIEWED.strip().splitlines())
    return {(method, path): scope for scope, method, path in rows}


@pytest.fixture(scope="module")
def api() -> WholeApi:
    return build_api()


@pytest.fixture(scope="module")
def callers() -> dict[str, dict[str, Any]]:
    """The authorizer's context for every kind of key."""
    with MotoCloud() as cloud:
        mine, other = cloud.project(), cloud.project()
        keys = {
            "none": None,
            "unknown": "tg_key01unknown_" + "0" * 40,
            "read": cloud.make_key(mine.id, ["read"]),
            "write": cloud.make_key(mine.id, ["write"]),
            "agent": cloud.make_key(mine.id, ["agent"], AGENT),
            "another agent": cloud.make_key(mine.id, ["agent"], "host-2"),
            "other project": other.key,
            "admin": cloud.admin_key,
        }
        described = {kind: _described(cloud, key) for kind, key in keys.items()}
        # All routes are more requests than a project may send.
        return {kind: {**context, "requests_per_s": ""} for kind, context in described.items()}


def _described(cloud: MotoCloud, key: str | None) -> dict[str, Any]:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    event = cloud._http_event("GET", "/v1/files", "", headers, None)
    described: dict[str, Any] = cloud.invoke("authorizer", {**event, "type": "REQUEST"})["context"]
    return described


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replaces all routes by ones that answer 299, and lists those that were called."""
    routes: list[tuple[str, str]] = []
    call_route = Route.__call__

    def call(route: Route, *args: Any, **options: Any) -> Any:
        if route.func.__name__ == "not_found_handler":
            return call_route(route, *args, **options)
        routes.append((route.method, re.sub(r"<(\w+)>", r"{\1}", route.path)))
        return Response(status_code=299, content_type="text/plain", body="reached")

    monkeypatch.setattr(Route, "__call__", call)
    return routes


def ask(api: Api, method: str, path: str, caller: dict[str, Any]) -> dict[str, Any]:
    event = MotoCloud._http_event(method, path, "", {"content-type": "application/json"}, None)
    event["requestContext"]["authorizer"] = {"lambda": caller}
    return serve(api, event, lambda_context("api"))


def refusal(answer: dict[str, Any]) -> tuple[int, str]:
    code = re.search(r'"code": "(\w+)"', str(answer["body"]))
    return answer["statusCode"], code.group(1) if code else ""


def test_route_scope_table_is_the_reviewed_one(api: WholeApi) -> None:
    scopes = declared(api)
    for (method, path), scope in sorted(scopes.items(), key=lambda row: (row[0][1], row[0][0])):
        print(f"{scope:6} {method:6} {path}")
    assert scopes == reviewed()


def test_openapi_document_names_the_scope_of_each_route(api: Api) -> None:
    documented = {
        (method.upper(), path): operation["security"][0]["key"] if operation["security"] else ["open"]
        for path, operations in contract(api)["paths"].items()
        for method, operation in operations.items()
    }
    hidden = {("GET", "/"), ("GET", "/console/{name}"), ("GET", "/docs"), ("GET", "/start"), ("GET", "/openapi.json")}
    assert documented == {route: [scope] for route, scope in reviewed().items() if route not in hidden}


def allowed(scope: str, kind: str) -> bool:
    holds = {"read": {"read"}, "write": {"write"}, "agent": {"agent"}, "other project": {"read", "write"}}
    if scope == "any":
        return kind not in ("none", "unknown")
    return scope == "open" or kind == "admin" or scope in holds.get(kind, set())


def test_each_kind_of_key_reaches_only_routes_of_its_scopes(
    api: Api, callers: dict[str, Any], reached: list[tuple[str, str]]
) -> None:
    for (method, path), scope in reviewed().items():
        for kind, caller in callers.items():
            reached.clear()
            answer = ask(api, method, path.replace("{agent_id}", AGENT), caller)
            if allowed(scope, kind):
                assert reached == [(method, path)], (kind, method, path, answer["statusCode"])
            else:
                expected = (401, "unauthenticated") if kind in ("none", "unknown") else (403, "scope_missing")
                assert (reached, refusal(answer)) == ([], expected), (kind, method, path)


def test_spelling_of_a_path_does_not_change_its_scope(
    api: Api, callers: dict[str, Any], reached: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # All spellings are more requests than a host may send.
    monkeypatch.setattr("tidegate.web.api.AGENT_RATE", 1e9)
    table, tried, step = reviewed(), 0, sample.step(6)
    for number, (method, path) in enumerate(table):
        plain = path.replace("{agent_id}", AGENT)
        # Each route gets other spellings, so that a sample of routes covers all of them.
        for odd in odd_spellings(plain)[number % step :: step]:
            for kind, caller in callers.items():
                reached.clear()
                answer = ask(api, method, odd, caller)
                tried += 1
                for route in reached:
                    assert allowed(table[route], kind), f"{kind} key reached {route} by {method} {odd!r}"
                if not reached:
                    assert refusal(answer) in REFUSALS, (kind, method, odd, answer)
    assert tried > 50_000 // step


def test_path_with_encoded_control_character_is_400_bad_path(api: Api, callers: dict[str, Any]) -> None:
    for odd in ("/v1/projects%0A", "/v1/projects\n", "/v1/queue/pause%0a", "/healthz%00", "/v1/files/%C2%85"):
        for caller in callers.values():
            assert refusal(ask(api, "GET", odd, caller)) == (400, "bad_path")


def test_unknown_route_is_401_without_a_key(api: Api, callers: dict[str, Any]) -> None:
    assert refusal(ask(api, "GET", "/v1/nothing", callers["none"])) == (401, "unauthenticated")
    assert refusal(ask(api, "PATCH", "/v1/files", callers["unknown"])) == (401, "unauthenticated")
    assert refusal(ask(api, "GET", "/v1/nothing", callers["read"])) == (404, "route_not_found")
    assert refusal(ask(api, "PATCH", "/v1/files", callers["read"])) == (405, "method_not_allowed")
    assert refusal(ask(api, "GET", "/nothing", callers["none"])) == (404, "route_not_found")


@pytest.mark.parametrize("body", ["{", '{"biz_id": "x"}', '{"unknown": 1}'])
def test_scope_is_checked_before_the_body(api: Api, callers: dict[str, Any], body: str) -> None:
    for method, path, kind in (
        ("POST", "/v1/files", "read"),
        ("POST", "/v1/projects", "write"),
        ("POST", f"/v1/agents/{AGENT}/results", "another agent"),
    ):
        event = MotoCloud._http_event(method, path, "", {"content-type": "application/json"}, body)
        event["requestContext"]["authorizer"] = {"lambda": callers[kind]}
        assert refusal(serve(api, event, lambda_context("api"))) == (403, "scope_missing")


def test_route_without_a_scope_cannot_be_registered() -> None:
    plain = APIGatewayHttpRouter()
    plain.get("/v1/secret")(dict)
    with pytest.raises(ScopeNotDeclared, match="GET /v1/secret"):
        build_resolver([plain])

    misspelt = Router()
    misspelt.get("/v1/secret", scope="raed")(dict)  # type: ignore[arg-type]
    with pytest.raises(ScopeNotDeclared, match="raed"):
        build_resolver([misspelt])

    unbound = Router()
    unbound.get("/v1/agents", scope="agent")(dict)
    with pytest.raises(ScopeNotDeclared, match="agent_id"):
        build_resolver([unbound])

    first, second = Router(), Router()
    first.get("/v1/secret", scope="admin")(dict)
    second.get("/v1/secret", scope="read")(dict)
    with pytest.raises(ScopeNotDeclared, match="twice"):
        build_resolver([first, second])
    with pytest.raises(ValueError, match="twice"):
        first.get("/v1/secret", scope="read")

    with pytest.raises(TypeError):
        Router().get("/v1/secret")  # type: ignore[call-arg]


def test_warm_function_does_not_reuse_the_previous_caller(api: Api, callers: dict[str, Any]) -> None:
    from tidegate.errors import Unauthenticated
    from tidegate.web.routing import current_caller

    ask(api, "GET", "/v1/nothing", callers["admin"])
    ask(api, "GET", "/nothing", callers["none"])
    with pytest.raises(Unauthenticated):
        current_caller()


def test_log_line_of_every_request_has_key_id_and_request_id(
    api: Api, callers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = StringIO()
    monkeypatch.setattr(logger.registered_handler, "stream", log)
    for path, kind in (("/v1/nothing", "read"), ("/v1/projects", "read"), ("/v1/x%0A", "read"), ("/v1/files", "none")):
        answer = ask(api, "GET", path, callers[kind])
        line = json.loads(log.getvalue().splitlines()[-1])
        assert (line["message"], line["status"]) == ("answered", answer["statusCode"])
        assert line.get("key_id") == callers[kind].get("key_id")
        assert line["request_id"] == answer["headers"]["x-request-id"] != ""
