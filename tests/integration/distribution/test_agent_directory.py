"""The directory of the hosts' agent: a file sent there runs as root, so only admins may send."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.support.fleet import Fleet
from tidegate.distribution.model import is_agent_directory, job_key

UPDATE_DIR = "/.tidegate/agent"


def submit(fleet: Fleet, key: str, directory: str = UPDATE_DIR, **more: Any) -> Any:
    body = fleet.body(target_agent_id="a-1", target_file_dir=directory, **more)
    query = {"project_id": fleet.project.id} if key == fleet.cloud.admin_key else {}
    return fleet.cloud.http("POST", "/v1/downloads", json=body, key=key, query=query)


@pytest.mark.parametrize(
    "directory",
    [
        UPDATE_DIR,
        f"{UPDATE_DIR}/",
        "/.tidegate",
        "//.tidegate//agent",
        "/./.tidegate/agent",
        "/.tidegate/other",
        "/.TIDEGATE/agent",
    ],
)
def test_write_key_cannot_address_the_directory_of_the_agent(fleet: Fleet, directory: str) -> None:
    answer = submit(fleet, fleet.project.key, directory)

    assert (answer.status, answer.json()["code"]) == (403, "scope_missing")
    assert "only an admin key" in answer.json()["detail"]
    body = fleet.body(targets=[{"agent_id": "a-1"}], target_file_dir=directory)
    assert fleet.post("/v1/downloads/batch", body).status == 403
    assert fleet.get("/v1/jobs")["items"] == []


def test_admin_key_sends_a_release_and_a_write_key_cannot_repeat_it(fleet: Fleet) -> None:
    job_id = submit(fleet, fleet.cloud.admin_key).json()["job_id"]
    fleet.run_until_dispatched(job_id)
    (item,) = fleet.inbox("a-1")
    assert item["target_file_dir"] == UPDATE_DIR
    fleet.report("a-1", 1007)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    path = f"/v1/jobs/{job_key(job_id)}/redrive"

    assert fleet.post(path, {}).status == 403

    query = {"project_id": fleet.project.id}
    assert fleet.cloud.http("POST", path, json={}, key=fleet.cloud.admin_key, query=query).status == 202


def test_neighbouring_directories_are_open_to_write_keys(fleet: Fleet) -> None:
    assert submit(fleet, fleet.project.key, "/.tidegate-data").status == 202
    assert submit(fleet, fleet.project.key, "/srv/.tidegate/agent").status == 202
    assert not is_agent_directory("/")


def test_redrive_of_a_job_from_before_the_rule_is_refused_too(fleet: Fleet) -> None:
    """A Job of an earlier version may have been submitted by a write key."""
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 7)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    distribution = fleet.cloud.app.distribution
    stored = distribution.jobs.require(fleet.project.id, job_key(job_id))
    old = replace(stored, spec=replace(stored.spec, target_file_dir=UPDATE_DIR))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(distribution.jobs), "require", lambda *_args, **_more: old)
        assert fleet.post(f"/v1/jobs/{job_key(job_id)}/redrive", {}).status == 403
