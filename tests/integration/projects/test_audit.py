"""GET /v1/audit: every line has its actor, filters combine, and pages have no gaps."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.calls import count_calls
from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.projects import audit as audit_table
from tidegate.projects.audit import SYSTEM, act


def lines(cloud: MotoCloud, key: str, **query: Any) -> list[dict[str, Any]]:
    """Every page of the list."""
    found: list[dict[str, Any]] = []
    while True:
        answer = cloud.http("GET", f"/v1/audit?{urlencode(query)}", key=key)
        assert answer.status == 200, answer.body
        found += answer.json()["items"]
        if answer.json()["next_cursor"] is None:
            return found
        query["cursor"] = answer.json()["next_cursor"]


def key_id(key: str) -> str:
    return key.split("_")[1]


def written(cloud: MotoCloud, project: Project, count: int) -> list[dict[str, Any]]:
    """Lines of two keys, the system, two actions and five records, one a second; and all lines, as listed."""
    # The project's own lines are of this millisecond, and lines of one millisecond have no order among records.
    cloud.clock.advance(1)
    for number in range(count):
        who = ("key01a", "key01b", SYSTEM)[number % 3]
        action = ("file.create", "file.complete")[number % 2]
        line = act(project.id, f"file-{number % 5}", cloud.clock(), who, action, str(number))
        cloud.app.projects.audit.record(line)
        cloud.clock.advance(1)
    return lines(cloud, project.key, limit=100)


def test_list_is_newest_first_and_whole_over_any_page_size(cloud: MotoCloud, project: Project) -> None:
    every = written(cloud, project, 60)
    # The oldest line is of the project's own key.
    assert [line["why"] for line in every[:-1]] == [str(number) for number in reversed(range(60))]
    for limit in (1, 7, 20):
        assert lines(cloud, project.key, limit=limit) == every


@pytest.mark.parametrize("limit", [3, 100])
def test_filters_combine(cloud: MotoCloud, project: Project, limit: int) -> None:
    every = written(cloud, project, 60)
    since, until = every[40]["at"], every[10]["at"]

    def expected(**wanted: str) -> list[dict[str, Any]]:
        return [line for line in every if all(line[name] == value for name, value in wanted.items())]

    for wanted in (
        {"actor": "key01a"},
        {"actor": SYSTEM},
        {"action": "file.create"},
        {"record": "file-2"},
        {"record": "file-2", "actor": "key01b"},
        {"actor": "key01b", "action": "file.complete"},
        {"record": "file-1", "actor": "key01a", "action": "file.create"},
    ):
        assert lines(cloud, project.key, limit=limit, **wanted) == expected(**wanted) != []
        within = [line for line in expected(**wanted) if since <= line["at"] <= until]
        assert lines(cloud, project.key, limit=limit, since=since, until=until, **wanted) == within != []
    assert lines(cloud, project.key, limit=limit, since=since, until=until) == every[10:41]
    assert lines(cloud, project.key, actor="key01zz") == []
    assert lines(cloud, project.key, since=until, until=since) == []


def test_rare_line_is_found_behind_many_others(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_table, "_PAGES", 2)
    monkeypatch.setattr(audit_table, "_PAGE_SIZE", 3)
    cloud.app.projects.audit.record(act(project.id, "r", cloud.clock(), "key01a", "rare"))
    written(cloud, project, 90)
    first = cloud.http("GET", "/v1/audit", query={"action": "rare"}, key=project.key).json()
    assert (first["items"], first["next_cursor"] is None) == ([], False)
    assert [line["action"] for line in lines(cloud, project.key, action="rare")] == ["rare"]


def test_filter_by_actor_reads_only_partitions_of_that_actor(cloud: MotoCloud, project: Project) -> None:
    written(cloud, project, 30)
    with count_calls(cloud.app) as calls:
        assert len(lines(cloud, project.key, actor="key01a", limit=100)) == 10
    # The authorizer reads the key.
    assert calls == {"dynamodb.Query": 8, "dynamodb.GetItem": 1}
    with count_calls(cloud.app) as calls:
        lines(cloud, project.key, record="file-1", limit=100)
    assert calls == {"dynamodb.Query": 1, "dynamodb.GetItem": 1}


@pytest.mark.parametrize(
    "query",
    [
        {"since": "0001-01-01T00:00:00+14:00"},
        {"until": "9999-12-31T23:59:59-14:00"},
        {"since": "0999-01-01T00:00:00"},
        {"since": "2020-01-01"},
    ],
)
def test_since_and_until_are_inclusive(cloud: MotoCloud, project: Project, query: dict[str, str]) -> None:
    assert [line["action"] for line in lines(cloud, project.key, **query)] == ["key.create"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"since": "yesterday"}, "since"),
        ({"cursor": "e30"}, "cursor"),
        ({"cursor": "eyJiZWZvcmUiOnsiUyI6In4ifX0"}, "cursor"),
    ],
)
def test_bad_filter_is_422(cloud: MotoCloud, project: Project, query: dict[str, str], field: str) -> None:
    answer = cloud.http("GET", "/v1/audit", query=query, key=project.key)
    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", field])


def test_acts_on_the_deployment_are_listed_for_admins_only(cloud: MotoCloud, project: Project) -> None:
    assert cloud.http("POST", "/v1/queue/pause", json={"scope": "export"}, key=cloud.admin_key).status == 200
    system = lines(cloud, cloud.admin_key, project_id="_system", action="queue.pause")
    assert [(line["record"], line["actor"]) for line in system] == [("export", "admin")]
    # For a project's key, project_id has no effect: it reads its own trail.
    assert lines(cloud, project.key, project_id="_system", action="queue.pause") == []


def test_submit_says_which_key_sent_what_where(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    writer = cloud.make_key(fleet.project.id, ["write"])
    body = fleet.body() | {"target_agent_id": "host-1", "target_file_dir": "/etc/cron.d"}
    made = cloud.http("POST", "/v1/downloads", json=body, key=writer)
    assert made.status == 202, made.body

    (line,) = lines(cloud, fleet.project.key, actor=key_id(writer))
    assert (line["record"], line["action"]) == (made.json()["task_id"], "download.submit")
    assert line["why"].startswith(f"to host-1: /etc/cron.d/{body['file_name']} as {body['target_user']}")
    assert lines(cloud, fleet.project.key, record=made.json()["task_id"]) == [line]


def test_batch_submit_of_1000_targets_is_one_line(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    body = fleet.body() | {"targets": [{"agent_id": f"a{number}"} for number in range(1000)]}
    made = cloud.http("POST", "/v1/downloads/batch", json=body, key=fleet.project.key)
    assert made.status == 202, made.body

    (line,) = lines(cloud, fleet.project.key, actor=key_id(fleet.project.key), action="download.submit")
    assert (line["record"], line["why"][:16]) == (made.json()["job_id"], "to 1000 targets:")


def test_change_that_is_refused_leaves_no_line(cloud: MotoCloud, project: Project) -> None:
    made = cloud.http("POST", "/v1/projects", json={"name": "alpha"}, key=cloud.admin_key)
    assert cloud.http("POST", "/v1/projects", json={"name": "alpha"}, key=cloud.admin_key).status == 409
    assert cloud.http("DELETE", "/v1/keys/key01none", key=cloud.admin_key).status == 404
    found = lines(cloud, cloud.admin_key, project_id="_system", actor="admin")
    assert [(line["record"], line["action"]) for line in found] == [(made.json()["project_id"], "project.create")]
