"""What a receiver can verify with its own secret, and what nobody can do with a signature or a secret of another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import time_machine
from standardwebhooks import Webhook

from tests.integration.notifications.receiving import Receiver, receiver, send_notice
from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import Answer, MotoCloud, Project
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate_client.webhooks import NotVerified, verify


class Source:
    """A source of one short page. `redirects` has the places that it sends a path to."""

    def __init__(self) -> None:
        self.port = 0
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.redirects: dict[str, str] = {}

    def __call__(self, request: Handler) -> None:
        self.seen.append((request.path, dict(request.headers.items())))
        goes_to = self.redirects.get(urlsplit(request.path).path)
        if goes_to:
            request.answer(302, Location=goes_to)
        else:
            request.answer(200, json.dumps({"status": 200, "data": {"data": [{"a": 1}], "total": 1}}).encode())

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@pytest.fixture
def source() -> Iterator[Source]:
    made = Source()
    with serve(made) as made.port:
        yield made


@pytest.fixture(autouse=True)
def right_clock(cloud: MotoCloud) -> Iterator[None]:
    """Verifiers compare the time stamp with their clock."""
    with time_machine.travel(cloud.clock(), tick=True):
        yield


def secret_of(project: Project, origin: str, key: str | None = None) -> str:
    answer = project.cloud.http("GET", "/v1/callback-secret", query={"origin": origin}, key=key or project.key)
    assert answer.status == 200, answer.body
    return str(answer.json()["callback_secret"])


def export_from(project: Project, url: str, key: str | None = None, **more: Any) -> Answer:
    return project.cloud.http("POST", "/v1/download/sync", json={"source_url": url, **more}, key=key or project.key)


def page_request(project: Project, source: Source) -> tuple[str, dict[str, str]]:
    """The path and the headers of a request for a page."""
    assert export_from(project, f"{source.origin}/orders?shop=7&name=%e4%b9%99").status == 200
    return source.seen[-1]


def callback(project: Project, at: Receiver) -> tuple[dict[str, str], bytes]:
    send_notice(project, at.url, f"req-{len(at.seen)}")
    project.cloud.deliver("CallbacksQueue")
    headers, body = at.seen[-1]
    return headers, body.encode()


def test_page_request_is_verified_by_its_url_with_the_origins_secret(project: Project, source: Source) -> None:
    path, headers = page_request(project, source)
    own = secret_of(project, source.origin)
    assert verify(own, headers, b"", url=source.origin + path).startswith("msg_")
    # Any library of Standard Webhooks can do it.
    Webhook(own).verify(f"GET {source.origin}{path}", headers, json_parse=False)


def test_page_request_replayed_at_another_url_is_refused(project: Project, source: Source) -> None:
    path, headers = page_request(project, source)
    own = secret_of(project, source.origin)
    elsewhere = ["/orders", path.replace("page=0", "page=1"), path + "&more=1"]
    for url in [source.origin + other for other in elsewhere] + ["https://other.example" + path]:
        with pytest.raises(NotVerified):
            verify(own, headers, b"", url=url)
    with pytest.raises(NotVerified):
        verify(own, headers, b"")
    for other in ("https://other.example", source.origin.replace("http:", "https:"), "http://127.0.0.1:1"):
        with pytest.raises(NotVerified):
            verify(secret_of(project, other), headers, b"", url=other + path)


def test_callback_is_verified_by_its_receivers_secret_alone(project: Project) -> None:
    with receiver() as at, receiver() as other:
        headers, body = callback(project, at)
        own = secret_of(project, at.url.removesuffix("/hook"))
        others = secret_of(project, other.url.removesuffix("/hook"))
        assert verify(own, headers, body) == headers["webhook-id"]
        Webhook(own).verify(body, headers)
        with pytest.raises(NotVerified):
            verify(others, headers, body)


def test_verifiers_with_the_shared_secret_still_pass(cloud: MotoCloud, project: Project, source: Source) -> None:
    shared = cloud.callback_secret(project.id)
    path, headers = page_request(project, source)
    Webhook(shared).verify("", headers, json_parse=False)
    verify(shared, headers, b"")
    verify(shared, headers, b"", url=source.origin + path)
    with receiver() as at:
        headers, body = callback(project, at)
        Webhook(shared).verify(body, headers)
        verify(shared, headers, body)


def test_without_shared_signatures_only_the_own_secret_verifies(
    cloud: MotoCloud, project: Project, source: Source
) -> None:
    path = f"/v1/projects/{project.id}"
    assert cloud.http("GET", path, key=cloud.admin_key).json()["shared_signatures"] is True
    changed = cloud.http("PATCH", path, json={"shared_signatures": False}, key=cloud.admin_key)
    assert changed.json()["shared_signatures"] is False
    page, headers = page_request(project, source)
    verify(secret_of(project, source.origin), headers, b"", url=source.origin + page)
    with pytest.raises(NotVerified):
        verify(cloud.callback_secret(project.id), headers, b"")
    with receiver() as at:
        headers, body = callback(project, at)
        verify(secret_of(project, at.url.removesuffix("/hook")), headers, body)
        with pytest.raises(NotVerified):
            verify(cloud.callback_secret(project.id), headers, body)


def test_rotation_keeps_old_secrets_of_origins_until_they_are_retired(
    cloud: MotoCloud, project: Project, source: Source
) -> None:
    path, old = f"/v1/projects/{project.id}/callback-secrets", secret_of(project, source.origin)
    assert cloud.http("POST", path, key=cloud.admin_key).status == 201
    new = secret_of(project, source.origin)
    assert new != old
    page, headers = page_request(project, source)
    for secret in (old, new):
        verify(secret, headers, b"", url=source.origin + page)
    assert cloud.http("DELETE", f"{path}/previous", key=cloud.admin_key).status == 204
    page, headers = page_request(project, source)
    verify(new, headers, b"", url=source.origin + page)
    with pytest.raises(NotVerified):
        verify(old, headers, b"", url=source.origin + page)


def test_old_project_with_a_stored_secret_has_secrets_of_origins(
    cloud: MotoCloud, project: Project, source: Source
) -> None:
    stored = "whsec_" + "QUJD" * 8
    cloud.app.table.write(
        update(keys.project(project.id), {"callback_secrets": [stored]}, removes=["secret_generations"], condition="")
    )
    old = secret_of(project, source.origin)
    cloud.http("POST", f"/v1/projects/{project.id}/callback-secrets", key=cloud.admin_key)
    page, headers = page_request(project, source)
    for secret in (old, secret_of(project, source.origin)):
        verify(secret, headers, b"", url=source.origin + page)
    verify(stored, headers, b"")


def test_secret_of_an_origin_is_the_projects_own(cloud: MotoCloud, project: Project) -> None:
    other = cloud.project()
    assert secret_of(project, "https://a.example") == secret_of(project, "https://A.example:443/")
    seen = {
        secret_of(each, origin) for each in (project, other) for origin in ("https://a.example", "http://a.example")
    }
    assert len(seen | {cloud.callback_secret(project.id)}) == 5
    admin = cloud.http(
        "GET",
        "/v1/callback-secret",
        query={"origin": "https://a.example", "project_id": project.id},
        key=cloud.admin_key,
    )
    assert admin.json()["callback_secret"] == secret_of(project, "https://a.example")


@pytest.mark.parametrize(
    "origin", ["", "a.example", "https://a.example/path", "ftp://a.example", "https://a.example:0"]
)
def test_text_that_is_no_origin_is_422(cloud: MotoCloud, project: Project, origin: str) -> None:
    answer = cloud.http("GET", "/v1/callback-secret", query={"origin": origin}, key=project.key)
    assert (answer.status, answer.json()["errors"][0]["loc"]) == (422, ["query", "origin"])


def test_key_of_scope_read_gets_no_secret_and_no_signed_request(
    cloud: MotoCloud, project: Project, source: Source
) -> None:
    reader = cloud.make_key(project.id, ["read"])
    url = f"{source.origin}/orders"
    two_tables = {"source_data": [[{"a": 1}]], "source_url": [None, url]}
    refused = [
        cloud.http("GET", "/v1/callback-secret", query={"origin": source.origin}, key=reader),
        export_from(project, url, key=reader),
        cloud.http("GET", "/v1/download/sync", query={"source_url": url}, key=reader),
        cloud.http("POST", "/v1/download/sync/multiple", json=two_tables, key=reader),
        cloud.http("GET", "/v1/download/sync/multiple", query={"source_url": json.dumps([url])}, key=reader),
    ]
    assert [(answer.status, answer.json()["code"]) for answer in refused] == [(403, "scope_missing")] * 5
    assert source.seen == []
    given = export_from(project, url, key=reader, source_data=[{"a": 1}])
    assert (given.status, source.seen) == (200, [])


def test_redirect_is_signed_for_its_own_url_within_the_origin_only(project: Project, source: Source) -> None:
    other = Source()
    with serve(other) as other.port:
        source.redirects = {"/old": "/new?page=0", "/away": f"{other.origin}/there"}
        other.redirects = {"/there": f"{source.origin}/back"}
        own = secret_of(project, source.origin)
        assert export_from(project, f"{source.origin}/old").status == 200
        assert export_from(project, f"{source.origin}/away").status == 200
    (old, new, away, back) = source.seen
    for path, headers in (old, new, away):
        verify(own, headers, b"", url=source.origin + path)
    for _, headers in (other.seen[0], back):
        assert not [name for name in headers if name.lower().startswith("webhook-")]


def test_secret_is_in_no_log_and_no_record(
    cloud: MotoCloud, project: Project, source: Source, capsys: pytest.CaptureFixture[str]
) -> None:
    own = secret_of(project, source.origin)
    page_request(project, source)
    items = cloud.client("dynamodb").scan(TableName=cloud.names.refs["Table"])["Items"]
    printed = capsys.readouterr()
    assert own.removeprefix("whsec_") not in json.dumps(items, default=str) + printed.out + printed.err
