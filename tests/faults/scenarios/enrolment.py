"""Hosts get keys for an enrolment token, and for an AWS role. Neither proof works for another host or twice."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.moto.cloud import Answer, Project
from tests.support.sts import ACCOUNT, INSTANCE, ROLE, Instance, identity_xml
from tidegate.http.client import SafeHttp
from tidegate.http.model import Reply


def run(world: World) -> None:
    project = world.new_project()
    body = {"uses": 1, "groups": ["web"]}
    path = f"/v1/enrolments?project_id={project.id}"
    made = world.ask("POST", path, key=world.cloud.admin_key, json=body)
    assert made.status == 201, made.body
    host = {"token": made.json()["token"], "agent_id": "h-1", "claim": "a-secret-of-this-host"}

    enrolled = world.ask("POST", "/v1/agents/enrol", key="", json=host)

    assert enrolled.status == 201, enrolled.body
    inbox = world.ask("GET", "/v1/agents/h-1/transfers?wait=0", key=enrolled.json()["key"])
    assert inbox.status == 200, inbox.body
    assert world.shown("/v1/agents/h-1", project)["groups"] == ["web"]
    other = world.ask("POST", "/v1/agents/enrol", key="", json={**host, "agent_id": "h-2"})
    assert other.status == 401, other.body
    _by_aws_role(world, project)


def _by_aws_role(world: World, project: Project) -> None:
    roles = {"aws_roles": [{"account": ACCOUNT, "role": ROLE, "groups": ["web"]}]}
    allowed = world.ask("PATCH", f"/v1/projects/{project.id}", key=world.cloud.admin_key, json=roles)
    assert allowed.status == 200, allowed.body
    body = identity_xml(f"arn:aws:sts::{ACCOUNT}:assumed-role/{ROLE}/{INSTANCE}").encode()

    with patch.object(SafeHttp, "send", lambda _self, _method, url, **_: Reply(200, {}, body, url)):
        identity, enrolled = _signs_until_answered(world, Instance(project.id, world.cloud.clock))
        assert enrolled.status == 201, enrolled.body
        inbox = world.ask("GET", f"/v1/agents/{INSTANCE}/transfers?wait=0", key=enrolled.json()["key"])
        assert inbox.status == 200, inbox.body
        again = world.ask("POST", "/v1/agents/enrol", key="", json={"aws": identity})
        assert again.status == 401, again.body
    assert world.shown(f"/v1/agents/{INSTANCE}", project)["groups"] == ["web"]


def _signs_until_answered(world: World, instance: Instance) -> tuple[dict[str, Any], Answer]:
    """As `tidegate agent enrol --aws`: a signature works once, so each try has its own."""
    for _ in range(4):
        identity = instance.identity()
        answer = world.try_ask(
            "POST", "/v1/agents/enrol", key="", json={"aws": identity, "claim": "a-secret-of-the-instance"}
        )
        if answer and answer.status < 500 and not (answer.status == 409 and b"agent_exists" not in answer.body):
            return identity, answer
        world.repeated += 1
        world.cloud.clock.advance(1)
    raise AssertionError("the instance was never answered")


SCENARIO = Scenario("enrolment", run, works_alone=False)
