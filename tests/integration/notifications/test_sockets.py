"""Tickets, watching and isolation over the WebSocket's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest

from tests.bench import prices
from tests.integration.notifications.watching import Line
from tests.support.calls import count_calls
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.aws.table import Table
from tidegate.errors import Busy
from tidegate.notifications.websocket import CONNECT_COSTS, CONNECTION_SECONDS, MOST_IDS, MOST_REFUSED, Sent
from tidegate.projects.limits import SOCKET_RATE


@pytest.fixture
def line(cloud: MotoCloud) -> Line:
    return Line(cloud)


def test_ticket_works_once(line: Line, project: Project) -> None:
    ticket = line.ticket(project)

    assert line.connect("c1", ticket) == 200
    assert line.connect("c2", ticket) == 401


def test_ticket_does_not_work_after_60_s(line: Line, project: Project) -> None:
    early, late = line.ticket(project), line.ticket(project)

    line.cloud.clock.advance(59)
    assert line.connect("c1", early) == 200
    line.cloud.clock.advance(2)
    assert line.connect("c2", late) == 401


def test_connection_without_a_valid_ticket_is_refused(line: Line) -> None:
    for ticket in (None, "", "made-up"):
        assert line.connect("c1", ticket) == 401


def test_only_the_tickets_hash_is_stored(line: Line, project: Project) -> None:
    ticket = line.ticket(project)

    assert ticket not in str(line.items("TICKET"))


def test_watching_a_finished_task_answers_at_once(line: Line, project: Project) -> None:
    line.record(project, "req-1", task_id="req-1", status="completed", size=7)
    client = line.joined(project)

    (message,) = line.say(client, action="watch", task_ids=["req-1"])

    assert message == {"type": "task.completed", "data": {"task_id": "req-1", "status": "completed", "size": 7}}
    assert line.items("WATCH") == []


def test_task_with_the_longest_id_can_be_watched(line: Line, project: Project) -> None:
    task_id = "/" + "路" * 500
    line.record(project, task_id, task_id=task_id, status="running")
    client = line.joined(project)

    (message,) = line.say(client, action="watch", task_ids=[task_id])

    assert message == {"type": "watching", "data": {"task_ids": [task_id]}}
    line.push(project, task_id, "task.completed", task_id=task_id, status="completed")
    assert line.heard(client)[-1]["type"] == "task.completed"


def test_another_projects_task_is_an_error_and_no_data(line: Line, project: Project) -> None:
    other = line.cloud.project()
    line.record(other, "req-1", task_id="req-1", status="completed", secret="theirs")
    client = line.joined(project)

    (message,) = line.say(client, action="watch", task_ids=["req-1"])
    line.push(other, "req-1", "task.completed", task_id="req-1", status="completed", secret="theirs")

    assert (message["type"], message["data"]["code"], message["data"]["task_id"]) == ("error", "not_found", "req-1")
    assert "theirs" not in str(line.heard(client))


def test_watcher_gets_progress_and_the_end_and_then_nothing(line: Line, project: Project) -> None:
    line.record(project, "req-1", task_id="req-1", status="running")
    client = line.joined(project)

    (ack,) = line.say(client, action="watch", task_ids=["req-1"])
    line.push(project, "req-1", "task.progress", task_id="req-1", status="running", progress={"rows": 5})
    line.push(project, "req-1", "task.completed", task_id="req-1", status="completed")
    line.push(project, "req-1", "task.completed", task_id="req-1", status="completed")

    assert ack == {"type": "watching", "data": {"task_ids": ["req-1"]}}
    assert [message["type"] for message in line.heard(client)] == ["watching", "task.progress", "task.completed"]
    assert line.items("WATCH") == []


def test_end_just_before_the_watch_is_stored_is_not_missed(line: Line, project: Project) -> None:
    seen: list[dict[str, Any]] = [{"task_id": "req-1", "status": "running"}, {"task_id": "req-1", "status": "failed"}]
    line.cloud.app.notifications.records._lookups = {"req-": lambda *_: seen.pop(0)}
    client = line.joined(project)

    (message,) = line.say(client, action="watch", task_ids=["req-1"])

    assert message["type"] == "task.failed"


def test_unwatch_ends_a_watch_and_ping_is_answered(line: Line, project: Project) -> None:
    line.record(project, "req-1", request_id="req-1", status="running")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=["req-1"])

    (pong,) = line.say(client, action="ping")
    (unwatched,) = line.say(client, action="unwatch", task_ids=["req-1"])
    line.push(project, "req-1", "request.finished", request_id="req-1", status="completed")

    assert (pong["type"], unwatched["type"]) == ("pong", "unwatched")
    assert line.heard(client)[-1] == unwatched


NONSENSE = [
    "",
    "nonsense",
    "[]",
    '{"action":"steal"}',
    '{"action":"watch"}',
    '{"action":"watch","task_ids":[1]}',
    "[" * 9999,
]


def test_invalid_message_is_answered_with_an_error(line: Line, project: Project) -> None:
    client = line.joined(project)

    for text in NONSENSE:
        (message,) = line.say_text(client, text)
        assert (message["type"], message["data"]["code"]) == ("error", "invalid"), text


def test_watcher_of_a_task_is_notified_when_its_job_ends(line: Line, project: Project) -> None:
    task, job = "AsyncDownloadTask:1:1:/a:7d4c8b52-0000-4000-8000-000000000001", "AsyncDownloadJob:1:1:/a:99"
    line.record(project, task, task_id=task, job_id=job, status="Running")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=[task])

    line.record(project, task, task_id=task, job_id=job, status="Success")
    line.push(project, job, "job.finished", job_id=job, status="Failed")

    message = line.heard(client)[-1]
    assert (message["type"], message["data"]["task_id"], message["data"]["status"]) == (
        "task.completed",
        task,
        "Success",
    )


def test_watch_follows_a_task_to_another_job(line: Line, project: Project) -> None:
    task, old, new = "AsyncDownloadTask:1:1:/a:1", "AsyncDownloadJob:1:1:/a:1", "AsyncDownloadJob:1:1:/a:2"
    line.record(project, task, task_id=task, job_id=old, status="Pending")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=[task])

    line.record(project, task, task_id=task, job_id=new, status="Running")
    line.push(project, old, "job.finished", job_id=old, status="Success")
    line.record(project, task, task_id=task, job_id=new, status="Failed")
    line.push(project, new, "job.finished", job_id=new, status="Failed")

    assert [message["data"]["status"] for message in line.heard(client)[1:]] == ["Running", "Failed"]


def test_gone_connections_are_removed_with_their_watches(line: Line, project: Project) -> None:
    line.record(project, "req-1", task_id="req-1", status="running")
    gone, here = line.joined(project, "gone"), line.joined(project, "here")
    for client in (gone, here):
        line.say(client, action="watch", task_ids=["req-1"])
    line.outgoing.gone.add(gone)

    line.push(project, "req-1", "task.progress", task_id="req-1", status="running")

    assert "gone" not in str(line.items("CONNECTION")) + str(line.items("WATCH"))
    assert line.heard(here)[-1]["type"] == "task.progress"


def test_records_of_a_connection_are_removed_and_expire_anyway(line: Line, project: Project) -> None:
    line.record(project, "req-1", task_id="req-1", status="running")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=["req-1"])
    expiries = {int(item["expires_at"]["N"]) for item in line.items("WATCH") + line.items("CONNECTION")}
    assert max(expiries) <= line.cloud.clock().timestamp() + CONNECTION_SECONDS

    line.leave(client)

    assert line.items("CONNECTION") == []
    assert [item["sk"]["S"] for item in line.items("WATCH")] == ["META"]


def test_watch_right_after_connecting_is_not_refused(
    line: Line, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eventually consistent read may not see the connection yet."""
    get = Table.get

    def stale(table: Table, key: Any, *, consistent: bool = False) -> Any:
        return get(table, key, consistent=True) if consistent or "CONNECTION" not in key["pk"] else None

    monkeypatch.setattr(Table, "get", stale)
    line.record(project, "req-1", task_id="req-1", status="running")
    (message,) = line.say(line.joined(project), action="watch", task_ids=["req-1"])

    assert message["type"] == "watching"


def test_connection_at_its_watch_limit_can_watch_after_unwatching(
    line: Line, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.notifications.websocket.MOST_WATCHES", 3)
    ids = [f"req-{number}" for number in range(5)]
    for name in ids:
        line.record(project, name, task_id=name, status="running")
    client = line.joined(project)
    assert line.say(client, action="watch", task_ids=ids[:3])[0]["type"] == "watching"

    (refused,) = line.say(client, action="watch", task_ids=ids[3:4])
    assert (refused["type"], refused["data"]["code"]) == ("error", "invalid")
    assert "at most 3 records" in refused["data"]["detail"]

    line.say(client, action="unwatch", task_ids=ids[:1])
    assert line.say(client, action="watch", task_ids=ids[3:4])[0]["type"] == "watching"


def test_followers_of_a_job_are_read_and_sent_in_portions(
    line: Line, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first are sent before the last are read, and a repeated run sends only the rest."""
    monkeypatch.setattr("tidegate.notifications.websocket._FOLLOWERS_TOGETHER", 10)
    job = "AsyncDownloadJob:1:1:/a:99"
    tasks = [f"AsyncDownloadTask:1:1:/a:{number}" for number in range(30)]
    for task in tasks:
        line.record(project, task, task_id=task, job_id=job, status="Running")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=tasks)
    for task in tasks:
        line.record(project, task, task_id=task, job_id=job, status="Success")
    send, portions = line.outgoing.send, []

    def dies(messages: Any) -> Sent:
        portions.append(len(messages))
        if len(portions) == 3:
            raise TimeoutError("the function ended")
        return send(messages)

    pusher = line.cloud.app.notifications.websocket
    notice = {"project_id": project.id, "record_id": job, "type": "job.finished", "status": "Success", "data": {}}
    with patch.object(pusher._outgoing, "send", dies), pytest.raises(TimeoutError):
        pusher.push(notice)
    assert portions == [10, 10, 10]

    assert pusher.push(notice) == 10
    assert len({message["data"].get("task_id") for message in line.heard(client)} & set(tasks)) == 30


def test_end_that_missed_a_client_is_sent_by_the_next_run(line: Line, project: Project) -> None:
    """API Gateway may refuse a message to an open connection, for example with 429."""
    line.record(project, "req-1", task_id="req-1", status="running")
    unreachable, reached = line.joined(project, "c1"), line.joined(project, "c2")
    for client in (unreachable, reached):
        line.say(client, action="watch", task_ids=["req-1"])
    line.outgoing.unreachable.add(unreachable)

    with pytest.raises(Busy):
        line.push(project, "req-1", "task.completed", task_id="req-1", status="completed")
    line.outgoing.unreachable.clear()
    line.push(project, "req-1", "task.completed", task_id="req-1", status="completed")

    for client in (unreachable, reached):
        assert [message["type"] for message in line.heard(client)] == ["watching", "task.completed"]
    assert line.items("WATCH") == []


def test_end_of_a_task_that_missed_its_watcher_is_sent_again(line: Line, project: Project) -> None:
    task, job = "AsyncDownloadTask:1:1:/a:1", "AsyncDownloadJob:1:1:/a:1"
    line.record(project, task, task_id=task, job_id=job, status="Running")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=[task])
    line.record(project, task, task_id=task, job_id=job, status="Success")
    line.outgoing.unreachable.add(client)

    with pytest.raises(Busy):
        line.push(project, job, "job.finished", job_id=job, status="Success")
    line.outgoing.unreachable.clear()
    line.push(project, job, "job.finished", job_id=job, status="Success")

    assert line.heard(client)[-1]["type"] == "task.completed"


def test_progress_that_did_not_reach_a_client_is_not_repeated(line: Line, project: Project) -> None:
    line.record(project, "req-1", task_id="req-1", status="running")
    client = line.joined(project)
    line.say(client, action="watch", task_ids=["req-1"])
    line.outgoing.unreachable.add(client)

    line.push(project, "req-1", "task.progress", task_id="req-1", status="running")

    assert [message["type"] for message in line.heard(client)] == ["watching"]


def test_watchers_of_a_record_are_sent_its_end_in_portions(
    line: Line, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that ends early has removed the watches of those that it reached, so the next run does not repeat them."""
    monkeypatch.setattr("tidegate.notifications.websocket._CLIENTS_TOGETHER", 2)
    line.record(project, "req-1", task_id="req-1", status="running")
    clients = [line.joined(project, f"c{number}") for number in range(5)]
    for client in clients:
        line.say(client, action="watch", task_ids=["req-1"])
    pusher, send = line.cloud.app.notifications.websocket, line.outgoing.send
    portions: list[int] = []

    def dies(messages: Any) -> Sent:
        portions.append(len(messages))
        if len(portions) == 2:
            raise TimeoutError("the function ended")
        return send(messages)

    end = {"project_id": project.id, "record_id": "req-1", "type": "task.completed", "status": "completed", "data": {}}
    with patch.object(pusher._outgoing, "send", dies), pytest.raises(TimeoutError):
        pusher.push(end)

    assert pusher.push(end) == 3
    assert all(len(line.heard(client)) == 2 for client in clients)


def set_rate(line: Line, project: Project, rate: int) -> None:
    body = {"quotas": {"requests_per_s": rate}}
    answer = line.cloud.http("PATCH", f"/v1/projects/{project.id}", json=body, key=line.cloud.admin_key)
    assert answer.status == 200, answer.body


def test_messages_and_http_requests_share_the_projects_rate(line: Line, project: Project) -> None:
    set_rate(line, project, 10)
    client = line.joined(project)
    line.cloud.clock.advance(1)

    statuses = [line.cloud.http("GET", "/v1/queue", key=project.key).status for _ in range(4)]
    answers = [line.say(client, action="ping")[0] for _ in range(8)]

    assert statuses == [200] * 4
    assert [answer["type"] for answer in answers] == ["pong"] * 6 + ["error"] * 2
    assert (answers[-1]["data"]["code"], answers[-1]["data"]["retry_after"]) == ("rate_limited", 1)
    assert line.cloud.http("GET", "/v1/queue", key=project.key).status == 429
    line.cloud.clock.advance(1)
    assert line.say(client, action="ping")[0]["type"] == "pong"


def test_connecting_counts_toward_the_projects_rate(line: Line, project: Project) -> None:
    set_rate(line, project, 4)
    tickets = [line.ticket(project) for _ in range(2)]

    # Two tickets and two connections.
    assert [line.connect(f"c{number}", ticket) for number, ticket in enumerate(tickets)] == [200, 200]
    line.cloud.clock.advance(1)
    late = [line.ticket(project) for _ in range(4)]
    assert line.connect("late", late[0]) == 429
    assert len([item for item in line.items("CONNECTION") if item["sk"]["S"] == "META"]) == 2


def test_hosts_messages_count_toward_the_hosts_rate(line: Line, project: Project) -> None:
    key = line.cloud.make_key(project.id, ["agent"], "host-1")
    made = line.cloud.http("POST", "/v1/ws-tickets", key=key)
    assert line.connect("host", made.json()["ticket"]) == 200
    (share,) = line.cloud.app.projects.agent_rate_limiter._shares.values()
    share.bucket.take(line.cloud.clock().timestamp(), int(share.bucket.state[0]))

    assert line.say("host", action="ping")[0]["data"]["code"] == "rate_limited"


def test_connection_that_goes_on_over_the_limit_is_closed(line: Line, project: Project) -> None:
    client = line.joined(project)
    (share,) = line.cloud.app.projects.socket_rate_limiter._shares.values()
    share.bucket.take(line.cloud.clock().timestamp(), int(share.bucket.state[0]))

    for _ in range(MOST_REFUSED):
        assert line.say(client, action="ping")[0]["data"]["code"] == "rate_limited"
    assert line.say(client, action="ping") == []

    assert line.outgoing.closed == [client]
    assert line.items("CONNECTION") == []


@pytest.fixture
def running(cloud: MotoCloud, project: Project) -> list[str]:
    """The ids of a hundred records that have not ended."""
    ids = list[str]()
    for _ in range(MOST_IDS):
        order = {"name": "orders", "source_data": [{"a": 1}]}
        answer = cloud.http("POST", "/v1/task", json=order, key=project.key)
        assert answer.status == 202, answer.body
        ids.append(answer.json()["task_id"])
    return ids


def test_watch_of_a_hundred_records_is_a_few_calls(cloud: MotoCloud, project: Project, running: list[str]) -> None:
    line, records = Line(cloud), cloud.app.notifications.records
    records._lookups, records._batched = cloud.app.record_lookups, cloud.app.batched_record_lookups
    client = line.joined(project)
    for action in ("watch", "unwatch"):
        with count_calls(cloud.app) as calls:
            (answer,) = line.say(client, action=action, task_ids=running)
        assert answer["data"]["task_ids"] == running
        # The connection, its key, the rate, the count; two reads; 25 items a write.
        assert sum(calls.values()) <= 16, calls
    with count_calls(cloud.app) as calls:
        unknown = [f"{prefix}{number}" for number in range(20) for prefix in ("req-", "exp-", "bat-")]
        unknown += [f"AsyncDownloadJob:1:1:/a:{number}" for number in range(20)]
        answers = line.say(client, action="watch", task_ids=unknown)
    assert {answer["data"]["code"] for answer in answers} == {"not_found"}
    assert sum(calls.values()) <= 10, calls


def test_key_costs_less_than_two_dollars_an_hour_over_websockets(
    cloud: MotoCloud, project: Project, running: list[str]
) -> None:
    """The dearest messages at the highest rate: connecting, pings, watching and ending the watches."""
    line = Line(cloud)
    for record_id in running:
        line.record(project, record_id, task_id=record_id, status="running")
    client = line.joined(project)

    def units_of(action: Callable[[], object]) -> dict[str, float]:
        used = {"read": 0.0, "write": 0.0}

        def note(params: Any, model: Any, **_: Any) -> None:
            if model.name == "BatchWriteItem":
                # Each watch has an entry in an index too.
                sent = [each for items in params["RequestItems"].values() for each in items]
                used["write"] += 2 * len(sent)
            elif model.name == "BatchGetItem":
                used["read"] += sum(len(asked["Keys"]) for asked in params["RequestItems"].values())
            elif model.name in ("PutItem", "UpdateItem", "DeleteItem"):
                used["write"] += 2
            else:
                used["read"] += 1

        events = cloud.app.dynamodb.meta.events
        events.register("provide-client-params.dynamodb", note)
        try:
            action()
        finally:
            events.unregister("provide-client-params.dynamodb", note)
        return used

    def cost(used: dict[str, float], messages: int, seconds: float) -> float:
        table = used["read"] * prices.DYNAMODB_READ + used["write"] * prices.DYNAMODB_WRITE
        function = prices.LAMBDA_REQUEST + seconds * 0.5 * prices.LAMBDA_GB_SECOND
        return table + function + messages * prices.WEBSOCKET_MESSAGE

    ping = cost(units_of(lambda: line.say(client, action="ping")), 2, 0.02)
    watch = cost(units_of(lambda: line.say(client, action="watch", task_ids=running)), 2, 0.3)
    # Lookups of this test read nothing; each record is read twice.
    watch += 2 * len(running) * prices.DYNAMODB_READ
    unwatch = cost(units_of(lambda: line.say(client, action="unwatch", task_ids=running)), 2, 0.2)
    connect = cost(units_of(lambda: line.joined(project, "other")), 1, 0.05)
    leave = cost(units_of(lambda: line.leave("other")), 0, 0.05)
    rate = SOCKET_RATE * 3600
    dollars = {
        "ping": ping * rate,
        "watch": (watch + unwatch) / 2 / (1 + MOST_IDS) * rate,
        "connect": (connect + leave + prices.HTTP_API_REQUEST) / CONNECT_COSTS * rate,
    }
    assert max(dollars.values()) < 2, dollars
