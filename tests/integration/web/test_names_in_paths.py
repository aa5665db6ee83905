"""File names and host names with characters that an HTTP API decodes on the way: `%41`, `?`, `#`, spaces, slashes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, unquote

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud
from tidegate.web.api import build_api

NAMES = ["/a/b%41.bin", "/a/what?.bin", "/a/n#1 é+.bin", "/a/100%.bin", "/a/%2F..%2Fb.bin"]
JOB_ROUTES = [
    ("GET", "/v1/jobs/<job>"),
    ("PATCH", "/v1/jobs/<job>"),
    ("GET", "/v1/jobs/<job>/targets"),
    ("GET", "/v1/jobs/<job>/map"),
    ("POST", "/v1/jobs/<job>/cancel"),
    ("POST", "/v1/jobs/<job>/redrive"),
]
TASK_ROUTES = [("GET", "/v1/downloads/<task>")]


@pytest.fixture(scope="module")
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def ids_of(fleet: Fleet, path: str) -> tuple[dict[str, Any], str, str]:
    """(what was submitted, the Job's key, the Task's uuid)"""
    made = fleet.submit(file_path=path)
    fleet.collect()
    job = next(job for job in fleet.get("/v1/jobs")["items"] if job["job_id"] == made["job_id"])
    return made, job["key"], made["task_id"].rsplit(":", 1)[1]


def test_every_route_of_a_job_or_task_is_tried_here() -> None:
    api = build_api()
    api.include_all()
    routes = [*api._static_routes, *api._dynamic_routes]
    assert {(r.method, r.path) for r in routes if "<job>" in r.path or "<task>" in r.path} == {
        *JOB_ROUTES,
        *TASK_ROUTES,
    }


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("by_id", [False, True])
def test_job_and_task_are_found_whatever_their_file_is_called(cloud: MotoCloud, name: str, by_id: bool) -> None:
    fleet = Fleet(cloud)
    made, key, uuid = ids_of(fleet, name)
    job, task = (quote(made["job_id"], safe=""), quote(made["task_id"], safe="")) if by_id else (key, uuid)
    for method, route in [*TASK_ROUTES, *JOB_ROUTES]:
        path = route.replace("<job>", job).replace("<task>", task)
        body = {"POST": {}, "PATCH": {"note": "n"}}.get(method)
        answer = cloud.http(method, path, json=body, key=fleet.project.key)
        # The Job has failed no target yet, so that redrive finds nothing to send again.
        assert answer.status in (200, 202, 409), (method, route, answer.body)
        if route in ("/v1/jobs/<job>", "/v1/downloads/<task>"):
            assert answer.json()["file_path"] == name


@pytest.mark.parametrize("kept", ["", "%25"])
@pytest.mark.parametrize("agent_id", ["a%41", "a?b", "a#b", "host:é+1", "50%"])
def test_host_is_found_whatever_it_is_called(cloud: MotoCloud, agent_id: str, kept: str) -> None:
    project = cloud.project()
    key = project.agent_key(agent_id)
    path = quote(agent_id, safe="")
    if kept:
        # Some gateways decode everything but this.
        path = path.replace("%25", "%2525")
    assert cloud.http("GET", f"/v1/agents/{path}/transfers", key=key).status == 200

    shown = cloud.http("GET", f"/v1/agents/{path}", key=project.key)
    changed = cloud.http("PATCH", f"/v1/agents/{path}", json={"groups": ["g"]}, key=project.key)
    assert (shown.json()["agent_id"], changed.json()["groups"]) == (agent_id, ["g"])
    assert cloud.http("DELETE", f"/v1/agents/{path}", key=project.key).status == 204


def test_key_of_one_host_reaches_no_other_by_its_encoding(cloud: MotoCloud) -> None:
    project = cloud.project()
    key = project.agent_key("a%41")
    assert cloud.http("GET", "/v1/agents/aA/transfers", key=key).status == 403
    other = project.agent_key("aA")
    assert cloud.http("GET", f"/v1/agents/{quote('a%41', safe='')}/transfers", key=other).status == 403


def test_encoded_control_character_is_refused(cloud: MotoCloud) -> None:
    project = cloud.project()
    for path in ("/v1/files/a%0Ab", "/v1/files/a%250Ab", "/v1/files/a%25250Ab", "/v1/jobs/AsyncDownloadJob:%0A"):
        assert cloud.http("GET", path, key=project.key).json()["code"] == "bad_path", unquote(path)
