"""The list of agents, groups and labels, and what a Job's targets show for hosts without a report."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet


def patch(fleet: Fleet, agent_id: str, **body: Any) -> Any:
    return fleet.cloud.http("PATCH", f"/v1/agents/{agent_id}", json=body, key=fleet.project.key)


def record_seen(fleet: Fleet, *agent_ids: str) -> None:
    for agent_id in agent_ids:
        fleet.cloud.app.distribution.fleet_store.note_seen(fleet.project.id, agent_id, fleet.cloud.clock())


def test_list_pages_through_all_agents_once(fleet: Fleet) -> None:
    names = {f"host-{number:02}" for number in range(45)}
    record_seen(fleet, *names)

    listed: list[str] = []
    query: dict[str, Any] = {"limit": 7}
    while True:
        page = fleet.get("/v1/agents", **query)
        assert len(page["items"]) <= 7
        listed += [item["agent_id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]

    assert len(listed) == 45
    assert set(listed) == names


def test_list_filters_by_group_and_state(fleet: Fleet) -> None:
    record_seen(fleet, "web-1", "web-2", "db-1")
    for agent_id in ("web-1", "web-2"):
        assert patch(fleet, agent_id, groups=["web"]).status == 200
    fleet.cloud.clock.advance(3600)
    record_seen(fleet, "web-2")

    assert {item["agent_id"] for item in fleet.get("/v1/agents", group="web")["items"]} == {"web-1", "web-2"}
    online = fleet.get("/v1/agents", group="web", state="online")["items"]
    assert [item["agent_id"] for item in online] == ["web-2"]


@pytest.mark.parametrize("cursor", ["x", "eyJhIjp7IlMiOiIxIn19"])
def test_unknown_cursor_is_refused(fleet: Fleet, cursor: str) -> None:
    answer = fleet.cloud.http("GET", "/v1/agents", key=fleet.project.key, query={"cursor": cursor})

    assert answer.status == 422


def test_patch_replaces_only_the_given_fields(fleet: Fleet) -> None:
    record_seen(fleet, "a-1")
    patch(fleet, "a-1", groups=["web", "canary"], labels={"os": "debian"})

    patch(fleet, "a-1", groups=[])

    shown = fleet.get("/v1/agents/a-1")
    assert (shown["groups"], shown["labels"]) == ([], {"os": "debian"})


def test_patch_of_an_unknown_agent_is_404(fleet: Fleet) -> None:
    assert patch(fleet, "nobody", groups=["x"]).status == 404


@pytest.mark.parametrize("body", [{}, {"groups": ["no space allowed "]}, {"labels": {"a": "x" * 64}}, {"zone": "z"}])
def test_patch_with_a_bad_field_is_422(fleet: Fleet, body: dict[str, Any]) -> None:
    record_seen(fleet, "a-1")

    assert patch(fleet, "a-1", **body).status == 422


def test_another_projects_agent_is_404(fleet: Fleet) -> None:
    record_seen(fleet, "a-1")
    other = fleet.cloud.project()

    assert fleet.cloud.http("GET", "/v1/agents/a-1", key=other.key).status == 404
    assert fleet.cloud.http("DELETE", "/v1/agents/a-1", key=other.key).status == 404


def test_deleted_agent_is_gone_and_the_deletion_audited(fleet: Fleet) -> None:
    record_seen(fleet, "a-1")

    assert fleet.cloud.http("DELETE", "/v1/agents/a-1", key=fleet.project.key).status == 204

    assert fleet.cloud.http("GET", "/v1/agents/a-1", key=fleet.project.key).status == 404
    assert [line["action"] for line in fleet.get("/v1/audit", record="a-1")["items"]] == ["agent.delete"]


def test_agent_shows_its_unfinished_transfers(fleet: Fleet) -> None:
    record_seen(fleet, "a-1")
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 115, progress=40)

    (current,) = fleet.get("/v1/agents/a-1")["current"]

    assert (current["job_id"], current["file_name"], current["progress"]) == (job_id, "app.bin", 40)


def targets(fleet: Fleet, job_id: str) -> dict[str, dict[str, Any]]:
    items = fleet.get(f"/v1/jobs/{fleet.job(job_id)['key']}/targets", limit=100)["items"]
    return {item["agent_id"]: item for item in items}


def test_job_targets_distinguish_offline_from_slow_hosts(fleet: Fleet) -> None:
    record_seen(fleet, "gone")
    fleet.cloud.clock.advance(3600)
    fleet.to_window_start()
    job_id = fleet.submit_many(["never", "gone", "slow", "busy"])["job_id"]
    fleet.run_until_dispatched(job_id)
    record_seen(fleet, "slow")
    fleet.report("busy", 115, progress=20)
    fleet.step("poll_transfer", job_id)

    rows = targets(fleet, job_id)

    assert rows["never"]["error_msg"] == "offline: no agent of this name has ever connected"
    assert rows["gone"]["error_msg"].startswith("offline: the agent was last seen at ")
    assert rows["slow"]["error_msg"] == "online, and has not reported on this transfer yet"
    assert rows["busy"]["agent_state"] is None
    assert [rows[name]["agent_state"] for name in ("never", "gone", "slow")] == ["offline", "offline", "online"]


def test_target_of_an_open_window_shows_that_its_agent_never_connected(fleet: Fleet) -> None:
    job_id = fleet.submit("never")["job_id"]
    fleet.collect()

    assert targets(fleet, job_id)["never"]["error_msg"] == "offline: no agent of this name has ever connected"
