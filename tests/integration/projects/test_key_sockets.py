"""A WebSocket connection ends with the key that it was made with."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.notifications.watching import Line
from tests.support.moto.cloud import MotoCloud, Project


@pytest.fixture
def line(cloud: MotoCloud) -> Line:
    return Line(cloud)


def key_id(key: str) -> str:
    return key.split("_")[1]


def revoke(cloud: MotoCloud, key: str, *, by: str | None = None) -> int:
    return cloud.http("DELETE", f"/v1/keys/{key_id(key)}", key=by or cloud.admin_key).status


def compensate(cloud: MotoCloud) -> list[str]:
    """Runs the compensation poll. Returns the kinds of due records that it handled."""
    now = cloud.clock().timestamp()
    found = cloud.app.compensation._store.overdue(now, now, now, 100).found
    whole = [cloud.app.table.get({"pk": item["pk"], "sk": item["sk"]}, consistent=True) or {} for item in found]
    return [item["due_kind"] for item in whole if cloud.app.due_handlers[item["due_kind"]](item) is not False]


def left_over(line: Line) -> list[dict[str, Any]]:
    return line.items("CONNECTION") + line.items("KEY_CONNECTIONS") + line.items("WATCH")


def test_revoking_a_key_closes_its_websockets_and_no_others(cloud: MotoCloud, project: Project, line: Line) -> None:
    other = Project(project.id, cloud.make_key(project.id, ["read"]), cloud)
    line.record(project, "exp-1", status="running")
    for connection_id, whose in (("c1", project), ("c2", project), ("c3", other)):
        line.joined(whose, connection_id)
        line.say(connection_id, action="watch", task_ids=["exp-1"])

    assert revoke(cloud, project.key) == 204

    assert sorted(line.outgoing.closed) == ["c1", "c2"]
    line.push(project, "exp-1", "task.completed", status="completed")
    assert [message["type"] for message in line.heard("c1")] == ["watching"]
    assert [message["type"] for message in line.heard("c3")] == ["watching", "task.completed"]


def test_revoking_a_key_leaves_nothing_of_its_connections_in_the_table(
    cloud: MotoCloud, project: Project, line: Line
) -> None:
    line.record(project, "exp-1", status="running")
    line.joined(project)
    line.say("c1", action="watch", task_ids=["exp-1"])

    revoke(cloud, project.key)

    assert [item for item in left_over(line) if item["sk"]["S"] != "META"] == []
    assert line.items("CONNECTION") == []


def test_leaving_removes_the_connection_from_its_key(cloud: MotoCloud, project: Project, line: Line) -> None:
    line.joined(project)
    line.leave("c1")

    revoke(cloud, project.key)

    assert line.outgoing.closed == []
    assert line.items("KEY_CONNECTIONS") == []


def test_ticket_of_a_key_that_was_revoked_meanwhile_opens_nothing(
    cloud: MotoCloud, project: Project, line: Line
) -> None:
    ticket = line.ticket(project)
    revoke(cloud, project.key)

    assert line.connect("c1", ticket) == 401
    assert line.items("CONNECTION") == []


def test_connection_made_during_a_revocation_is_refused_or_closed(
    cloud: MotoCloud, project: Project, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The revocation comes between any two steps of the connection."""
    ticket = line.ticket(project)
    store = cloud.app.notifications.websocket._connections
    add = store.add

    def revoked_after_add(*args: Any) -> None:
        add(*args)
        revoke(cloud, project.key)

    monkeypatch.setattr(store, "add", revoked_after_add)

    assert line.connect("c1", ticket) == 401
    assert line.outgoing.closed == ["c1"]


def test_connection_that_could_not_be_closed_is_closed_by_compensation(
    cloud: MotoCloud, project: Project, line: Line
) -> None:
    line.joined(project)
    line.outgoing.cannot_close = {"c1"}

    assert revoke(cloud, project.key) == 204
    assert line.outgoing.closed == []
    line.outgoing.cannot_close = set()

    assert compensate(cloud) == ["key"]
    assert line.outgoing.closed == ["c1"]
    assert compensate(cloud) == []


def test_revocation_that_died_before_closing_is_finished_by_compensation(
    cloud: MotoCloud, project: Project, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.joined(project)
    with monkeypatch.context() as killed:
        killed.setattr(cloud.app.notifications.outgoing, "close", lambda _: (_ for _ in ()).throw(SystemExit))
        with pytest.raises(SystemExit):
            revoke(cloud, project.key)

    assert compensate(cloud) == ["key"]
    assert line.outgoing.closed == ["c1"]


def test_connections_of_an_expired_key_are_closed(cloud: MotoCloud, project: Project, line: Line) -> None:
    body = {"scopes": ["read"], "expires_in": 600}
    made = cloud.http("POST", f"/v1/projects/{project.id}/keys", json=body, key=cloud.admin_key).json()
    line.joined(Project(project.id, made["key"], cloud))
    cloud.clock.advance(599)
    assert compensate(cloud) == []

    cloud.clock.advance(1)

    assert compensate(cloud) == ["key"]
    assert line.outgoing.closed == ["c1"]
    assert compensate(cloud) == []


def test_message_over_an_expired_keys_connection_closes_it(cloud: MotoCloud, project: Project, line: Line) -> None:
    body = {"scopes": ["read"], "expires_in": 600}
    made = cloud.http("POST", f"/v1/projects/{project.id}/keys", json=body, key=cloud.admin_key).json()
    line.joined(Project(project.id, made["key"], cloud))
    assert [message["type"] for message in line.say("c1", action="ping")] == ["pong"]
    cloud.clock.advance(600)

    assert line.say("c1", action="ping") == []
    assert line.outgoing.closed == ["c1"]


@pytest.mark.parametrize("overlap", [0, 300])
def test_connections_of_a_rotated_key_are_closed_when_the_overlap_ends(
    cloud: MotoCloud, project: Project, line: Line, overlap: int
) -> None:
    line.joined(project)

    answer = cloud.http(
        "POST", f"/v1/keys/{key_id(project.key)}/rotate", json={"overlap_s": overlap}, key=cloud.admin_key
    )
    assert answer.status == 201
    if overlap:
        assert line.outgoing.closed == []
        cloud.clock.advance(overlap)
        assert compensate(cloud) == ["key"]

    assert line.outgoing.closed == ["c1"]


def test_bootstrap_keys_connections_close_with_it(cloud: MotoCloud, project: Project, line: Line) -> None:
    admin = Project(project.id, cloud.admin_key, cloud)
    line.joined(admin)

    answer = cloud.http("POST", "/v1/keys/admin/rotate", json={"overlap_s": 0}, key=cloud.admin_key)

    assert answer.status == 201
    assert line.outgoing.closed == ["c1"]


def test_finding_a_keys_connections_scans_nothing(
    cloud: MotoCloud, project: Project, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    line.joined(project)
    asked: list[dict[str, Any]] = []
    query = cloud.app.dynamodb.query

    def recorded(**request: Any) -> Any:
        asked.append(request)
        return query(**request)

    monkeypatch.setattr(cloud.app.dynamodb, "query", recorded)
    monkeypatch.setattr(cloud.app.dynamodb, "scan", lambda **_: pytest.fail("a scan"))

    revoke(cloud, project.key)

    of_key = [one for one in asked if "KEY_CONNECTIONS" in str(one)]
    assert [one["ConsistentRead"] for one in of_key] == [True]
