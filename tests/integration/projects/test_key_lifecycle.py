"""Keys: names, expiry, last use, rotation with overlap, revocation; admin keys too."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.moto.cloud import ADMIN_KEY, MotoCloud, Project
from tidegate.common.ids import iso
from tidegate.projects.keys import hash_key

DAY = 86400


def create(cloud: MotoCloud, project: Project, **body: Any) -> dict[str, Any]:
    answer = cloud.http(
        "POST", f"/v1/projects/{project.id}/keys", json={"scopes": ["read"], **body}, key=cloud.admin_key
    )
    assert answer.status == 201, answer.body
    return dict(answer.json())


def listed(cloud: MotoCloud, project: Project) -> dict[str, dict[str, Any]]:
    answer = cloud.http("GET", f"/v1/projects/{project.id}/keys", query={"limit": 100}, key=cloud.admin_key)
    assert answer.status == 200, answer.body
    return {item["key_id"]: item for item in answer.json()["items"]}


def works(cloud: MotoCloud, key: str) -> bool:
    status = cloud.http("GET", "/v1/files", key=key).status
    assert status in (200, 401)
    return status == 200


def rotate(cloud: MotoCloud, key_id: str, *, by: str = ADMIN_KEY, **body: Any) -> dict[str, Any]:
    answer = cloud.http("POST", f"/v1/keys/{key_id}/rotate", json=body, key=by)
    assert answer.status == 201, answer.body
    return dict(answer.json())


@pytest.mark.parametrize(
    ("scopes", "shown"),
    [(["read"], False), (["agent"], False), (["read", "agent"], False), (["write"], True), (["read", "write"], True)],
)
def test_callback_secret_comes_only_with_a_key_of_scope_write(
    cloud: MotoCloud, project: Project, scopes: list[str], shown: bool
) -> None:
    agent = {"agent_id": "a1"} if "agent" in scopes else {}

    made = create(cloud, project, scopes=scopes, **agent)

    assert made.get("callback_secret") == (cloud.callback_secret(project.id) if shown else None)


def test_list_of_keys_has_names_and_states_and_never_a_key(cloud: MotoCloud, project: Project) -> None:
    cloud.clock.advance(1)
    made = create(cloud, project, name="build server", scopes=["read", "agent"], agent_id="a1", expires_in=60)

    answer = cloud.http("GET", f"/v1/projects/{project.id}/keys", key=cloud.admin_key)

    record = answer.json()["items"][0]
    now = cloud.clock()
    assert record == {
        "key_id": made["key_id"],
        "name": "build server",
        "scopes": ["read", "agent"],
        "agent_id": "a1",
        "created_at": iso(now),
        "created_by": "admin",
        "expires_at": record["expires_at"],
        "last_used_at": None,
        "state": "active",
    }
    secret = made["key"].split("_")[2]
    assert secret not in answer.body.decode()
    assert hash_key(made["key"]) not in answer.body.decode()


def test_list_of_keys_pages_newest_first_and_holds_one_projects_keys(cloud: MotoCloud, project: Project) -> None:
    other = cloud.project()
    made = []
    for _ in range(3):
        cloud.clock.advance(1)
        made.append(create(cloud, project)["key_id"])
    path = f"/v1/projects/{project.id}/keys"

    first = cloud.http("GET", path, query={"limit": 2}, key=cloud.admin_key).json()
    rest = cloud.http("GET", path, query={"limit": 2, "cursor": first["next_cursor"]}, key=cloud.admin_key).json()

    ids = [item["key_id"] for item in first["items"] + rest["items"]]
    assert ids[:3] == made[::-1]
    assert len(ids) == 4
    assert not set(ids) & set(listed(cloud, other))


def test_keys_of_an_unknown_project_are_404(cloud: MotoCloud) -> None:
    assert cloud.http("GET", "/v1/projects/prj-none/keys", key=cloud.admin_key).status == 404


def test_expired_key_is_401_and_listed_as_expired(cloud: MotoCloud, project: Project) -> None:
    made = create(cloud, project, expires_in=3600)
    cloud.clock.advance(3599)
    assert works(cloud, made["key"])

    cloud.clock.advance(1)

    assert not works(cloud, made["key"])
    assert listed(cloud, project)[made["key_id"]]["state"] == "expired"


@pytest.mark.parametrize("seconds", [0, -1, 10**12, "soon"])
def test_impossible_lifetime_is_422(cloud: MotoCloud, project: Project, seconds: Any) -> None:
    body = {"scopes": ["read"], "expires_in": seconds}

    assert cloud.http("POST", f"/v1/projects/{project.id}/keys", json=body, key=cloud.admin_key).status == 422


def test_revoked_key_stays_listed_as_revoked(cloud: MotoCloud, project: Project) -> None:
    made = create(cloud, project)

    cloud.http("DELETE", f"/v1/keys/{made['key_id']}", key=cloud.admin_key)

    assert not works(cloud, made["key"])
    assert listed(cloud, project)[made["key_id"]]["state"] == "revoked"


# --- last use


def writes_of(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    update = cloud.app.dynamodb.update_item

    def counted(**request: Any) -> Any:
        seen.append(request["Key"]["pk"]["S"])
        return update(**request)

    monkeypatch.setattr(cloud.app.dynamodb, "update_item", counted)
    return seen


def test_keys_last_use_is_written_once_an_hour(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(cloud, project)
    seen = writes_of(cloud, monkeypatch)

    for _ in range(4):
        works(cloud, made["key"])
        cloud.clock.advance(900)
    assert len(seen) == 1
    works(cloud, made["key"])

    assert len(seen) == 2
    assert listed(cloud, project)[made["key_id"]]["last_used_at"] == iso(cloud.clock())


def test_of_several_processes_one_writes_a_keys_last_use(cloud: MotoCloud, project: Project) -> None:
    made = create(cloud, project)
    unused = cloud.app.projects.key_store.get(made["key_id"])
    assert unused
    works(cloud, made["key"])
    first = listed(cloud, project)[made["key_id"]]["last_used_at"]
    cloud.clock.advance(5)

    # Another process read the key before the first one's write.
    now = cloud.clock()
    cloud.app.projects.key_store.note_use(unused, now, now - timedelta(hours=1))

    assert first
    assert listed(cloud, project)[made["key_id"]]["last_used_at"] == first


def test_table_that_refuses_the_last_use_fails_no_request(
    cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = create(cloud, project)
    tried: list[str] = []

    def refuse(**request: Any) -> Any:
        tried.append(request["TableName"])
        raise RuntimeError("throttled")

    monkeypatch.setattr(cloud.app.dynamodb, "update_item", refuse)

    assert works(cloud, made["key"])
    assert works(cloud, made["key"])
    assert len(tried) == 1


def test_old_unlisted_key_is_listed_once_it_is_used(cloud: MotoCloud, project: Project) -> None:
    made = create(cloud, project)
    table, key = cloud.names.refs["Table"], {"pk": {"S": f"P#_system#KEY#{made['key_id']}"}, "sk": {"S": "META"}}
    cloud.client("dynamodb").update_item(
        TableName=table, Key=key, UpdateExpression="REMOVE gsi1pk, gsi1sk, created_by, agent_id"
    )
    assert made["key_id"] not in listed(cloud, project)

    assert works(cloud, made["key"])

    assert listed(cloud, project)[made["key_id"]]["state"] == "active"


# --- rotation


def test_rotated_key_works_for_the_overlap_and_not_longer(cloud: MotoCloud, project: Project) -> None:
    old = create(cloud, project, name="build", scopes=["read", "agent"], agent_id="a1")

    new = rotate(cloud, old["key_id"], overlap_s=600)

    assert set(new) == {"key_id", "key"}
    assert works(cloud, old["key"])
    assert works(cloud, new["key"])
    cloud.clock.advance(600)
    assert not works(cloud, old["key"])
    assert works(cloud, new["key"])
    records = listed(cloud, project)
    assert records[old["key_id"]]["state"] == "expired"
    kept = ("name", "scopes", "agent_id")
    assert [records[new["key_id"]][name] for name in kept] == ["build", ["read", "agent"], "a1"]


def test_overlap_is_a_day_unless_said_otherwise(cloud: MotoCloud, project: Project) -> None:
    old = create(cloud, project)
    answer = cloud.http("POST", f"/v1/keys/{old['key_id']}/rotate", key=cloud.admin_key)
    assert answer.status == 201, answer.body

    cloud.clock.advance(DAY - 1)
    assert works(cloud, old["key"])
    cloud.clock.advance(1)
    assert not works(cloud, old["key"])


def test_rotation_renews_the_lifetime_and_never_extends_the_old_key(cloud: MotoCloud, project: Project) -> None:
    old = create(cloud, project, expires_in=1000)
    cloud.clock.advance(900)

    new = rotate(cloud, old["key_id"], overlap_s=DAY)

    cloud.clock.advance(100)
    assert not works(cloud, old["key"])
    cloud.clock.advance(899)
    assert works(cloud, new["key"])
    cloud.clock.advance(1)
    assert not works(cloud, new["key"])


def test_key_is_rotated_once(cloud: MotoCloud, project: Project) -> None:
    old = create(cloud, project)
    new = rotate(cloud, old["key_id"])

    again = cloud.http("POST", f"/v1/keys/{old['key_id']}/rotate", json={}, key=cloud.admin_key)

    assert (again.status, again.json()["code"]) == (409, "wrong_state")
    assert new["key_id"] in again.json()["detail"]


def test_of_two_rotations_at_once_one_wins(cloud: MotoCloud, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    old = create(cloud, project)
    stale = cloud.app.projects.key_store.get(old["key_id"])
    rotate(cloud, old["key_id"])
    before = len(listed(cloud, project))
    monkeypatch.setattr(cloud.app.projects.key_store, "get", lambda *_, **__: stale)

    again = cloud.app.projects.api_keys
    with pytest.raises(Exception, match="meanwhile"):
        again.rotate(old["key_id"], 0, "admin")

    monkeypatch.undo()
    assert len(listed(cloud, project)) == before


def test_ended_or_unknown_key_is_not_rotated(cloud: MotoCloud, project: Project) -> None:
    revoked, expired = create(cloud, project), create(cloud, project, expires_in=1)
    cloud.http("DELETE", f"/v1/keys/{revoked['key_id']}", key=cloud.admin_key)
    cloud.clock.advance(2)

    for made in (revoked, expired):
        answer = cloud.http("POST", f"/v1/keys/{made['key_id']}/rotate", json={}, key=cloud.admin_key)
        assert (answer.status, answer.json()["code"]) == (409, "wrong_state")
    assert cloud.http("POST", "/v1/keys/key0none/rotate", json={}, key=cloud.admin_key).status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/keys"),
        ("POST", "/v1/keys"),
        ("POST", "/v1/keys/admin/rotate"),
        ("DELETE", "/v1/keys/admin"),
        ("GET", "/v1/projects/{}/keys"),
        ("GET", "/v1/projects/{}"),
        ("PATCH", "/v1/projects/{}"),
    ],
)
def test_only_an_admin_key_manages_keys_and_projects(
    cloud: MotoCloud, project: Project, method: str, path: str
) -> None:
    assert cloud.http(method, path.format(project.id), json={}, key=project.key).status == 403


# --- admin keys


def test_admin_keys_are_created_listed_and_revoked_without_a_deployment(cloud: MotoCloud) -> None:
    made = cloud.http("POST", "/v1/keys", json={"name": "second"}, key=cloud.admin_key)
    assert made.status == 201, made.body
    key = made.json()["key"]

    listed_keys = cloud.http("GET", "/v1/keys", key=key).json()["items"]

    assert {item["key_id"]: item["state"] for item in listed_keys} == {
        "admin": "active",
        made.json()["key_id"]: "active",
    }
    assert cloud.http("POST", "/v1/projects", json={"name": "made by the second"}, key=key).status == 201
    assert cloud.http("DELETE", f"/v1/keys/{made.json()['key_id']}", key=cloud.admin_key).status == 204
    assert cloud.http("GET", "/v1/projects", key=key).status == 401


def test_rotating_the_bootstrap_key_disables_it_after_the_overlap(cloud: MotoCloud) -> None:
    new = rotate(cloud, "admin", overlap_s=600)
    assert cloud.http("GET", "/v1/projects", key=cloud.admin_key).status == 200

    cloud.clock.advance(600)

    assert cloud.http("GET", "/v1/projects", key=cloud.admin_key).status == 401
    assert cloud.http("GET", "/v1/projects", key=new["key"]).status == 200
    again = rotate(cloud, new["key_id"], by=new["key"], overlap_s=0)
    assert cloud.http("GET", "/v1/projects", key=new["key"]).status == 401
    assert cloud.http("GET", "/v1/projects", key=again["key"]).status == 200


def test_disabled_bootstrap_key_stays_disabled_when_another_was_deployed_between(
    cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotate(cloud, "admin", overlap_s=0)
    fresh = "tga_fresh"
    monkeypatch.setattr(cloud.app.projects.authentication, "_admin_key_sha256", hash_key(fresh))
    assert cloud.http("GET", "/v1/projects", key=fresh).status == 200

    monkeypatch.setattr(cloud.app.projects.authentication, "_admin_key_sha256", hash_key(cloud.admin_key))

    assert cloud.http("GET", "/v1/projects", key=cloud.admin_key).status == 401


def test_admin_key_does_not_revoke_itself(cloud: MotoCloud) -> None:
    refused = cloud.http("DELETE", "/v1/keys/admin", key=cloud.admin_key)

    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")
    assert cloud.http("GET", "/v1/projects", key=cloud.admin_key).status == 200


def test_record_of_a_disabled_bootstrap_key_has_no_ttl(cloud: MotoCloud, project: Project) -> None:
    made = create(cloud, project)
    cloud.http("DELETE", f"/v1/keys/{made['key_id']}", key=cloud.admin_key)
    rotate(cloud, "admin", overlap_s=0)

    found = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]

    records = {item["key_id"]["S"]: item for item in found if "#KEY#" in item["pk"]["S"]}
    assert "expires_at" not in records["admin"]
    assert int(records[made["key_id"]]["expires_at"]["N"]) > cloud.clock().timestamp() + 80 * DAY


def ticket(cloud: MotoCloud) -> str:
    answer = cloud.http("POST", "/v1/sign-in-tickets", key=cloud.admin_key)
    assert answer.status == 201, answer.body
    return str(answer.json()["ticket"])


def test_ticket_gives_one_admin_key_that_ends_after_half_a_day(cloud: MotoCloud) -> None:
    made = ticket(cloud)

    answer = cloud.http("POST", "/v1/sign-in", key=made)

    assert answer.status == 201, answer.body
    session = answer.json()
    assert cloud.http("GET", "/v1/projects", key=session["key"]).status == 200
    known = {item["key_id"]: item for item in cloud.http("GET", "/v1/keys", key=cloud.admin_key).json()["items"]}
    assert known[session["key_id"]]["expires_at"] == session["expires_at"]
    assert {item["name"] for item in known.values()} == {"bootstrap", "console"}
    cloud.clock.advance(12 * 3600 + 1)
    assert cloud.http("GET", "/v1/projects", key=session["key"]).status == 401


def test_ticket_works_once_also_while_the_authorizer_remembers_it(cloud: MotoCloud) -> None:
    made = ticket(cloud)
    assert cloud.http("POST", "/v1/sign-in", key=made).status == 201

    again = cloud.http("POST", "/v1/sign-in", key=made)

    assert (again.status, again.json()["code"]) in [(409, "wrong_state"), (401, "unauthenticated")]


def test_ticket_is_refused_after_a_minute_and_by_other_routes(cloud: MotoCloud, project: Project) -> None:
    made = ticket(cloud)
    for method, path in [("GET", "/v1/projects"), ("GET", "/v1/me"), ("POST", "/v1/ws-tickets"), ("GET", "/v1/files")]:
        assert cloud.http(method, path, key=made).status == 403, path
    cloud.clock.advance(61)
    assert cloud.http("POST", "/v1/sign-in", key=made).status == 401


def test_only_tickets_sign_in(cloud: MotoCloud, project: Project) -> None:
    assert cloud.http("POST", "/v1/sign-in", key=cloud.admin_key).status == 409
    assert cloud.http("POST", "/v1/sign-in", key=project.key).status == 403
    assert cloud.http("POST", "/v1/sign-in-tickets", key=project.key).status == 403
