"""A host gets a key for its enrolment token, which then works for no other host."""

from __future__ import annotations

from tests.faults.sweep import Scenario
from tests.faults.world import World


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


SCENARIO = Scenario("enrolment", run, works_alone=False)
