"""Watching records over a WebSocket, and by polling without one."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from websockets.sync.server import ServerConnection
from websockets.sync.server import serve as serve_websocket

from tidegate_client import watching
from tidegate_client.client import Client
from tidegate_client.errors import NotFound, ServerError, WaitTimeout
from tidegate_client.records import matches
from tidegate_client.watching import LARGEST_FRAME, Watch, split_by_frame_size

TICKET = {"ticket": "t-1", "expires_at": "2099-01-01T00:00:00Z"}


@pytest.fixture
def client(httpserver: HTTPServer) -> Client:
    return Client(httpserver.url_for("").rstrip("/"), "k", attempts=0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "FIRST_POLL", 0.02)


@contextmanager
def socket_server(answer: Callable[[ServerConnection, dict[str, Any]], None]) -> Iterator[str]:
    """Calls `answer` with each message that a client sends."""

    def handle(connection: ServerConnection) -> None:
        for text in connection:
            answer(connection, json.loads(text))

    with serve_websocket(handle, "127.0.0.1", 0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"ws://127.0.0.1:{server.socket.getsockname()[1]}/live"
        server.shutdown()


def export(status: str, **more: Any) -> dict[str, Any]:
    return {"task_id": "exp-1", "name": "report", "status": status} | more


def test_changes_come_over_the_websocket_until_the_end(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_request("/v1/task").respond_with_json(export("queued"))
    httpserver.expect_request("/v1/ws-tickets", "POST").respond_with_json(TICKET, 201)
    requests: list[Any] = []

    def answer(connection: ServerConnection, message: dict[str, Any]) -> None:
        assert connection.request
        requests.append((connection.request.path, message))
        for status in ("running", "completed"):
            connection.send(json.dumps({"type": f"task.{status}", "data": export(status)}))

    with socket_server(answer) as ws_url:
        seen = [change.status for change in Watch(client, ["exp-1"], ws_url=ws_url, timeout=10)]

    assert seen == ["queued", "running", "completed"]
    assert requests == [("/live?ticket=t-1", {"action": "watch", "task_ids": ["exp-1"]})]


def test_lost_websocket_message_is_replaced_by_a_poll(
    httpserver: HTTPServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "QUIET_SECONDS", 0.1)
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("running"))
    httpserver.expect_ordered_request("/v1/ws-tickets", "POST").respond_with_json(TICKET, 201)
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("completed"))
    actions: list[str] = []

    with socket_server(lambda _connection, message: actions.append(message["action"])) as ws_url:
        seen = [change.status for change in Watch(client, ["exp-1"], ws_url=ws_url, timeout=10)]

    assert seen == ["running", "completed"]
    assert actions == ["watch", "ping"]


def test_watch_without_a_websocket_polls(httpserver: HTTPServer, client: Client) -> None:
    for status in ("running", "running", "failed"):
        httpserver.expect_ordered_request("/v1/batches/bat-1").respond_with_json({"batch_id": "b", "status": status})
    reasons: list[str] = []
    watch = Watch(client, ["bat-1"], use_socket=False, timeout=10, on_fallback=reasons.append)

    changes = list(watch)

    assert [change.status for change in changes] == ["running", "failed"]
    assert (changes[-1].ended, changes[-1].succeeded) == (True, False)
    assert reasons == []


def test_broken_websocket_falls_back_to_polling(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("running"))
    httpserver.expect_ordered_request("/v1/ws-tickets", "POST").respond_with_json(TICKET, 201)
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("completed"))
    reasons: list[str] = []

    with socket_server(lambda connection, _message: connection.close()) as ws_url:
        watch = Watch(client, ["exp-1"], ws_url=ws_url, timeout=10, on_fallback=reasons.append)
        seen = [change.status for change in watch]

    assert seen == ["running", "completed"]
    assert len(reasons) == 1


def test_short_outage_of_the_api_does_not_end_the_watch(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("running"))
    for status in (503, 500, 429):
        httpserver.expect_ordered_request("/v1/task").respond_with_json({"code": "busy"}, status)
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("completed"))

    seen = [change.status for change in Watch(client, ["exp-1"], use_socket=False, timeout=10)]

    assert seen == ["running", "completed"]


def test_long_outage_of_the_api_ends_the_watch(
    httpserver: HTTPServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "OUTAGE_SECONDS", 0.05)
    httpserver.expect_oneshot_request("/v1/task").respond_with_json(export("running"))
    httpserver.expect_request("/v1/task").respond_with_json({"code": "busy"}, 503)

    with pytest.raises(ServerError):
        list(Watch(client, ["exp-1"], use_socket=False, timeout=10))


def test_watch_without_the_websocket_library_polls(
    httpserver: HTTPServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "websocket", None)
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("running"))
    httpserver.expect_ordered_request("/v1/task").respond_with_json(export("completed"))
    reasons: list[str] = []

    seen = [change.status for change in Watch(client, ["exp-1"], timeout=10, on_fallback=reasons.append)]

    assert seen == ["running", "completed"]
    assert reasons == ["websocket-client is not installed"]


def test_id_of_unknown_shape_is_tried_as_each_kind(httpserver: HTTPServer, client: Client) -> None:
    missing = {"code": "not_found", "detail": "no"}
    for path in ("/v1/downloads/x1", "/v1/jobs/x1", "/v1/task"):
        httpserver.expect_request(path).respond_with_json(missing, 404)
    httpserver.expect_request("/v1/requests/x1").respond_with_json({"request_id": "x1", "status": "completed"})

    assert [change.status for change in Watch(client, ["x1"])] == ["completed"]


def test_message_of_a_task_does_not_match_its_job() -> None:
    task = {"task_id": "AsyncDownloadTask:1:2:/a:u-1", "job_id": "AsyncDownloadJob:1:2:/a:7", "status": "Success"}
    job = {"job_id": "AsyncDownloadJob:1:2:/a:7", "key": "k7", "status": "Running"}

    assert [matches(task, one) for one in (task["task_id"], "u-1", task["job_id"])] == [True, True, False]
    assert [matches(job, one) for one in (job["job_id"], "k7", "7x")] == [True, True, False]


def test_known_records_are_not_read_again(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_request("/v1/ws-tickets", "POST").respond_with_json(TICKET, 201)
    tasks = {f"AsyncDownloadTask:1:2:/a:u-{number}": {"status": "Pending"} for number in range(250)}
    messages: list[int] = []

    def answer(connection: ServerConnection, message: dict[str, Any]) -> None:
        messages.append(len(message["task_ids"]))
        for task_id in message["task_ids"]:
            connection.send(json.dumps({"type": "task.completed", "data": {"task_id": task_id, "status": "Success"}}))

    with socket_server(answer) as ws_url:
        changes = list(Watch(client, list(tasks), ws_url=ws_url, known=tasks, timeout=20))

    assert sum(change.succeeded for change in changes) == 250
    assert messages == [100, 100, 50]
    assert [request.path for request, _ in httpserver.log] == ["/v1/ws-tickets"]


def test_unknown_id_raises_not_found(httpserver: HTTPServer, client: Client) -> None:
    for kind in ("downloads/x1", "jobs/x1", "task", "requests/x1", "batches/x1"):
        httpserver.expect_request(f"/v1/{kind}").respond_with_json({"code": "not_found"}, 404)

    with pytest.raises(NotFound):
        list(Watch(client, ["x1"]))


def test_watch_raises_wait_timeout(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_request("/v1/task").respond_with_json(export("running"))

    with pytest.raises(WaitTimeout, match="exp-1"):
        list(Watch(client, ["exp-1"], use_socket=False, timeout=0.2))


@pytest.mark.parametrize(("length", "number"), [(10, 250), (2048, 100), (30_000, 3)])
def test_watch_messages_are_split_by_bytes(length: int, number: int) -> None:
    ids = [f"{place:05}" + "é" * (length // 6) for place in range(number)]
    groups = split_by_frame_size(ids)
    assert [one for group in groups for one in group] == ids
    assert all(len(json.dumps({"action": "watch", "task_ids": group}).encode()) <= LARGEST_FRAME for group in groups)
    assert all(len(group) <= 100 for group in groups)
