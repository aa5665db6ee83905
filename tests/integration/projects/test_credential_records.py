"""How many credentials a project may store."""

from __future__ import annotations

import pytest

from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.projects import secrets as credential_records

BODY = {"headers": {"Cookie": "a=b"}, "origins": ["https://source.test"]}


@pytest.fixture(autouse=True)
def two_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credential_records, "MOST_CREDENTIALS", 2)


def put(cloud: MotoCloud, project: Project, name: str) -> Answer:
    return cloud.http("PUT", f"/v1/credentials/{name}", json=BODY, key=project.key)


def stored(cloud: MotoCloud, project: Project) -> list[str]:
    answer = cloud.http("GET", "/v1/credentials", key=project.key).json()
    return [credential["name"] for credential in answer["items"]]


def test_credential_beyond_limit_is_refused_and_stores_no_secret(cloud: MotoCloud, project: Project) -> None:
    assert [put(cloud, project, name).status for name in ("one", "two")] == [204, 204]

    refused = put(cloud, project, "three")

    assert (refused.status, refused.json()["code"]) == (429, "quota_exceeded")
    assert "2 credentials" in refused.json()["detail"]
    assert int(refused.headers["retry-after"]) > 0
    assert stored(cloud, project) == ["one", "two"]
    secrets = cloud.client("secretsmanager").list_secrets()["SecretList"]
    assert not [secret for secret in secrets if secret["Name"].endswith("/three")]


def test_stored_credential_can_be_replaced_at_the_limit(cloud: MotoCloud, project: Project) -> None:
    for name in ("one", "two", "two"):
        assert put(cloud, project, name).status == 204


def test_deleted_credential_makes_room(cloud: MotoCloud, project: Project) -> None:
    for name in ("one", "two"):
        put(cloud, project, name)
    cloud.http("DELETE", "/v1/credentials/one", key=project.key)

    assert put(cloud, project, "three").status == 204


def test_limit_is_counted_for_each_project(cloud: MotoCloud, project: Project) -> None:
    other = cloud.project()
    for name in ("one", "two"):
        put(cloud, project, name)

    assert put(cloud, other, "one").status == 204
