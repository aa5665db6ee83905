"""HTTP calls: headers, retries and exceptions."""

from __future__ import annotations

import json
import re
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import urllib3
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from tests.support.http_servers import free_port
from tidegate.distribution.model import job_key
from tidegate_client.cli import main
from tidegate_client.client import Client
from tidegate_client.download import ResumingDownload
from tidegate_client.errors import (
    ApiError,
    ConfigError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    RateLimited,
    ServerError,
    TransferError,
    Unauthorized,
    Unreachable,
)
from tidegate_client.resources.paging import walk
from tidegate_client.swarm.peers import Origin, OriginFailed
from tidegate_client.watching import Socket, SocketFailed


@pytest.fixture
def client(httpserver: HTTPServer) -> Iterator[Client]:
    with Client(httpserver.url_for("").rstrip("/"), "k-1", attempts=3, backoff=0.01) as made:
        yield made


def answers(httpserver: HTTPServer, *statuses: int, headers: dict[str, str] | None = None) -> list[Request]:
    """Answers with these statuses in turn, then with 200. Returns the list of requests, which grows."""
    left, seen = list(statuses), list[Request]()

    def answer(request: Request) -> Response:
        request.get_data()
        seen.append(request)
        status = left.pop(0) if left else 200
        body = {"items": [], "project_id": "p"} if status < 400 else {"code": "busy", "detail": "wait"}
        return Response(json.dumps(body), status, headers, content_type="application/json")

    httpserver.expect_request(re.compile("/.*")).respond_with_handler(answer)
    return seen


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_read_is_retried(httpserver: HTTPServer, client: Client, status: int) -> None:
    seen = answers(httpserver, status, status)

    client.projects.list()

    assert len(seen) == 3


def test_creating_post_is_retried_with_the_same_idempotency_key(httpserver: HTTPServer, client: Client) -> None:
    seen = answers(httpserver, 503)

    client.projects.create("one")
    client.projects.create("one")

    keys = [request.headers["Idempotency-Key"] for request in seen]
    assert keys[0] == keys[1] != keys[2]


def test_change_that_is_not_idempotent_is_not_retried(httpserver: HTTPServer, client: Client) -> None:
    seen = answers(httpserver, 503)

    with pytest.raises(ServerError):
        client.requests.cancel("req-1")

    assert len(seen) == 1


def test_schedule_change_with_a_revision_is_not_retried(httpserver: HTTPServer, client: Client) -> None:
    """If the first attempt was carried out, the second would get 409 for a revision that it changed itself."""
    seen = answers(httpserver, 503, 503)

    with pytest.raises(ServerError):
        client.exports.update_schedule("s-1", {"name": "orders", "revision": 3})
    with pytest.raises(ServerError):
        client.batches.update_schedule("s-1", paused=True, revision=3)
    client.exports.update_schedule("s-1", {"name": "orders"})

    assert len(seen) == 3


def test_retry_after_is_honoured(httpserver: HTTPServer, client: Client) -> None:
    answers(httpserver, 429, headers={"Retry-After": "1"})
    began = time.monotonic()

    client.projects.list()

    assert time.monotonic() - began >= 1


def test_create_waits_for_its_first_attempt_in_progress(httpserver: HTTPServer, client: Client) -> None:
    problem = {"code": "idempotency_in_progress", "detail": "still running"}
    httpserver.expect_ordered_request("/v1/projects", "POST").respond_with_json(problem, 409)
    httpserver.expect_ordered_request("/v1/projects", "POST").respond_with_json({"project_id": "p-1"}, 201)

    assert client.projects.create("one")["project_id"] == "p-1"


def test_key_and_project_are_sent_as_headers(httpserver: HTTPServer) -> None:
    seen = answers(httpserver)

    Client(httpserver.url_for(""), "k-1", project_id="p-9").projects.list(limit=5)

    assert seen[0].headers["Authorization"] == "Bearer k-1"
    assert seen[0].headers["X-Project-Id"] == "p-9"
    assert seen[0].args.to_dict() == {"limit": "5"}


def test_ids_with_slashes_stay_one_path_segment(httpserver: HTTPServer, client: Client) -> None:
    seen = answers(httpserver)

    client.agents.get("a/b c")

    assert seen[0].environ["REQUEST_URI"] == "/v1/agents/a%2Fb%20c"


def test_job_is_named_by_its_key_and_task_by_its_uuid(httpserver: HTTPServer, client: Client) -> None:
    seen = answers(httpserver)
    # A gateway decodes paths, so the whole id would not survive.
    job_id, uuid = "AsyncDownloadJob:1:2:/a/b%41?é.bin:77", "0b50a6a8-7e5b-4f39-9f0e-2f2f6ad0c111"

    for call in (client.jobs.get, client.jobs.cancel, client.jobs.redrive, client.jobs.targets, client.jobs.map):
        call(job_id)
    client.downloads.get(f"AsyncDownloadTask:1:2:/a/b%41?.bin:{uuid}")

    paths = [each.path for each in seen]
    assert paths[:5] == [
        f"/v1/jobs/{job_key(job_id)}{tail}" for tail in ("", "/cancel", "/redrive", "/targets", "/map")
    ]
    assert paths[5] == f"/v1/downloads/{uuid}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Invalid),
        (401, Unauthorized),
        (403, Forbidden),
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (413, Invalid),
        (418, ApiError),
        (422, Invalid),
        (429, RateLimited),
        (500, ServerError),
    ],
)
def test_problem_becomes_a_typed_exception(
    httpserver: HTTPServer, client: Client, status: int, kind: type[ApiError]
) -> None:
    problem = {"status": status, "code": "some_code", "detail": "why", "errors": [{"loc": ["body", "x"], "msg": "no"}]}
    httpserver.expect_request("/v1/files/f").respond_with_json(problem, status)

    with pytest.raises(kind) as raised:
        client.files.get("f")

    assert (raised.value.status, raised.value.code, raised.value.detail) == (status, "some_code", "why")
    assert raised.value.errors[0]["loc"] == ["body", "x"]


def test_error_without_a_problem_document_is_typed_by_status(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_request("/v1/files/f").respond_with_data("<html>gone wrong</html>", 404)

    with pytest.raises(NotFound, match="HTTP 404"):
        client.files.get("f")


def test_closed_port_is_unreachable() -> None:
    with pytest.raises(Unreachable):
        Client(f"http://127.0.0.1:{free_port()}", "k", attempts=1, backoff=0.01).projects.list()


def test_options_may_be_any_mapping_and_any_collection(httpserver: HTTPServer, client: Client) -> None:
    seen = answers(httpserver)
    place: Any = {"biz_id": 1, "app_id": 2, "file_path": "/a", "file_name": "a", "file_signature": "0" * 64}
    targets: Any = ({"agent_id": name} for name in ("h-1", "h-2"))
    labels = MappingProxyType({"zone": "a"})
    client.downloads.submit_batch(**place, target_user="u", target_file_dir="/d", targets=targets, labels=labels)
    client.agents.create_enrolment(groups=("web",), labels=labels)

    submitted, enrolment = (request.get_json() for request in seen)
    assert (submitted["targets"], submitted["labels"]) == ([{"agent_id": "h-1"}, {"agent_id": "h-2"}], {"zone": "a"})
    assert enrolment == {"groups": ["web"], "labels": {"zone": "a"}}
    with pytest.raises(TypeError, match="cannot be sent"):
        client.exports.submit({"name": b"n"})


def test_number_0_is_sent_and_options_without_a_value_are_not(httpserver: HTTPServer, client: Client) -> None:
    """An older API refuses fields that it does not know. `uses: 0` is for the API to refuse: left out, it meant 1."""
    seen = answers(httpserver)
    client.agents.create_enrolment(uses=0, expires_in=0, groups=[], labels={}, replace=False)
    client.subscriptions.preview("https://files.example/", subscription_id=None, format="html")

    enrolment, preview = (request.get_json() for request in seen)
    assert enrolment == {"uses": 0, "expires_in": 0}
    assert preview == {"source_url": "https://files.example/", "format": "html"}


def test_pages_are_walked_to_the_end(httpserver: HTTPServer, client: Client) -> None:
    first = {"items": [{"project_id": "a"}, {"project_id": "b"}], "next_cursor": "c 1"}
    httpserver.expect_ordered_request("/v1/projects", query_string={}).respond_with_json(first)
    httpserver.expect_ordered_request("/v1/projects", query_string={"cursor": "c 1"}).respond_with_json(
        {"items": [{"project_id": "c"}]}
    )

    found = [project["project_id"] for project in walk(lambda cursor: client.projects.list(cursor=cursor))]

    assert found == ["a", "b", "c"]


def test_key_is_not_sent_to_the_redirect_target(httpserver: HTTPServer, client: Client) -> None:
    httpserver.expect_request("/v1/download/sync").respond_with_data(
        b"", 303, headers={"Location": httpserver.url_for("/store/x")}
    )
    stored: list[str | None] = []

    def store(request: Request) -> Response:
        stored.append(request.headers.get("Authorization"))
        return Response(b"a,b\n")

    httpserver.expect_request("/store/x").respond_with_handler(store)

    assert client.exports.sync({"name": "n", "source_data": []}) == b"a,b\n"
    assert stored == [None]


@pytest.mark.parametrize(
    "address", ["http://api.example", "HTTP://10.0.0.1:8080/x", "http://[2001:db8::1]", "http://0.0.0.0"]
)
def test_unencrypted_address_of_another_machine_is_refused(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_ALLOW_HTTP", raising=False)
    with pytest.raises(ConfigError, match=r"is not encrypted.*TIDEGATE_ALLOW_HTTP=1"):
        Client(address, "k")

    monkeypatch.setenv("TIDEGATE_ALLOW_HTTP", "1")
    assert Client(address, "k").http.api_url == address


@pytest.mark.parametrize("address", ["http://127.0.0.1:1", "http://localhost", "http://[::1]:2", "https://api.example"])
def test_loopback_and_https_addresses_are_accepted(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_ALLOW_HTTP", raising=False)

    assert Client(address, "k").http.api_url == address


def test_unencrypted_websocket_of_another_machine_gets_no_ticket(
    httpserver: HTTPServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGATE_ALLOW_HTTP", raising=False)
    httpserver.expect_request("/v1/ws-tickets").respond_with_json({"ticket": "t", "ws_url": "ws://api.example/live"})

    with pytest.raises(SocketFailed, match="is not encrypted"):
        Socket(client, None)


@pytest.mark.parametrize("words", [["login", "--key", "k", "--api-url"], ["agent", "enrol", "--token", "t", "--url"]])
def test_command_refuses_an_unencrypted_address(
    words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEGATE_ALLOW_HTTP", raising=False)

    assert main([*words, "http://api.example"]) != 0

    assert "is not encrypted" in capsys.readouterr().err


SIGNED = "?X-Amz-Credential=AKIA&X-Amz-Signature=5ec7e7"


@pytest.mark.parametrize("move", ["download", "swarm piece", "swarm list"])
def test_error_of_a_transfer_shows_no_signature(tmp_path: Path, move: str) -> None:
    url = f"http://127.0.0.1:{free_port()}/bucket/file{SIGNED}"
    pool = urllib3.PoolManager()
    moves: dict[str, Callable[[], object]] = {
        "download": lambda: ResumingDownload(pool, (tmp_path / "to").open("w+b"), patience=0).run(lambda _: url),
        "swarm piece": lambda: Origin(pool, lambda _: url, None).fetch(0, 1, print, threading.Event()),
        "swarm list": lambda: Origin(pool, lambda _: url, None).list_at(url, 1),
    }

    with pytest.raises((TransferError, OriginFailed)) as caught:
        moves[move]()

    text = "".join(traceback.format_exception(caught.value, chain=not caught.value.__suppress_context__))
    assert "5ec7e7" not in text
    assert "AKIA" not in text
