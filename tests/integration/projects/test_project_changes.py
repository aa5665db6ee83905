"""Showing and changing a project and its quotas."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.aws import keys
from tidegate.projects.model import DEFAULTS


def show(cloud: MotoCloud, project: Project) -> dict[str, Any]:
    answer = cloud.http("GET", f"/v1/projects/{project.id}", key=cloud.admin_key)
    assert answer.status == 200, answer.body
    return dict(answer.json())


def change(cloud: MotoCloud, project: Project, **body: Any) -> Answer:
    return cloud.http("PATCH", f"/v1/projects/{project.id}", json=body, key=cloud.admin_key)


def limits(shown: dict[str, Any]) -> dict[str, Any]:
    """The limits that were set."""
    return {
        name: value for name, value in shown["quotas"].items() if name not in shown["defaults"] and value is not None
    }


def test_project_is_shown_with_quotas_and_usage_and_no_secret(cloud: MotoCloud, project: Project) -> None:
    shown = show(cloud, project)

    assert shown["project_id"] == project.id
    assert shown["allow_private_urls"] is True
    assert limits(shown) == {}
    assert shown["defaults"] == dict.fromkeys(DEFAULTS.keys() - {"share"}, True)
    assert shown["quotas"]["subscriptions"] == 1000
    assert shown["usage"] == {
        "stored_bytes": 0,
        "queued": 0,
        "export_schedules": 0,
        "batch_schedules": 0,
        "subscriptions": 0,
        "businesses": 0,
        "batches": 0,
        "unstarted_batches": 0,
        "open_uploads": 0,
        "runner_hours_per_day": 0,
        "egress_bytes_per_day": 0,
        "targets_per_day": 0,
        "outgoing_calls_per_day": 0,
        "running": {},
    }
    assert "whsec" not in str(shown)


def test_change_sets_what_it_names_and_leaves_the_rest(cloud: MotoCloud, project: Project) -> None:
    quotas = {"stored_bytes": 10**12, "queued": 50, "requests_per_s": 20, "share": {"export": 2}}
    assert change(cloud, project, group="ops", quotas=quotas).status == 200

    changed = change(cloud, project, allow_private_urls=False, quotas={"queued": 7})

    assert changed.status == 200
    assert changed.json() == show(cloud, project)
    assert (changed.json()["group"], changed.json()["allow_private_urls"]) == ("ops", False)
    assert limits(changed.json()) == quotas | {"queued": 7}


def test_null_lifts_a_quota_and_removes_the_group(cloud: MotoCloud, project: Project) -> None:
    change(cloud, project, group="ops", quotas={"queued": 5, "share": {"export": 2}})

    change(cloud, project, group=None, quotas={"queued": None})

    shown = show(cloud, project)
    assert shown.get("group") is None
    assert limits(shown) == {"share": {"export": 2}}


def test_project_is_renamed_and_its_old_name_is_free(cloud: MotoCloud, project: Project) -> None:
    before = show(cloud, project)["name"]

    assert change(cloud, project, name="renamed").json()["name"] == "renamed"

    assert cloud.http("POST", "/v1/projects", json={"name": before}, key=cloud.admin_key).status == 201
    taken = cloud.http("POST", "/v1/projects", json={"name": "renamed"}, key=cloud.admin_key)
    assert (taken.status, taken.json()["code"]) == (409, "project_exists")


def test_name_that_another_project_has_is_409_and_changes_nothing(cloud: MotoCloud, project: Project) -> None:
    other = cloud.project("taken")

    answer = change(cloud, project, name="taken", allow_private_urls=False)

    assert (answer.status, answer.json()["code"]) == (409, "project_exists")
    assert show(cloud, project)["allow_private_urls"] is True
    assert show(cloud, other)["name"] == "taken"


def test_private_urls_are_refused_from_the_change_on(cloud: MotoCloud, project: Project) -> None:
    body = {"biz_id": 1, "app_id": 1, "file_path": "/a", "source_url": "http://127.0.0.1:1/a"}
    assert cloud.http("POST", "/v1/files", json=body, key=project.key).status == 202

    change(cloud, project, allow_private_urls=False)

    assert cloud.http("POST", "/v1/files", json=body, key=project.key).status == 422


def test_two_changes_at_once_both_hold(cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    projects = cloud.app.projects.projects
    stale = [projects.get(project.id)]
    change(cloud, project, quotas={"queued": 5})
    read = projects._store.get
    monkeypatch.setattr(
        projects._store, "get", lambda *args, **options: stale.pop() if stale else read(*args, **options)
    )

    assert change(cloud, project, quotas={"stored_bytes": 9}).status == 200

    assert limits(show(cloud, project)) == {"queued": 5, "stored_bytes": 9}


@pytest.mark.parametrize(
    "body",
    [
        {"nam": "x"},
        {"name": None},
        {"name": "x"},
        {"name": ""},
        {"allow_private_urls": None},
        {"quotas": None},
        {"quotas": {"stored": 1}},
        {"quotas": {"queued": -1}},
        {"quotas": {"requests_per_s": 0}},
        {"quotas": {"stored_bytes": 10**40}},
        {"quotas": {"share": {"Export!": 1}}},
        {"quotas": {"share": {"export": 0}}},
        {"callback_secrets": []},
    ],
)
def test_change_that_is_not_valid_is_422(cloud: MotoCloud, project: Project, body: dict[str, Any]) -> None:
    before = show(cloud, project)

    assert change(cloud, project, **body).status == 422
    assert show(cloud, project) == before


def test_unknown_project_is_404(cloud: MotoCloud) -> None:
    assert cloud.http("GET", "/v1/projects/prj-none", key=cloud.admin_key).status == 404
    assert cloud.http("PATCH", "/v1/projects/prj-none", json={"group": "x"}, key=cloud.admin_key).status == 404


def test_null_sets_the_default_of_a_quota(cloud: MotoCloud, project: Project) -> None:
    assert change(cloud, project, quotas={"subscriptions": 5, "queued": 5}).json()["quotas"]["subscriptions"] == 5
    again = change(cloud, project, quotas={"subscriptions": None, "queued": None}).json()["quotas"]
    assert (again["subscriptions"], again["queued"]) == (1000, 10_000)
    assert cloud.app.table.get(keys.project(project.id))["quotas"] == {}  # type: ignore[index]


def test_business_over_the_quota_is_refused(cloud: MotoCloud, project: Project) -> None:
    assert change(cloud, project, quotas={"businesses": 2}).status == 200
    body = {"name": "points", "process_url": "http://127.0.0.1/"}
    answers = [cloud.http("POST", "/v1/biz", json=body, key=project.key) for _ in range(3)]
    assert [answer.status for answer in answers] == [201, 201, 429]
    assert answers[2].json()["code"] == "quota_exceeded"
    assert "businesses is 2" in answers[2].json()["detail"]

    assert cloud.http("PUT", f"/v1/biz/{answers[0].json()['biz_id']}", json=body, key=project.key).status == 200
    assert show(cloud, project)["usage"]["businesses"] == 2
