"""The API includes the routes of a path at the first request for it, and refuses what no table entry names."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from itertools import permutations
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from aws_lambda_powertools.event_handler.router import APIGatewayHttpRouter

import tidegate.web
from tests.support.moto.cloud import MotoCloud, lambda_context
from tidegate.web.api import ROUTES, WholeApi, build_api, serve, start_of
from tidegate.web.routing import Router, ScopeNotDeclared

HERE = Path(tidegate.web.__file__).parent
ADMIN = {"key_id": "admin", "project_id": "", "scopes": "admin"}
# Serves one request without a key in a new process, and prints the status and the imported route modules.
COLD_REQUEST = """
import json, sys
from tests.support.moto.cloud import MotoCloud, lambda_context
from tidegate.web.api import ROUTES, build_api
from tidegate.web.api import serve
event = MotoCloud._http_event(sys.argv[1], sys.argv[2], "", {}, None)
status = serve(build_api(), event, lambda_context("api"))["statusCode"]
names = {name for names in ROUTES.values() for name in names}
print(json.dumps([status, sorted(name for name in names if f"tidegate.web.{name}" in sys.modules)]))
"""


def router_of(module: ModuleType) -> Router | None:
    made = module.build_router() if hasattr(module, "build_router") else getattr(module, "router", None)
    return made if isinstance(made, Router) else None


def routers() -> dict[str, Router]:
    """Every module of tidegate.web that has routes, whether the table names it or not."""
    paths = (path.relative_to(HERE).with_suffix("") for path in HERE.rglob("*.py") if path.stem != "__init__")
    found = {name: router_of(import_module(f"tidegate.web.{name}")) for name in (".".join(p.parts) for p in paths)}
    return {name: router for name, router in found.items() if router}


@cache
def compiled(rule: str) -> re.Pattern[str]:
    pattern: re.Pattern[str] = WholeApi()._compile_regex(rule)
    return pattern


def ask(api: WholeApi, method: str, path: str) -> tuple[int, dict[str, Any]]:
    event = MotoCloud._http_event(method, path, "", {}, None)
    event["requestContext"]["authorizer"] = {"lambda": ADMIN}
    answer = serve(api, event, lambda_context("api"))
    return answer["statusCode"], answer["headers"]


def test_table_names_the_module_of_every_route_and_no_other() -> None:
    defined = {(start_of(rule), name) for name, router in routers().items() for _, rule in router.scopes}
    assert {(start, name) for start, names in ROUTES.items() for name in names} == defined


def test_no_path_matches_routes_of_two_modules() -> None:
    """Else the order in which a warm function included them would decide."""
    rules = [(name, method, rule) for name, router in routers().items() for method, rule in router.scopes]
    for (first, method, rule), (second, other_method, other) in permutations(rules, 2):
        if first != second and method == other_method:
            path = re.sub(r"<\w+>", "x", rule)
            assert not compiled(other).match(path), (first, rule, second, other)


@pytest.mark.parametrize(
    ("path", "imported"),
    [
        ("/v1/jobs/x", ["distribution", "submits"]),
        ("/v1/task", ["exports"]),
        ("/v1/tasks", ["exports"]),
        ("/v1/nothing", []),
    ],
)
def test_cold_request_imports_only_the_routes_of_its_path(path: str, imported: list[str]) -> None:
    command = [sys.executable, "-c", COLD_REQUEST, "GET", path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == [401, imported]


def test_unknown_path_is_404_and_unknown_method_405_in_a_new_function() -> None:
    assert ask(build_api(), "GET", "/v1/nothing")[0] == 404
    assert ask(build_api(), "GET", "/nothing/at/all")[0] == 404
    assert ask(build_api(), "GET", "/v1/jobs/x/nothing")[0] == 404
    status, headers = ask(build_api(), "PATCH", "/v1/projects")
    assert (status, headers["allow"]) == (405, "GET, POST")
    # Two modules have routes with this path.
    status, headers = ask(build_api(), "PUT", "/v1/downloads")
    assert (status, headers["allow"]) == (405, "GET, POST")


def test_warm_function_includes_each_module_once() -> None:
    api = build_api()
    assert api.scopes == {}
    for _ in range(2):
        assert ask(api, "PATCH", "/v1/jobs")[0] == 405
    assert {start_of(rule) for _, rule in api.scopes} == {"/v1/jobs", "/v1/downloads"}
    assert ask(api, "PATCH", "/v1/downloads")[0] == 405
    api.include_all()
    assert len(api.scopes) == sum(len(router.scopes) for router in routers().values())


def test_module_with_a_route_without_scope_is_never_served(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tidegate.web.careless")
    module.router = Router()  # type: ignore[attr-defined]
    module.router.get("/v1/careless/first", scope="open")(dict)
    APIGatewayHttpRouter.get(module.router, "/v1/careless/second")(dict)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    # Only this one: the routers of the others are shared, and would belong to the API that failed.
    monkeypatch.setattr("tidegate.web.api.ROUTES", {"/v1/careless": ("careless",)})
    with pytest.raises(ScopeNotDeclared, match="/v1/careless/second"):
        build_api().include_all()
    api = build_api()
    for path in ("/v1/careless/second", "/v1/careless/first", "/v1/careless/second"):
        with pytest.raises(ScopeNotDeclared):
            ask(api, "GET", path)


def test_order_of_an_export_imports_nothing_that_renders() -> None:
    """A cold start that only submits need not load openpyxl."""
    code = "import sys, tidegate.exports.exports; print({'openpyxl', 'lxml', 'tidegate.sheets.files'} & {*sys.modules})"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
