"""Error details say what was wrong, with which value, and what to do."""

from __future__ import annotations

import pytest

from tests.support.moto.cloud import MotoCloud, Project
from tidegate.errors import SourceBroken, UrlNotAllowed
from tidegate.exports.source import read_page
from tidegate.http.guard import AddressGuard


def test_refused_private_callback_names_the_setting_that_allows_it(cloud: MotoCloud) -> None:
    project = cloud.project(allow_private_urls=False)
    body = {"name": "orders", "source_data": [{"a": 1}], "callback": "http://10.0.0.7/done"}
    answer = cloud.http("POST", "/v1/task", json=body, key=project.key)
    assert (answer.status, answer.json()["code"]) == (422, "url_not_allowed")
    detail = answer.json()["detail"]
    for word in ("10.0.0.7", "admin", "allow_private_urls", "UrlAllowList"):
        assert word in detail, detail


def test_address_refused_for_all_projects_names_no_setting() -> None:
    guard = AddressGuard(resolver=lambda host, port, *_: ["169.254.169.254"])
    with pytest.raises(UrlNotAllowed, match="which no project may reach") as refused:
        guard.addresses("metadata.example", 80, allow_private=False, timeout=1)
    assert "allow_private_urls" not in refused.value.detail


@pytest.mark.parametrize("body", [b"[]", b'{"rows": []}', b'{"status": 200, "data": []}', b"id;name"])
def test_source_with_wrong_format_is_shown_the_expected_one(body: bytes) -> None:
    with pytest.raises(SourceBroken) as refused:
        read_page(body, 0)
    assert '{"status": 200, "data": {"data": [' in refused.value.detail


@pytest.mark.parametrize("path", ["/v1/audit", "/v1/stats"])
def test_admin_without_a_project_must_name_one(cloud: MotoCloud, project: Project, path: str) -> None:
    answer = cloud.http("GET", path, key=cloud.admin_key)
    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", "project_id"])
    assert "?project_id=" in answer.json()["detail"]
    assert cloud.http("GET", path, key=cloud.admin_key, query={"project_id": project.id}).status == 200


def test_missing_scope_error_names_the_scopes_of_the_key(cloud: MotoCloud, project: Project) -> None:
    key = cloud.make_key(project.id, ["read"])
    answer = cloud.http("POST", "/v1/task", json={}, key=key)
    assert answer.json()["detail"] == (
        "this route needs the scope write, but this key has read: ask an admin for another key"
    )
