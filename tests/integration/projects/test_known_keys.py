"""The authorizer's cache of keys: what it saves, and how long a revocation takes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud(KEY_CACHE_SECONDS="10") as made:
        yield made


def calls_for(cloud: MotoCloud, authorization: str | None) -> int:
    """The AWS calls of the authorizer for one request."""
    headers = {"authorization": authorization} if authorization else {}
    with count_calls(cloud.app) as calls:
        cloud.invoke("authorizer", {"headers": headers, "type": "REQUEST"})
    return calls.total()


def test_key_is_read_once_in_10_s(cloud: MotoCloud, project: Project) -> None:
    key = f"Bearer {project.key}"

    # The first use in an hour is written down too, and the project's rate is read with the key.
    assert [calls_for(cloud, key) for _ in range(3)] == [3, 0, 0]
    cloud.clock.advance(11)
    assert calls_for(cloud, key) == 2


@pytest.mark.parametrize("authorization", [None, "", "Bearer ", "Basic eDp5", "Bearer nonsense"])
def test_text_that_is_no_key_costs_no_read(cloud: MotoCloud, authorization: str | None) -> None:
    assert calls_for(cloud, authorization) == 0


def test_revoked_key_is_refused_after_10_s_at_most(cloud: MotoCloud, project: Project) -> None:
    made = cloud.app.projects.api_keys.add(project.id, ["read"])
    assert cloud.http("GET", "/v1/files", key=made.key).status == 200

    cloud.http("DELETE", f"/v1/keys/{made.key_id}", key=cloud.admin_key)
    cloud.clock.advance(10)

    assert cloud.http("GET", "/v1/files", key=made.key).status == 401


def test_key_that_was_unknown_works_as_soon_as_it_is_made(cloud: MotoCloud, project: Project) -> None:
    made = cloud.app.projects.api_keys.add(project.id, ["read"])
    wrong = made.key[:-1] + ("0" if made.key[-1] != "0" else "1")

    assert cloud.http("GET", "/v1/files", key=wrong).status == 401
    assert cloud.http("GET", "/v1/files", key=made.key).status == 200


def test_cache_keeps_a_limited_number_of_hashed_keys(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.projects.keys.MOST_KEPT", 2)
    projects = [cloud.project() for _ in range(3)]
    for project in projects:
        assert calls_for(cloud, f"Bearer {project.key}") == 3

    kept = cloud.app.projects.authentication._kept
    assert len(kept) == 2
    assert not any(project.key in repr(kept) for project in projects)
