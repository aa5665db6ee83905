"""A stored credential is sent to its own origins only, wherever the URL comes from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.ingest.test_subscriptions import manifest, scan, subscribe, tasks
from tests.support.http_servers import serve
from tests.support.ingest.running import Library
from tests.support.ingest.sources import FileSource, Hosted

SECRETS = {"PRIVATE-TOKEN": "s1", "Authorization": "Bearer s2", "Cookie": "s3", "X-Whatever": "s4"}
NAMES = {name.lower() for name in SECRETS}


@pytest.fixture
def elsewhere() -> Iterator[FileSource]:
    """Another origin: the same machine, another port."""
    other = FileSource()
    with serve(other.answer) as other.port:
        yield other


def put(library: Library, body: dict[str, Any], name: str = "shop") -> Any:
    return library.cloud.http("PUT", f"/v1/credentials/{name}", json=body, key=library.project.key)


def keep(library: Library, *origins: str) -> None:
    answer = put(library, {"headers": SECRETS, "origins": list(origins)})
    assert answer.status == 204, answer.body


def secrets_seen(source: FileSource) -> list[set[str]]:
    return [NAMES & set(headers) for headers in source.headers]


def fetched(library: Library, url: str) -> dict[str, Any]:
    asked = library.ask(url, credentials="shop")
    library.run()
    return library.request(asked["request_id"])


def test_every_header_goes_to_the_credentials_origin(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    keep(library, source.url(""))
    assert fetched(library, source.url("/a"))["status"] == "completed"
    assert secrets_seen(source) == [NAMES]


def test_source_url_of_another_origin_fails_and_gets_no_request(
    library: Library, source: FileSource, elsewhere: FileSource
) -> None:
    elsewhere.files["/a"] = Hosted(b"a")
    keep(library, source.url(""))
    failed = fetched(library, elsewhere.url("/a"))
    assert (failed["status"], failed["error"]["code"]) == ("failed", "credential_not_for_origin")
    assert f"127.0.0.1:{elsewhere.port}" in failed["error"]["detail"]
    assert elsewhere.seen == []


def test_redirect_to_a_foreign_origin_drops_the_headers_of_the_credential(
    library: Library, source: FileSource, elsewhere: FileSource
) -> None:
    source.files["/a"] = Hosted(redirect=elsewhere.url("/b"))
    elsewhere.files["/b"] = Hosted(b"b")
    keep(library, source.url(""))
    assert fetched(library, source.url("/a"))["status"] == "completed"
    assert (secrets_seen(source), secrets_seen(elsewhere)) == ([NAMES], [set()])


def test_redirect_to_another_origin_of_the_credential_keeps_its_headers(
    library: Library, source: FileSource, elsewhere: FileSource
) -> None:
    source.files["/a"] = Hosted(redirect=elsewhere.url("/b"))
    elsewhere.files["/b"] = Hosted(b"b")
    keep(library, source.url(""), elsewhere.url(""))
    assert fetched(library, source.url("/a"))["status"] == "completed"
    assert secrets_seen(elsewhere) == [NAMES]


def test_manifest_entry_of_another_origin_is_fetched_without_the_credential(
    library: Library, source: FileSource, elsewhere: FileSource
) -> None:
    source.files["/a"] = Hosted(b"a")
    elsewhere.files["/b"] = Hosted(b"b")
    manifest(source, "/a", elsewhere.url("/b"))
    keep(library, source.url(""))
    subscription = subscribe(library, source.url("/list.json"), credentials="shop")
    assert scan(library, subscription)["result"]["queued"] == 2
    assert {task["status"] for task in tasks(library, subscription)} == {"completed"}
    assert (secrets_seen(source), secrets_seen(elsewhere)) == ([NAMES, NAMES], [set()])


def test_check_of_another_origin_gets_no_request(library: Library, source: FileSource, elsewhere: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    asked = library.ask(source.url("/a"))
    library.run()
    keep(library, source.url(""))
    payload = {"file_id": asked["file_id"], "source_url": elsewhere.url("/a"), "credentials": "shop"}
    request = library.submit("check", payload)
    library.run()
    assert library.request(request["request_id"])["error"]["code"] == "credential_not_for_origin"
    assert elsewhere.seen == []


@pytest.mark.parametrize("stored", [json.dumps({"headers": {"Cookie": "old"}}), "session=old"])
def test_credential_without_origins_is_refused_with_a_remedy(library: Library, source: FileSource, stored: str) -> None:
    source.files["/a"] = Hosted(b"a")
    secret = f"{library.cloud.app.settings.secrets_prefix}{library.project.id}/shop"
    library.cloud.client("secretsmanager").create_secret(Name=secret, SecretString=stored)
    failed = fetched(library, source.url("/a"))
    assert failed["error"]["code"] == "credential_without_origins"
    assert "PUT /v1/credentials/shop" in failed["error"]["detail"]
    assert source.seen == []

    keep(library, source.url(""))
    assert fetched(library, source.url("/a"))["status"] == "completed"


@pytest.mark.parametrize(
    "origins",
    [
        [],
        ["files.example"],
        ["https://files.example/path"],
        ["https://user@files.example"],
        ["https://*.example"],
        ["https://files.example:0"],
        ["https://files.example:99999"],
        ["ftp://files.example"],
        ["https://files.example\n"],
        ["https://bücher.example"],
    ],
)
def test_invalid_origin_is_422(library: Library, origins: list[str]) -> None:
    refused = put(library, {"headers": SECRETS, "origins": origins})
    assert refused.status == 422, refused.body


def test_credential_without_origins_is_422(library: Library) -> None:
    assert put(library, {"headers": SECRETS}).status == 422


@pytest.mark.parametrize("header", ["Host", "content-length", "Transfer-Encoding", "Connection"])
def test_header_of_the_message_framing_is_422(library: Library, header: str) -> None:
    refused = put(library, {"headers": {header: "1"}, "origins": ["https://files.example"]})
    assert refused.status == 422, refused.body


@pytest.mark.parametrize("name", ["a%20b", "a%2Fb", "x" * 101, "%C3%BC"])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_invalid_credential_name_is_422(library: Library, name: str, method: str) -> None:
    body = {"headers": SECRETS, "origins": ["https://files.example"]} if method == "PUT" else None
    refused = library.cloud.http(method, f"/v1/credentials/{name}", json=body, key=library.project.key)
    assert refused.status in (404, 422), refused.body
    assert refused.status == 422 or "%2F" in name
    assert library.cloud.client("secretsmanager").list_secrets()["SecretList"] == []


def test_plain_http_origin_needs_a_project_with_private_urls(library: Library) -> None:
    body = {"headers": SECRETS, "origins": ["http://files.example"]}
    public = Library(library.cloud, library.cloud.project(allow_private_urls=False))
    refused = put(public, body)
    assert (refused.status, refused.json()["errors"][0]["loc"]) == (422, ["body", "origins"])
    assert put(library, body).status == 204
