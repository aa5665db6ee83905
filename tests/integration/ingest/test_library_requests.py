"""`associate`, `check` and credentials: requests that bring no new content."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import pytest

from tests.support.ingest.running import BIZ, Library
from tests.support.ingest.sources import FileSource, Hosted
from tidegate.ingest import steps

BODY = b"tide" * 1000
SHA = hashlib.sha256(BODY).hexdigest()
SECRET = "session=tell-nobody-5ecre7"


def stored(library: Library, source: FileSource) -> str:
    source.files["/a.bin"] = Hosted(BODY)
    asked = library.ask(source.url("/a.bin"))
    library.run()
    return str(asked["file_id"])


def ran(library: Library, kind: str, payload: dict[str, Any], **more: Any) -> dict[str, Any]:
    request = library.submit(kind, payload, **more)
    library.run()
    return library.request(request["request_id"])


def test_associate_uses_stored_content_without_fetching(library: Library, source: FileSource) -> None:
    stored(library, source)
    before = list(source.seen)

    done = ran(library, "associate", {**BIZ, "file_path": "/other/place.bin", "signature": SHA})

    assert done["status"] == "completed"
    file = library.file(done["result"]["file_id"])
    assert (file["state"], file["file_path"], file["signature"], file["size"]) == (
        "ready",
        "/other/place.bin",
        SHA,
        len(BODY),
    )
    assert source.seen == before


def test_associate_of_missing_content_fails(library: Library) -> None:
    failed = ran(library, "associate", {**BIZ, "file_path": "/x", "signature": "0" * 64})

    assert (failed["status"], failed["error"]["code"], failed["attempts"]) == ("failed", "file_not_found", 1)


def test_associate_does_not_find_content_of_another_project(library: Library, source: FileSource) -> None:
    stored(library, source)
    other = Library(library.cloud, library.cloud.project())

    failed = ran(other, "associate", {**BIZ, "file_path": "/x", "signature": SHA})

    assert failed["error"]["code"] == "file_not_found"


@pytest.mark.parametrize(
    ("change", "found"),
    [(lambda hosted: None, "same"), (lambda hosted: setattr(hosted, "body", BODY + b"!"), "changed")],
)
def test_check_compares_a_stored_object_with_signature_and_source(
    library: Library, source: FileSource, change: Any, found: str
) -> None:
    file_id = stored(library, source)
    change(source.files["/a.bin"])

    done = ran(library, "check", {"file_id": file_id})

    assert done["status"] == "completed"
    assert done["result"] == {"file_id": file_id, "signature": SHA, "size": len(BODY), "source": found}


@pytest.mark.parametrize("size", [10, 2_000_000])
def test_check_without_content_length_compares_the_etag(library: Library, source: FileSource, size: int) -> None:
    source.files["/a.bin"] = Hosted(b"x" * size)
    file_id = library.ask(source.url("/a.bin"))["file_id"]
    library.run()
    source.files["/a.bin"].tell_length = False

    assert ran(library, "check", {"file_id": file_id})["result"]["source"] == "same"
    source.files["/a.bin"].body += b"!"
    assert ran(library, "check", {"file_id": file_id})["result"]["source"] == "changed"


def test_check_reports_a_source_that_is_gone(library: Library, source: FileSource) -> None:
    file_id = stored(library, source)
    del source.files["/a.bin"]

    assert ran(library, "check", {"file_id": file_id})["result"]["source"] == "gone"


def test_check_finds_a_damaged_object(library: Library, source: FileSource) -> None:
    file_id = stored(library, source)
    bucket = library.cloud.app.files.bucket.name
    key = library.cloud.app.files.store.object_of(library.project.id, SHA)
    library.cloud.client("s3").put_object(Bucket=bucket, Key=key, Body=b"damaged")

    failed = ran(library, "check", {"file_id": file_id})

    assert (failed["status"], failed["error"]["code"]) == ("failed", "signature_mismatch")


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("download", {"file_path": "/x"}),
        ("download", {"file_path": "/x", "source_url": "http://x/", "colour": 1}),
        ("associate", {"file_path": "/x"}),
        ("check", {}),
        ("scan", {}),
    ],
)
def test_payload_of_another_type_is_422(library: Library, kind: str, payload: dict[str, Any]) -> None:
    refused = library.cloud.http(
        "POST", "/v1/requests", json={"type": kind, "payload": payload}, key=library.project.key
    )

    assert refused.status == 422
    assert refused.json()["errors"]


def test_unknown_channel_is_422(library: Library, source: FileSource) -> None:
    body = {**BIZ, "file_path": "/x", "source_url": source.url("/a"), "channel": "fast_lane"}

    assert library.cloud.http("POST", "/v1/files", json=body, key=library.project.key).status == 422


def test_credentials_are_sent_to_the_source_and_never_shown(
    library: Library, source: FileSource, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source.files["/a.bin"] = Hosted(BODY, needs_cookie=SECRET)
    headers = {"headers": {"Cookie": SECRET}, "origins": [source.url("")]}
    kept = library.cloud.http("PUT", "/v1/credentials/shop", json=headers, key=library.project.key)
    assert kept.status == 204

    asked = library.ask(source.url("/a.bin"), credentials="shop")
    library.run()

    request = library.request(asked["request_id"])
    assert (request["status"], request["channel"]) == ("completed", "requires_cookie")
    items = library.cloud.client("dynamodb").scan(TableName=library.cloud.names.refs["Table"])["Items"]
    told = str(items) + str(request) + capsys.readouterr().out + caplog.text
    assert "5ecre7" not in told


def test_unknown_credential_fails_at_once(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(BODY)
    asked = library.ask(source.url("/a.bin"), credentials="nowhere")
    library.run()

    assert library.request(asked["request_id"])["error"]["code"] == "credential_missing"
    assert source.seen == []


def test_credential_of_another_project_is_not_found(library: Library, source: FileSource) -> None:
    source.files["/a.bin"] = Hosted(BODY, needs_cookie=SECRET)
    other = library.cloud.project()
    body = {"headers": {"Cookie": SECRET}, "origins": [source.url("")]}
    assert library.cloud.http("PUT", "/v1/credentials/shop", json=body, key=other.key).status == 204

    asked = library.ask(source.url("/a.bin"), credentials="shop")
    library.run()

    assert library.request(asked["request_id"])["error"]["code"] == "credential_missing"


def test_log_has_each_step_and_shows_stacks_to_operators_only(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a", refusals=[(503, None)])
    asked = library.submit("download", {"source_url": source.url("/a"), "file_path": "/a"})
    library.run()
    library.cloud.clock.advance(301)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()
    path = f"/v1/requests/{asked['request_id']}/log"

    # The test runs the step of the first attempt once more, which finds that it has ended.
    found = library.cloud.http("GET", path, key=library.project.key).json()["items"]
    lines = [line for line in found if line["event"] != "stopped"]
    assert [(line["attempt"], line["event"]) for line in lines] == [
        (1, "begun"),
        (1, "failed"),
        (2, "begun"),
        (2, "done"),
    ]
    assert lines[1]["code"] == "upstream_unavailable"
    assert not any(line.get("stack") for line in lines)

    header = {"X-Project-Id": library.project.id}
    shown = library.cloud.http("GET", path, key=library.cloud.admin_key, headers=header).json()["items"]
    assert "Traceback" in shown[1]["stack"]
    assert "upstream" in shown[1]["stack"].lower() or "503" in shown[1]["stack"]


def test_log_shows_why_a_function_died_to_operators_only(library: Library, source: FileSource) -> None:
    asked = library.submit("download", {"source_url": source.url("/a"), "file_path": "/a"})
    library.cloud.deliver("AdmissionQueue")
    request = library.cloud.app.queue.get(library.project.id, asked["request_id"])
    attempt = {"project_id": library.project.id, "request_id": request.request_id, "attempt": request.attempt}
    secret = "role/ingest may not PutItem"
    ingest = library.cloud.app.ingest

    with patch.object(steps, "_step", side_effect=RuntimeError(secret)), pytest.raises(RuntimeError):
        steps.work(ingest, attempt, 800.0)
    steps.work(ingest, attempt | {"failure": {"Error": "ClientError", "Cause": secret}}, 800.0)

    path, header = f"/v1/requests/{request.request_id}/log", {"X-Project-Id": library.project.id}
    answer = library.cloud.http("GET", path, key=library.project.key)
    assert [line["event"] for line in answer.json()["items"]] == ["died", "died"]
    assert secret not in str(answer.body)
    shown = library.cloud.http("GET", path, key=library.cloud.admin_key, headers=header).json()["items"]
    assert all(secret in line["stack"] for line in shown)


def test_log_of_another_projects_request_is_404(library: Library, source: FileSource) -> None:
    asked = library.submit("download", {"source_url": source.url("/a"), "file_path": "/a"})

    path = f"/v1/requests/{asked['request_id']}/log"
    assert library.cloud.http("GET", path, key=library.cloud.project().key).status == 404


def test_check_has_low_priority_unless_set(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    asked = library.ask(source.url("/a"))
    library.run()

    assert library.submit("check", {"file_id": asked["file_id"]})["priority"] == 8
    assert library.submit("check", {"file_id": asked["file_id"]}, priority=2)["priority"] == 2


def test_request_waits_until_its_not_before(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    later = library.cloud.clock() + timedelta(minutes=20)
    payload = {"source_url": source.url("/a"), "file_path": "/a"}
    asked = library.submit("download", payload, not_before=later.isoformat())
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()
    waiting = library.request(asked["request_id"])
    assert (waiting["status"], waiting["last_wait_reason"]) == ("pending", "backoff")

    library.cloud.clock.advance(1201)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()

    assert library.request(asked["request_id"])["status"] == "completed"


def test_dedupe_key_returns_the_same_request_until_it_ends(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    payload = {"source_url": source.url("/a"), "file_path": "/a"}
    first = library.submit("download", payload, dedupe_key="daily")
    assert library.submit("download", payload, dedupe_key="daily")["request_id"] == first["request_id"]
    assert library.submit("download", payload, dedupe_key="other")["request_id"] != first["request_id"]
    files = library.cloud.http("GET", "/v1/files", key=library.project.key).json()["items"]
    assert len(files) == 2
    library.run()

    again = library.submit("download", payload, dedupe_key="daily")
    assert (again["request_id"] != first["request_id"], again["status"]) == (True, "pending")


def test_bulk_acts_on_all_requests_that_match(library: Library, source: FileSource) -> None:
    payload = {"source_url": source.url("/gone"), "file_path": "/a"}
    asked = [library.submit("download", payload)["request_id"] for _ in range(5)]
    check = library.submit("scan", {}, subscription_id=_subscribed(library, source))["request_id"]

    def bulk(**body: Any) -> Any:
        return library.cloud.http("POST", "/v1/requests/bulk", json=body, key=library.project.key)

    assert bulk(action="prioritize", priority=1, type="download").json() == {
        "changed": 5,
        "skipped": 0,
        "next_cursor": None,
    }
    assert {library.request(one)["priority"] for one in asked} == {1}
    assert library.request(check)["priority"] == 5
    first = bulk(action="cancel", type="download", limit=2).json()
    assert (first["changed"], bool(first["next_cursor"])) == (2, True)
    assert bulk(action="cancel", type="download", limit=100, cursor=first["next_cursor"]).json()["changed"] == 3
    assert {library.request(one)["status"] for one in asked} == {"cancelled"}
    assert bulk(action="cancel").status == 422
    assert bulk(action="prioritize", type="scan").status == 422


def test_bulk_ends_the_back_off_of_downloads_after_a_cleared_pause(library: Library, source: FileSource) -> None:
    source.files |= {"/busy": Hosted(b"b", refusals=[(503, "7200")]), "/a": Hosted(b"a")}
    asked = [library.ask(source.url("/busy"))["request_id"]]
    library.run()
    asked.append(library.ask(source.url("/a"))["request_id"])
    library.run()
    assert {library.request(one)["last_wait_reason"] for one in asked} == {"backoff"}
    origin = source.url("/a").removesuffix("/a")
    path = f"/v1/host-pauses/{quote(origin.replace('//', ''), safe='')}"
    assert library.cloud.http("DELETE", path, key=library.project.key).status == 204

    body = {"action": "retry-now", "type": "download"}
    answer = library.cloud.http("POST", "/v1/requests/bulk", json=body, key=library.project.key)

    assert (answer.status, answer.json()["changed"]) == (200, 2)
    library.run()
    assert {library.request(one)["status"] for one in asked} == {"completed"}
    again = library.cloud.http("POST", "/v1/requests/bulk", json=body, key=library.project.key).json()
    assert (again["changed"], again["skipped"]) == (0, 2)


def test_bulk_starts_no_request_before_the_time_it_was_ordered_for(library: Library, source: FileSource) -> None:
    source.files |= {"/busy": Hosted(b"b", refusals=[(503, "7200")]), "/tonight": Hosted(b"t")}
    tonight = library.cloud.clock() + timedelta(hours=2)
    payload = {"source_url": source.url("/tonight"), "file_path": "/tonight"}
    ordered = library.submit("download", payload, not_before=tonight.isoformat())["request_id"]
    busy = library.ask(source.url("/busy"))["request_id"]
    library.run()
    assert {library.request(one)["last_wait_reason"] for one in (ordered, busy)} == {"backoff"}

    body = {"action": "retry-now", "status": "pending"}
    answer = library.cloud.http("POST", "/v1/requests/bulk", json=body, key=library.project.key).json()
    library.run()

    assert (answer["changed"], answer["skipped"]) == (1, 1)
    assert (library.request(ordered)["status"], library.request(ordered)["attempts"]) == ("pending", 0)
    assert library.request(busy)["attempts"] == 2


def _subscribed(library: Library, source: FileSource) -> str:
    body = {"name": "n", "source_url": source.url("/list")}
    made = library.cloud.http("POST", "/v1/subscriptions", json=body, key=library.project.key)
    return str(made.json()["subscription_id"])
