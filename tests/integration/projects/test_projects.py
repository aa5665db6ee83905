"""Projects, keys, scopes and the separation of tenants."""

from __future__ import annotations

import pytest

from tests.support.moto.cloud import MotoCloud, Project


def test_project_is_created_and_listed(cloud: MotoCloud) -> None:
    made = cloud.http("POST", "/v1/projects", json={"name": "alpha", "group": "ops"}, key=cloud.admin_key)

    assert made.status == 201
    assert made.json()["name"] == "alpha"
    listed = cloud.http("GET", "/v1/projects", key=cloud.admin_key).json()
    assert [item["project_id"] for item in listed["items"]] == [made.json()["project_id"]]


def test_taken_name_is_409(cloud: MotoCloud) -> None:
    cloud.http("POST", "/v1/projects", json={"name": "alpha"}, key=cloud.admin_key)

    again = cloud.http("POST", "/v1/projects", json={"name": "alpha"}, key=cloud.admin_key)

    assert (again.status, again.json()["code"]) == (409, "project_exists")
    assert again.headers["content-type"] == "application/problem+json"


def test_lists_page_newest_first(cloud: MotoCloud) -> None:
    for number in range(5):
        cloud.clock.advance(1)
        cloud.http("POST", "/v1/projects", json={"name": f"p{number}"}, key=cloud.admin_key)

    first = cloud.http("GET", "/v1/projects?limit=3", key=cloud.admin_key).json()
    rest = cloud.http("GET", "/v1/projects", query={"limit": 3, "cursor": first["next_cursor"]}, key=cloud.admin_key)

    names = [item["name"] for item in first["items"] + rest.json()["items"]]
    assert names == ["p4", "p3", "p2", "p1", "p0"]
    assert rest.json()["next_cursor"] is None


@pytest.mark.parametrize("cursor", ["x", "e30", "eyJwayI6eyJTIjoiYSJ9fQ", "%00"])
def test_made_up_cursor_is_422(cloud: MotoCloud, cursor: str) -> None:
    answer = cloud.http("GET", "/v1/projects", query={"cursor": cursor}, key=cloud.admin_key)

    assert answer.status == 422
    assert answer.json()["errors"][0]["loc"] == ["query", "cursor"]


def test_key_is_shown_once_and_only_its_hash_is_stored(cloud: MotoCloud, project: Project) -> None:
    made = cloud.http("POST", f"/v1/projects/{project.id}/keys", json={"scopes": ["read"]}, key=cloud.admin_key)

    assert made.status == 201
    secret = made.json()["key"]
    stored = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    assert secret not in str(stored)


def test_revoked_key_is_401(cloud: MotoCloud, project: Project) -> None:
    made = cloud.http("POST", f"/v1/projects/{project.id}/keys", json={"scopes": ["read"]}, key=cloud.admin_key).json()

    assert cloud.http("DELETE", f"/v1/keys/{made['key_id']}", key=cloud.admin_key).status == 204
    assert cloud.http("GET", "/v1/files", key=made["key"]).status == 401
    assert cloud.http("DELETE", f"/v1/keys/{made['key_id']}", key=cloud.admin_key).status == 204
    assert cloud.http("DELETE", "/v1/keys/key0none", key=cloud.admin_key).status == 404


@pytest.mark.parametrize("key", [None, "nonsense", "tg_admin_wrong", "tg_key_x", "tg__"])
def test_missing_or_unknown_key_is_401(cloud: MotoCloud, key: str | None) -> None:
    answer = cloud.http("GET", "/v1/files", key=key)

    assert (answer.status, answer.json()["code"]) == (401, "unauthenticated")


def test_scopes_are_enforced(cloud: MotoCloud, project: Project) -> None:
    reader = cloud.make_key(project.id, ["read"])
    writer = cloud.make_key(project.id, ["write"])
    body = {"biz_id": 1, "app_id": 1, "file_path": "/a"}

    assert cloud.http("POST", "/v1/files", json=body, key=reader).status == 403
    assert cloud.http("GET", "/v1/files", key=writer).status == 403
    assert cloud.http("POST", "/v1/projects", json={"name": "beta"}, key=project.key).status == 403
    assert cloud.http("GET", "/v1/agents/a1/transfers", key=project.key).status == 403


def test_agent_key_needs_its_agent(cloud: MotoCloud, project: Project) -> None:
    without = cloud.http("POST", f"/v1/projects/{project.id}/keys", json={"scopes": ["agent"]}, key=cloud.admin_key)

    assert without.status == 422


def test_key_for_no_project_is_404(cloud: MotoCloud) -> None:
    answer = cloud.http("POST", "/v1/projects/prj-none/keys", json={"scopes": ["read"]}, key=cloud.admin_key)

    assert answer.status == 404
