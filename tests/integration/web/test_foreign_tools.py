"""The OpenAPI document works with tools that nobody here wrote: a validator and a generator of clients."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator
from pytest_httpserver import HTTPServer

from tests.support.exports.paged_source import PagedSource
from tests.support.exports.running import ExportWorld
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.web.api import build_api
from tidegate.web.openapi import contract
from tidegate.web.reference.document import operations_of

GENERATED = "generated_tidegate"


@cache
def published() -> dict[str, Any]:
    return contract(build_api())


def test_document_is_valid_openapi() -> None:
    assert [str(error) for error in OpenAPIV31SpecValidator(published()).iter_errors()] == []


def schemas_in(value: Any) -> Iterator[str]:
    """Names of the schemas that a part of the document refers to, and those that these refer to."""
    waiting, seen = [value], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, list):
            waiting += part
        elif isinstance(part, dict):
            waiting += part.values()
            name = str(part.get("$ref", "")).removeprefix("#/components/schemas/")
            if name and name not in seen:
                seen.add(name)
                yield name
                waiting.append(published()["components"]["schemas"][name])


def test_bodies_of_changes_name_no_defaults() -> None:
    """A generated client sends the defaults that a schema names, so a PATCH of one field would reset the others."""
    named = [
        f"PATCH {path}: {schema}.{name}"
        for method, path, operation in operations_of(published())
        if method == "patch"
        for schema in schemas_in(operation["requestBody"])
        for name, field in published()["components"]["schemas"][schema].get("properties", {}).items()
        if "default" in field
    ]
    assert named == []


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The client that openapi-python-client makes of the document, importable for as long as the tests run."""
    place = tmp_path_factory.mktemp("client")
    (place / "openapi.json").write_text(json.dumps(published()))
    (place / "config.yaml").write_text("post_hooks: []\n")
    tool = Path(sys.executable).with_name("openapi-python-client")
    command = [str(tool), "generate", "--path", "openapi.json", "--config", "config.yaml", "--meta", "none"]
    command += ["--output-path", GENERATED, "--fail-on-warning"]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    sys.path.insert(0, str(place))
    yield place / GENERATED
    sys.path.remove(str(place))
    for name in [name for name in sys.modules if name.split(".")[0] == GENERATED]:
        del sys.modules[name]


def client(cloud: MotoCloud, key: str) -> Any:
    """A generated client whose requests go to the functions on moto."""

    def send(request: httpx.Request) -> httpx.Response:
        path, _, query = request.url.raw_path.decode().partition("?")
        headers = {name: request.headers[name] for name in ("authorization", "content-type") if name in request.headers}
        with cloud.windows_stay_open():
            answer = cloud.http(
                request.method, f"{path}?{query}", headers=headers, body=request.content.decode() or None
            )
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body)

    made = importlib.import_module(GENERATED).AuthenticatedClient
    transport = httpx.MockTransport(send)
    return made("https://api.example", key, raise_on_unexpected_status=True, httpx_args={"transport": transport})


def call(module: str, caller: Any, *args: Any, **fields: Any) -> Any:
    return importlib.import_module(f"{GENERATED}.api.{module}").sync(*args, client=caller, **fields)


def model(name: str, fields: dict[str, Any]) -> Any:
    return getattr(importlib.import_module(f"{GENERATED}.models"), name).from_dict(fields)


def test_generated_client_has_every_operation(generated: Path) -> None:
    made = [path for path in generated.glob("api/*/*.py") if path.stem != "__init__"]
    assert len(made) == len(list(operations_of(published()))) >= 129


@pytest.mark.usefixtures("generated")
def test_generated_client_submits_a_download_and_reads_it(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    caller = client(cloud, fleet.project.key)
    body = model("DownloadBody", fleet.body(target_agent_id="a-1"))

    submitted = call("distribution.submit_v1_downloads_post", caller, body=body)
    task = call("distribution.show_task_v1_downloads_task_get", caller, submitted.task_id)
    job = call("distribution.show_job_v1_jobs_job_get", caller, submitted.job_id)

    assert (task.target_agent_id, task.status.value, task.file_signature) == ("a-1", "Pending", fleet.signature)
    assert (job.job_id, job.status.value) == (submitted.job_id, "Pending")


@pytest.mark.usefixtures("generated")
def test_generated_client_submits_an_export_and_gets_its_file(cloud: MotoCloud, httpserver: HTTPServer) -> None:
    world = ExportWorld(cloud, cloud.project(), PagedSource(httpserver))
    caller = client(cloud, world.project.key)
    body = model("TaskBody", {"name": "orders", "source_data": [{"id": 1}, {"id": 2}], "line_end": "crlf"})

    accepted = call("exports.submit_v1_task_post", caller, body=body)
    world.run(accepted.task_id)
    task = call("exports.show_v1_task_get", caller, task_id=accepted.task_id)
    link = call("exports.link_v1_download_url_get", caller, task_id=accepted.task_id)

    assert (task.status, task.name) == ("completed", "orders")
    assert httpx.URL(link.url).host
    assert world.file(accepted.task_id) == b"id\r\n1\r\n2\r\n"


@pytest.mark.usefixtures("generated")
def test_generated_client_changes_one_field_of_a_project_only(cloud: MotoCloud) -> None:
    project = cloud.project(allow_private_urls=True)
    path, caller = f"/v1/projects/{project.id}", client(cloud, cloud.admin_key)
    given = {"deliver_to": ["reports/*"], "quotas": {"queued": 7}}
    assert cloud.http("PATCH", path, key=cloud.admin_key, json=given).status == 200
    before = cloud.http("GET", path, key=cloud.admin_key).json()

    changed = model("ProjectChange", {"name": "renamed"})
    call("projects.change_project_v1_projects_project_id_patch", caller, project.id, body=changed)

    assert cloud.http("GET", path, key=cloud.admin_key).json() == {**before, "name": "renamed"}
