"""Subscriptions: lists of files, new and changed entries, schedules, deletion."""

from __future__ import annotations

import hashlib
import json
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from tests.support.http_servers import Handler
from tests.support.ingest.running import Library
from tests.support.ingest.sources import FileSource, Hosted
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.ingest.feeds import Entry
from tidegate.ingest.subscriptions import finish_delete


def manifest(source: FileSource, *entries: Any) -> None:
    source.files["/list.json"] = Hosted(json.dumps(entries).encode(), content_type="application/json")


def subscribe(library: Library, url: str, **more: Any) -> str:
    body = {"name": "daily", "source_url": url, **more}
    answer = library.cloud.http("POST", "/v1/subscriptions", json=body, key=library.project.key)
    assert answer.status == 201, answer.body
    return str(answer.json()["subscription_id"])


def scan(library: Library, subscription_id: str) -> dict[str, Any]:
    answer = library.cloud.http("POST", f"/v1/subscriptions/{subscription_id}/download", key=library.project.key)
    assert answer.status == 202, answer.body
    library.run()
    return library.request(answer.json()["request_id"])


def tasks(library: Library, subscription_id: str) -> list[dict[str, Any]]:
    path = f"/v1/subscriptions/{subscription_id}/tasks"
    return list(library.cloud.http("GET", path, key=library.project.key, query={"limit": 100}).json()["items"])


def paths(library: Library) -> set[str]:
    listed = library.cloud.http("GET", "/v1/files", key=library.project.key, query={"limit": 100}).json()["items"]
    return {item["file_path"] for item in listed if item["state"] == "ready"}


def test_scan_queues_only_new_and_changed_files_of_the_list(library: Library, source: FileSource) -> None:
    source.files |= {f"/{name}": Hosted(name.encode() * 100) for name in "abc"}
    a = {"url": "/a", "etag": "1"}
    manifest(source, a, {"url": "/b", "path": "/data/b.csv", "etag": "1"})
    subscription = subscribe(library, source.url("/list.json"))

    first = scan(library, subscription)
    assert first["result"] == {"listed": 2, "queued": 2, "refused": 0, "format": "json"}
    assert paths(library) == {"/a", "/data/b.csv"}

    assert scan(library, subscription)["result"]["unchanged"] is True, "304"

    manifest(source, a, {"url": "/b", "path": "/data/b.csv", "etag": "2"}, {"url": "/c", "etag": "1"})
    assert scan(library, subscription)["result"] == {"listed": 3, "queued": 2, "refused": 0, "format": "json"}
    done = [(task["type"], task["status"]) for task in tasks(library, subscription)]
    assert sorted(done) == [("download", "completed")] * 4 + [("scan", "completed")] * 3


def test_html_index_is_a_manifest(library: Library, source: FileSource) -> None:
    page = """<html><a href="../">up</a><a href="?C=M">sort</a><a href="sub/">sub</a>
        <a href="one.bin">one.bin</a> 16-Nov-2026 05:00  4
        <a href="two%20x.bin">two</a> 16-Nov-2026 05:00  4 <a href="http://other.example/z">z</a></html>"""
    source.files["/pub/"] = Hosted(page.encode(), content_type="text/html; charset=utf-8")
    source.files |= {"/pub/one.bin": Hosted(b"1111"), "/pub/two%20x.bin": Hosted(b"2222")}
    subscription = subscribe(library, source.url("/pub/"))

    assert scan(library, subscription)["result"]["queued"] == 2
    assert paths(library) == {"/pub/one.bin", "/pub/two x.bin"}

    source.files["/pub/"].body = page.replace("05:00  4\n", "06:00  5\n").encode()
    assert scan(library, subscription)["result"]["queued"] == 1, "only the one whose line changed"


def test_forbidden_url_does_not_stop_the_others(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    manifest(source, "ftp://somewhere/x", "/a")

    assert scan(library, subscribe(library, source.url("/list.json")))["result"] == {
        "listed": 2,
        "queued": 1,
        "refused": 1,
        "format": "json",
    }


def test_entry_without_url_does_not_fail_the_scan(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    listed = [{"url": source.url("/a")}, {"name": "b"}]
    source.files["/list.json"] = Hosted(json.dumps(listed).encode(), content_type="application/json")

    done = scan(library, subscribe(library, source.url("/list.json")))

    assert (done["status"], done["result"]["queued"], done["result"]["skipped"]) == ("completed", 1, 1)
    assert done["result"]["skipped_entries"][0].startswith("entry 1 of the list has no url")
    assert paths(library) == {"/a"}


LONG = "x" * 3000
SUM = hashlib.sha256(b"a").hexdigest()


@pytest.mark.parametrize(
    ("text", "content_type"),
    [
        (f"{SUM}  a\nthis line is broken\n", "text/plain"),
        (f'<a href="a">a</a> <a href="{LONG}">b</a>', "text/html"),
        (f"<urlset><url><loc>/a</loc></url><url><loc>/{LONG}</loc></url></urlset>", "text/xml"),
        ("<urlset><url><loc>/a</loc></url><url><loc>http://[broken</loc></url></urlset>", "text/xml"),
        (f'<rss><item><enclosure url="/a"/></item><item><enclosure url="/{LONG}"/></item></rss>', "text/xml"),
        (
            f'<feed><entry><link rel="enclosure" href="/a"/></entry><entry>'
            f'<link rel="enclosure" href="/{LONG}"/></entry>'
            "</feed>",
            "text/xml",
        ),
        (
            f"<ListBucketResult><Contents><Key>a</Key></Contents><Contents><Key>{LONG}</Key></Contents>"
            "</ListBucketResult>",
            "text/xml",
        ),
    ],
    ids=["sums", "html", "sitemap", "sitemap_url", "rss", "atom", "s3"],
)
def test_one_bad_entry_is_named_in_every_format(
    library: Library, source: FileSource, text: str, content_type: str
) -> None:
    source.files = {"/a": Hosted(b"a"), "/": Hosted(text.encode(), content_type=content_type)}

    done = scan(library, subscribe(library, source.url("/")))

    assert (done["status"], done["result"]["queued"], done["result"]["skipped"]) == ("completed", 1, 1)
    assert paths(library) == {"/a"}


def test_list_of_unknown_format_fails_without_retries(library: Library, source: FileSource) -> None:
    source.files["/list.json"] = Hosted(b"not json", content_type="application/json")

    failed = scan(library, subscribe(library, source.url("/list.json")))

    assert (failed["status"], failed["error"]["code"]) == ("failed", "source_broken")


def test_download_that_failed_is_queued_again_by_the_next_scan(library: Library, source: FileSource) -> None:
    manifest(source, "/late")
    subscription = subscribe(library, source.url("/list.json"))
    scan(library, subscription)
    assert paths(library) == set()

    source.files["/late"] = Hosted(b"here now")
    source.files["/list.json"].body += b" "
    scan(library, subscription)

    assert paths(library) == {"/late"}


def test_dead_link_is_queued_at_growing_intervals_or_at_once_by_hand(library: Library, source: FileSource) -> None:
    manifest(source, "/dead")
    subscription = subscribe(library, source.url("/list.json"), schedule="rate(1 hour)")
    queued: list[int] = []
    last: dict[str, Any] = {}
    for number in range(1, 12):
        library.cloud.clock.advance(3601)
        library.cloud.invoke("scan_subscriptions", {})
        library.run()
        last = next(task for task in tasks(library, subscription) if task["type"] == "scan")["result"]
        queued += [number] if last["queued"] else []
    assert queued == [1, 2, 4, 8]
    assert (last["put_off"], last["put_off_entries"]) == (1, [source.url("/dead")])

    assert scan(library, subscription)["result"]["queued"] == 1, "by hand"
    source.files["/dead"] = Hosted(b"here now")
    scan(library, subscription)
    assert paths(library) == {"/dead"}


def heads(source: FileSource) -> list[str]:
    """Returns the paths of the files that got HEAD requests since the last call."""
    asked = [path for path, _ in source.seen if path != "/list"]
    source.seen.clear()
    return asked


INDEX = '<a href="a.bin">a</a> <a href="b.bin">b</a>'
SITEMAP = "<urlset><url><loc>/a.bin</loc></url><url><loc>/b.bin</loc></url></urlset>"


@pytest.mark.parametrize(
    ("text", "content_type"),
    [(INDEX, "text/html"), (SITEMAP, "text/xml"), ('["a.bin", "b.bin"]', "application/json")],
    ids=["index", "sitemap", "urls"],
)
@pytest.mark.parametrize("validator", ["strong", "weak", "date", "none"])
def test_changed_file_of_an_undated_list_is_downloaded(
    library: Library, source: FileSource, text: str, content_type: str, validator: str
) -> None:
    source.files = {f"/{name}.bin": Hosted(name.encode() * 9, validator=validator) for name in "ab"}
    source.files["/list"] = Hosted(text.encode(), content_type=content_type)
    subscription = subscribe(library, source.url("/list"))
    assert scan(library, subscription)["result"]["queued"] == 2
    for _ in range(2):
        same = scan(library, subscription)["result"]
        assert (same["compared"], same["changed"], same["queued"]) == (2, 0, 0)

    source.files["/b.bin"].body = b"another content"
    changed = scan(library, subscription)["result"]
    again = scan(library, subscription)["result"]

    assert (changed["changed"], changed["queued"], again["changed"], again["queued"]) == (1, 1, 0, 0)
    found = library.cloud.http("GET", "/v1/files", key=library.project.key, query={"limit": 100}).json()["items"]
    assert sorted(item["size"] for item in found if item["file_path"] == "/b.bin") == [9, 15], "both versions"


def test_dated_list_is_compared_only_if_asked(library: Library, source: FileSource) -> None:
    source.files = {"/a.bin": Hosted(b"a"), "/list": Hosted(b'<a href="a.bin">a</a> 16-Nov-2026 05:00 1')}
    source.files["/list"].content_type = "text/html"
    auto, asked = subscribe(library, source.url("/list")), subscribe(library, source.url("/list"), compare="head")
    for subscription in (auto, asked):
        assert scan(library, subscription)["result"]["queued"] == 1
    heads(source)

    assert "compared" not in scan(library, auto)["result"]
    assert heads(source) == []
    source.files["/a.bin"].body = b"b"
    assert scan(library, asked)["result"]["changed"] == 1


@pytest.mark.parametrize(("status", "notes"), [(405, 0), (501, 0), (403, 0), (404, 1)])
def test_server_that_refuses_head_is_asked_for_a_byte(
    library: Library, source: FileSource, status: int, notes: int
) -> None:
    source.files = {"/a.bin": Hosted(b"a"), "/list": Hosted(b'["a.bin"]', content_type="application/json")}

    def refuse_head(handler: Handler) -> bool:
        if handler.command == "HEAD":
            handler.answer(status)
        return handler.command == "HEAD"

    source.hook = refuse_head
    subscription = subscribe(library, source.url("/list"))
    scan(library, subscription)
    source.files["/a.bin"].body = b"changed"

    done = scan(library, subscription)["result"]

    assert (done["changed"], done.get("not_comparable", 0)) == (1 - notes, notes)
    if notes:
        assert done["not_comparable_entries"] == [f"{source.url('/a.bin')}: The remote server answered 404"]


def test_comparison_is_bounded_and_continues_at_the_next_scan(
    library: Library, source: FileSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidegate.ingest.subscriptions.COMPARED_AT_ONCE", 2)
    names = [f"{number}.bin" for number in range(5)]
    source.files = {f"/{name}": Hosted(name.encode()) for name in names}
    source.files["/list"] = Hosted(json.dumps(names).encode(), content_type="application/json")
    subscription = subscribe(library, source.url("/list"))
    scan(library, subscription)
    heads(source)

    rounds = []
    for left in (3, 3, 3):
        done = scan(library, subscription)["result"]
        assert (done["compared"], done["compared_later"]) == (2, left)
        rounds.append(heads(source))

    assert sorted(rounds[0] + rounds[1] + rounds[2][:1]) == [f"/{name}" for name in names]


@pytest.mark.parametrize(("politeness", "apart"), [({}, 0.1), ({"delay_s": 3}, 3)], ids=["default", "as asked for"])
def test_comparison_keeps_its_pace(
    library: Library, source: FileSource, monkeypatch: pytest.MonkeyPatch, politeness: dict[str, float], apart: float
) -> None:
    names = [f"{number}.bin" for number in range(4)]
    source.files = {f"/{name}": Hosted(name.encode()) for name in names}
    source.files["/list"] = Hosted(json.dumps(names).encode(), content_type="application/json")
    subscription = subscribe(library, source.url("/list"), politeness=politeness)
    scan(library, subscription)
    heads(source)
    now, asked = [1000.0], list[int]()

    def sleep(seconds: float) -> None:
        now[0] += seconds
        asked.append(len(source.seen))

    monkeypatch.setattr(library.cloud.app.ingest, "monotonic", lambda: now[0])
    monkeypatch.setattr("tidegate.ingest.subscriptions.time", SimpleNamespace(sleep=sleep))
    assert scan(library, subscription)["result"]["compared"] == 4
    assert now[0] - 1000 == pytest.approx(3 * apart)
    assert asked == [2, 3, 4], "the list and one file, then one more each time"


def test_pause_of_a_host_ends_the_comparison(library: Library, source: FileSource) -> None:
    names = [f"{number}.bin" for number in range(5)]
    source.files = {f"/{name}": Hosted(name.encode()) for name in names}
    source.files["/list"] = Hosted(json.dumps(names).encode(), content_type="application/json")
    subscription = subscribe(library, source.url("/list"))
    scan(library, subscription)
    heads(source)
    for name in names:
        source.files[f"/{name}"].refusals = [(429, "120")]

    done = scan(library, subscription)["result"]

    assert (done["compared"], done["compared_later"], len(heads(source))) == (1, 4, 1)
    pauses = library.cloud.http("GET", "/v1/host-pauses", key=library.project.key).json()["items"]
    assert len(pauses) == 1


def test_schedule_fires_once_for_each_of_its_times(library: Library, source: FileSource) -> None:
    manifest(source)
    subscription = subscribe(library, source.url("/list.json"), schedule="rate(1 hour)")

    library.cloud.clock.advance(3500)
    assert library.cloud.invoke("scan_subscriptions", {}) == {"fired": 0}
    library.cloud.clock.advance(101)
    fired = [library.cloud.invoke("scan_subscriptions", {})["fired"] for _ in range(3)]
    library.run()

    assert fired == [1, 0, 0]
    assert [(task["type"], task["status"]) for task in tasks(library, subscription)] == [("scan", "completed")]


def test_full_queue_of_one_project_skips_only_its_scheduled_scan(library: Library, source: FileSource) -> None:
    manifest(source)
    table, other = library.cloud.app.table, library.cloud.project()
    subscription = subscribe(library, source.url("/list.json"), schedule="rate(1 hour)")
    body = {"name": "daily", "source_url": source.url("/list.json"), "schedule": "rate(1 hour)"}
    assert library.cloud.http("POST", "/v1/subscriptions", json=body, key=other.key).status == 201
    table.write(update(keys.project(library.project.id), {"quotas": {"queued": 0}}))

    library.cloud.clock.advance(3601)
    assert library.cloud.invoke("scan_subscriptions", {}) == {"fired": 1}
    assert tasks(library, subscription) == []

    table.write(update(keys.project(library.project.id), {"quotas": {}}))
    library.cloud.clock.advance(3601)
    library.cloud.invoke("scan_subscriptions", {})
    assert len(tasks(library, subscription)) == 1


def test_scan_that_still_runs_is_not_queued_a_second_time(library: Library, source: FileSource) -> None:
    subscription = subscribe(library, source.url("/list.json"), schedule="rate(1 minute)")
    for expected in (1, 0, 0):
        library.cloud.clock.advance(61)
        assert library.cloud.invoke("scan_subscriptions", {}) == {"fired": expected}
    assert len(tasks(library, subscription)) == 1


def test_deleting_a_subscription_cancels_its_queued_requests(library: Library, source: FileSource) -> None:
    manifest(source, "/a", "/b")
    subscription = subscribe(library, source.url("/list.json"))
    library.cloud.http("POST", "/v1/queue/capacity", json={"no_cookie": 1}, key=library.cloud.admin_key)
    for _ in range(3):
        library.cloud.http("POST", f"/v1/subscriptions/{subscription}/download", key=library.project.key)
    library.cloud.deliver("AdmissionQueue")
    queued = [task["request_id"] for task in tasks(library, subscription)]

    deleted = library.cloud.http("DELETE", f"/v1/subscriptions/{subscription}", key=library.project.key)

    assert deleted.status == 204
    assert {library.request(request)["status"] for request in queued} == {"cancelled"}
    assert library.cloud.http("GET", f"/v1/subscriptions/{subscription}", key=library.project.key).status == 404
    assert library.cloud.http("GET", "/v1/subscriptions", key=library.project.key).json()["items"] == []
    assert library.cloud.http("DELETE", f"/v1/subscriptions/{subscription}", key=library.project.key).status == 404


@pytest.mark.parametrize("schedule", ["sometimes", "rate(0 hours)", "cron(0 2 * * * *)", "cron(61 2 * * ? *)"])
def test_invalid_schedule_is_422(library: Library, source: FileSource, schedule: str) -> None:
    body = {"name": "x", "source_url": source.url("/l"), "schedule": schedule}

    refused = library.cloud.http("POST", "/v1/subscriptions", json=body, key=library.project.key)

    assert refused.status == 422
    assert "schedule" in str(refused.json()["errors"])


def test_another_projects_subscription_is_404(library: Library, source: FileSource) -> None:
    subscription = subscribe(library, source.url("/list.json"))
    other = library.cloud.project()

    for method, path in [("GET", ""), ("DELETE", ""), ("POST", "/download"), ("GET", "/tasks")]:
        assert library.cloud.http(method, f"/v1/subscriptions/{subscription}{path}", key=other.key).status == 404


def fire(library: Library, seconds: float) -> int:
    library.cloud.clock.advance(seconds)
    return int(library.cloud.invoke("scan_subscriptions", {})["fired"])


def test_one_shot_schedule_fires_once_and_does_not_stop_others(library: Library, source: FileSource) -> None:
    manifest(source)
    at = library.cloud.clock() + timedelta(minutes=3)
    once = subscribe(library, source.url("/list.json"), schedule=f"cron({at.minute} {at.hour} {at.day} 11 ? {at.year})")
    every = subscribe(library, source.url("/list.json"), schedule="rate(5 minutes)")

    assert fire(library, 240) == 1, "the one moment has come"
    library.run()
    assert fire(library, 120) == 1, "the other goes on"
    library.run()
    assert fire(library, 3600) == 1

    assert (len(tasks(library, once)), len(tasks(library, every))) == (1, 2)


def test_invalid_stored_schedule_does_not_stop_other_scans(library: Library, source: FileSource) -> None:
    manifest(source)
    broken = subscribe(library, source.url("/list.json"), schedule="rate(5 minutes)")
    subscribe(library, source.url("/list.json"), schedule="rate(6 minutes)")
    written = update(keys.subscription(library.project.id, broken), {"schedule": "every now and then"})
    library.cloud.app.table.write(written)

    assert fire(library, 600) >= 1
    assert fire(library, 3600) == 0 or tasks(library, broken) != []


def test_schedule_whose_moment_has_passed_is_422(library: Library, source: FileSource) -> None:
    body = {"name": "x", "source_url": source.url("/l"), "schedule": "cron(0 0 1 1 ? 2020)"}

    refused = library.cloud.http("POST", "/v1/subscriptions", json=body, key=library.project.key)

    assert refused.status == 422
    assert "never runs" in str(refused.json())


def test_failed_download_is_queued_again_despite_a_304(library: Library, source: FileSource) -> None:
    manifest(source, {"url": "/late", "etag": "1"})
    subscription = subscribe(library, source.url("/list.json"))
    scan(library, subscription)
    assert paths(library) == set()

    source.files["/late"] = Hosted(b"here now")
    scan(library, subscription)

    assert paths(library) == {"/late"}
    assert scan(library, subscription)["result"]["unchanged"] is True, "and then 304 counts again"


def test_retried_download_is_not_queued_again_by_a_scan(library: Library, source: FileSource) -> None:
    body = b"here now"
    signature = hashlib.sha256(body).hexdigest()
    manifest(source, {"url": "/late", "sha256": signature})
    subscription = subscribe(library, source.url("/list.json"))
    scan(library, subscription)
    failed = next(task for task in tasks(library, subscription) if task["type"] == "download")
    assert failed["status"] == "failed"

    path = f"/v1/requests/{failed['request_id']}/retry"
    assert library.cloud.http("POST", path, key=library.project.key).status == 200

    listed = library.cloud.http("GET", "/v1/files", key=library.project.key).json()["items"]
    assert [file["state"] for file in listed] == ["coming"]
    assert listed[0].get("error") is None
    content = library.cloud.app.files.contents.get(library.project.id, signature)
    assert content is not None, "POST /v1/downloads takes the signature again"
    assert content.state == "coming"

    source.files["/late"] = Hosted(body)
    scan(library, subscription)
    downloads = [task["status"] for task in tasks(library, subscription) if task["type"] == "download"]
    assert downloads == ["completed"]
    assert paths(library) == {"/late"}


def test_download_of_an_older_version_decides_nothing_about_its_entry(library: Library, source: FileSource) -> None:
    """Before, its end deleted the newer version's entry, whose failure then could not be stored: it ran for ever."""
    source.files["/a"] = Hosted(b"a", refusals=[(503, None)] * 2)
    manifest(source, {"url": "/a", "etag": "1"})
    subscription = subscribe(library, source.url("/list.json"))
    scan(library, subscription)
    old = next(task["request_id"] for task in tasks(library, subscription) if task["type"] == "download")
    manifest(source, {"url": "/a", "etag": "2"})
    scan(library, subscription)
    waiting = {task["request_id"] for task in tasks(library, subscription) if task["status"] == "pending"}
    (new,) = waiting - {old}
    assert library.cloud.http("POST", f"/v1/requests/{old}/cancel", key=library.project.key).status == 200
    assert scan(library, subscription)["result"].get("queued", 0) == 0
    del source.files["/a"]
    library.cloud.clock.advance(3600)
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()

    assert library.request(new)["error"]["code"] == "upstream_not_found"
    source.files["/a"] = Hosted(b"a")
    assert scan(library, subscription)["result"]["queued"] == 1


def test_downloads_of_a_scan_by_hand_have_its_priority(library: Library, source: FileSource) -> None:
    source.files["/a"] = Hosted(b"a")
    manifest(source, "/a")
    subscription = subscribe(library, source.url("/list.json"))
    scan(library, subscription)

    assert {task["priority"] for task in tasks(library, subscription)} == {3}


RSS = """<rss><channel><item><enclosure url="/ep/one.mp3" length="3"/></item>
<item><enclosure url="/ep/two.ogg" length="3"/></item></channel></rss>"""


def call(library: Library, method: str, path: str, **more: Any) -> Any:
    return library.cloud.http(method, f"/v1/subscriptions{path}", key=library.project.key, **more)


@pytest.mark.parametrize(("concurrency", "changed", "runs"), [(None, None, 1), (3, None, 3), (1, 3, 3)])
def test_subscription_limits_its_parallel_downloads(
    library: Library, source: FileSource, concurrency: int | None, changed: int | None, runs: int
) -> None:
    files = [f"/f{number}" for number in range(5)]
    source.files |= {path: Hosted(b"x") for path in files} | {"/list.json": Hosted(json.dumps(files).encode())}
    body = {"name": "many", "source_url": source.url("/list.json"), "concurrency": concurrency}
    made = library.cloud.http(
        "POST",
        "/v1/subscriptions",
        json={name: value for name, value in body.items() if value},
        key=library.project.key,
    ).json()
    where = f"/v1/subscriptions/{made['subscription_id']}"
    assert made["concurrency"] == (concurrency or 1)
    if changed:
        library.cloud.http("PATCH", where, json={"concurrency": changed}, key=library.project.key)
    library.cloud.http("POST", f"{where}/download", key=library.project.key)
    library.cloud.deliver("AdmissionQueue")
    ((_, scan),) = library._executions()
    library._run(scan, 800.0)
    while library.cloud.deliver("AdmissionQueue"):
        pass

    def states() -> list[str]:
        tasks = library.cloud.http("GET", f"{where}/tasks", key=library.project.key).json()["items"]
        return sorted(task["status"] for task in tasks if task["type"] == "download")

    assert states().count("running") == runs
    library.cloud.app.queue.admission_queue.trigger("no_cookie")
    library.run()
    assert states() == ["completed"] * 5


def test_preview_lists_files_and_queues_nothing(library: Library, source: FileSource) -> None:
    source.files["/feed"] = Hosted(RSS.encode(), content_type="application/rss+xml")
    body = {"source_url": source.url("/feed"), "include": ["*.mp3"], "file_path": "/pod/{name}"}

    answer = call(library, "POST", "/preview", json=body)

    assert answer.status == 200, answer.body
    shown = answer.json()
    assert (shown["format"], shown["listed"], shown["chosen"]) == ("rss", 2, 1)
    assert [item["file_path"] for item in shown["items"]] == ["/pod/one.mp3"]
    listed = library.cloud.http("GET", "/v1/queue", key=library.project.key).json()["items"]
    assert listed == []


def test_chosen_files_of_a_feed_are_ingested_under_their_names(library: Library, source: FileSource) -> None:
    source.files |= {"/feed": Hosted(RSS.encode(), content_type="text/xml"), "/ep/one.mp3": Hosted(b"one")}
    subscription = subscribe(library, source.url("/feed"), exclude=["*.ogg"], file_path="/pod/{name}")

    assert scan(library, subscription)["result"] == {"listed": 2, "queued": 1, "refused": 0, "format": "rss"}
    assert paths(library) == {"/pod/one.mp3"}


def test_files_are_verified_against_the_checksum_list(library: Library, source: FileSource) -> None:
    good, bad = hashlib.sha256(b"good").hexdigest(), hashlib.sha256(b"other").hexdigest()
    source.files["/SHA256SUMS"] = Hosted(f"{good}  good\n{bad}  bad\n".encode(), content_type="text/plain")
    source.files |= {"/good": Hosted(b"good"), "/bad": Hosted(b"bad")}

    subscription = subscribe(library, source.url("/SHA256SUMS"))
    scan(library, subscription)

    assert paths(library) == {"/good"}
    codes = [task["error"]["code"] for task in tasks(library, subscription) if task["status"] == "failed"]
    assert codes == ["signature_mismatch"]


def test_all_pages_of_a_listing_are_read(library: Library, source: FileSource) -> None:
    def page(key: str, more: str) -> Hosted:
        body = f"<ListBucketResult><Contents><Key>{key}</Key><Size>1</Size></Contents>{more}</ListBucketResult>"
        return Hosted(body.encode(), content_type="application/xml")

    token = "<IsTruncated>true</IsTruncated><NextContinuationToken>t2</NextContinuationToken>"
    source.files |= {"/?list-type=2": page("a", token), "/?continuation-token=t2&list-type=2": page("b", "")}
    source.files |= {"/a": Hosted(b"a"), "/b": Hosted(b"b")}

    scan(library, subscribe(library, source.url("/?list-type=2")))

    assert paths(library) == {"/a", "/b"}


def test_changed_subscription_reads_its_source_again(library: Library, source: FileSource) -> None:
    source.files |= {"/a": Hosted(b"a"), "/b": Hosted(b"b")}
    manifest(source, "/a", "/b")
    subscription = subscribe(library, source.url("/list.json"), exclude=["b"])
    scan(library, subscription)
    assert paths(library) == {"/a"}

    changed = call(
        library, "PATCH", f"/{subscription}", json={"exclude": [], "name": "all", "schedule": "rate(1 hour)"}
    )
    assert (changed.status, changed.json()["name"], changed.json()["schedule"]) == (200, "all", "rate(1 hour)")
    scan(library, subscription)

    assert paths(library) == {"/a", "/b"}
    assert fire(library, 3700) == 1
    library.run()
    assert call(library, "PATCH", f"/{subscription}", json={"schedule": None}).json().get("schedule") is None
    assert fire(library, 7200) == 0


def test_empty_change_has_no_effect(library: Library, source: FileSource) -> None:
    manifest(source)
    subscription = subscribe(library, source.url("/list"))
    before = call(library, "GET", f"/{subscription}").json()

    same = call(library, "PATCH", f"/{subscription}", json={})

    assert (same.status, same.json()) == (200, before)


def test_change_during_a_scheduled_run_does_not_make_it_due_again(library: Library, source: FileSource) -> None:
    manifest(source)
    subscription = subscribe(library, source.url("/list.json"), schedule="rate(1 hour)")
    store, read = library.cloud.app.ingest.store, library.cloud.app.ingest.store.get
    runs: list[int] = []

    def fires_after_it_was_read(*key: str) -> Any:
        found = read(*key)
        store.get = read  # type: ignore[method-assign]
        runs.append(fire(library, 0))
        library.run()
        return found

    library.cloud.clock.advance(3700)
    store.get = fires_after_it_was_read  # type: ignore[method-assign,assignment]
    assert call(library, "PATCH", f"/{subscription}", json={"name": "renamed"}).status == 200

    assert runs == [1]
    assert fire(library, 60) == 0, "it has run at this moment"
    assert fire(library, 3600) == 1
    library.run()
    assert len(tasks(library, subscription)) == 2


def test_scan_queues_nothing_for_a_subscription_deleted_meanwhile(library: Library, source: FileSource) -> None:
    manifest(source, "/a")
    subscription_id = subscribe(library, source.url("/list.json"))
    ingest = library.cloud.app.ingest
    subscription = ingest.store.get(library.project.id, subscription_id)
    assert subscription is not None
    call(library, "DELETE", f"/{subscription_id}")

    writes = ingest.store.seen_writes(subscription, Entry("http://x/a", "/a", "a", "1"))

    assert not library.cloud.app.table.try_write(*writes)


@pytest.mark.parametrize("changes", [{"name": None}, {"file_path": "/x"}, {"format": "gopher"}, {"colour": 1}])
def test_invalid_change_is_422(library: Library, source: FileSource, changes: dict[str, Any]) -> None:
    subscription = subscribe(library, source.url("/list.json"))

    assert call(library, "PATCH", f"/{subscription}", json=changes).status == 422


def test_null_is_refused_for_every_field_that_is_needed(library: Library, source: FileSource) -> None:
    subscription = subscribe(library, source.url("/list.json"))
    needed = "name source_url timezone biz_id app_id format include exclude compare recursive on_delete concurrency"

    for name in needed.split():
        refused = call(library, "PATCH", f"/{subscription}", json={name: None})
        assert (refused.status, f"{name} cannot be null" in refused.body.decode()) == (422, True), name
    removed = {"file_path": None, "credentials": None, "politeness": None, "priority": None, "schedule": None}
    assert call(library, "PATCH", f"/{subscription}", json=removed).status == 200


def test_paused_subscription_is_not_scanned_until_resumed(library: Library, source: FileSource) -> None:
    manifest(source)
    subscription = subscribe(library, source.url("/list.json"), schedule="rate(5 minutes)")

    assert call(library, "POST", f"/{subscription}/pause").json()["status"] == "paused"
    assert fire(library, 3600) == 0
    assert call(library, "GET", "").json()["items"][0]["status"] == "paused"
    assert call(library, "POST", f"/{subscription}/resume").json()["status"] == "active"
    assert fire(library, 301) == 1
    actions = [
        line["action"] for line in library.cloud.http("GET", "/v1/audit", key=library.project.key).json()["items"]
    ]
    assert {"subscription.pause", "subscription.resume"} <= set(actions)


def subscriptions_used(library: Library) -> int:
    path = f"/v1/projects/{library.project.id}"
    return int(library.cloud.http("GET", path, key=library.cloud.admin_key).json()["usage"]["subscriptions"])


def limit_subscriptions(library: Library, limit: int) -> None:
    path, quotas = f"/v1/projects/{library.project.id}", {"quotas": {"subscriptions": limit}}
    assert library.cloud.http("PATCH", path, json=quotas, key=library.cloud.admin_key).status == 200


def test_subscription_over_the_quota_is_refused(library: Library, source: FileSource) -> None:
    limit_subscriptions(library, 2)
    first, _ = (subscribe(library, source.url("/list.json")) for _ in range(2))

    refused = call(library, "POST", "", json={"name": "third", "source_url": source.url("/list.json")})
    assert (refused.status, refused.json()["code"]) == (429, "quota_exceeded")
    assert "subscriptions is 2" in refused.json()["detail"]
    assert subscriptions_used(library) == 2

    for expected in (204, 404):
        assert call(library, "DELETE", f"/{first}").status == expected
        assert subscriptions_used(library) == 1
    subscribe(library, source.url("/list.json"))


def test_subscription_that_two_functions_delete_is_counted_once(library: Library, source: FileSource) -> None:
    first, _ = (subscribe(library, source.url("/list.json")) for _ in range(2))
    for _ in range(2):
        finish_delete(library.cloud.app.ingest, library.project.id, first)
    assert subscriptions_used(library) == 1


def test_subscription_from_before_the_quota_is_not_counted_when_deleted(library: Library, source: FileSource) -> None:
    old, _ = (subscribe(library, source.url("/list.json")) for _ in range(2))
    table, project_id = library.cloud.app.table, library.project.id
    table.write(update(keys.subscription(project_id, old), removes=("counted",)))
    table.write(update(keys.usage(project_id), adds={"subscriptions": -1}))

    assert call(library, "DELETE", f"/{old}").status == 204
    assert subscriptions_used(library) == 1


def test_empty_etag_of_a_source_is_none(library: Library, source: FileSource) -> None:
    """DynamoDB refuses to set and to remove the ETag at once."""
    source.files["/a"] = Hosted(b"a")
    manifest(source, "/a")
    subscription = subscribe(library, source.url("/list.json"))
    source.files["/list.json"].validator, send = "none", source._send

    def with_empty_etag(handler: Any, *rest: Any) -> None:
        end = handler.end_headers
        handler.end_headers = lambda: (handler.send_header("ETag", ""), end())[1]
        send(handler, *rest)

    source._send = with_empty_etag  # type: ignore[method-assign, assignment]
    assert scan(library, subscription)["result"]["listed"] == 1
    assert scan(library, subscription)["status"] == "completed"


# --- mirrors


def index(source: FileSource, path: str, *names: str, note: str = "16-Nov-2026 05:00 1") -> None:
    """Hosts a directory index; a name with a slash at its end is a folder."""
    lines = "".join(f'<a href="{name}">{name}</a> {"" if name.endswith("/") else note}\n' for name in names)
    source.files[path] = Hosted(lines.encode(), content_type="text/html")
    source.files |= {path + name: Hosted(name.encode()) for name in names if not name.endswith("/")}


def mirror(library: Library, source: FileSource, **more: Any) -> str:
    return subscribe(library, source.url("/pub/"), recursive=True, on_delete="trash", **more)


def listed_urls(library: Library, source: FileSource, subscription: str) -> dict[str, Any]:
    body = {"source_url": source.url("/pub/"), "recursive": True, "subscription_id": subscription}
    return dict(library.cloud.http("POST", "/v1/subscriptions/preview", json=body, key=library.project.key).json())


def test_recursive_subscription_brings_all_folders(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "x/", "../", "/other/", "http://elsewhere.example/y/")
    index(source, "/pub/x/", "b", "y/", "/pub/")
    index(source, "/pub/x/y/", "c")
    index(source, "/other/", "d")

    done = scan(library, mirror(library, source))["result"]

    assert (done["listed"], done["queued"]) == (3, 3)
    assert paths(library) == {"/pub/a", "/pub/x/b", "/pub/x/y/c"}
    assert not [path for path, _ in source.seen if path.startswith("/other")]


def test_link_to_a_folder_above_is_no_endless_tree(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "x/")
    index(source, "/pub/x/", "b", "up/")
    page = source.files["/pub/"]

    def follow_link(handler: Handler) -> bool:
        if not handler.path.endswith("/up/"):
            return False
        handler.answer(200, page.body, Content_Type="text/html")
        return True

    source.hook = follow_link
    done = scan(library, mirror(library, source))["result"]

    assert (done["listed"], done["skipped"]) == (2, 1)
    assert "it is a loop" in done["skipped_entries"][0]


def test_folders_of_one_name_in_each_other_are_no_loop(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "data/")
    index(source, "/pub/data/", "data/")
    index(source, "/pub/data/data/", "a")

    assert scan(library, mirror(library, source))["result"]["queued"] == 1


@pytest.mark.parametrize(("name", "limit"), [("MAX_FOLDERS", "folders"), ("MAX_DEPTH", "deep")])
def test_tree_beyond_a_limit_is_refused_or_cut(
    library: Library, source: FileSource, monkeypatch: pytest.MonkeyPatch, name: str, limit: str
) -> None:
    monkeypatch.setattr(f"tidegate.ingest.sources.{name}", 2)
    index(source, "/pub/", "a", "1/")
    for depth in range(1, 4):
        folder = "/pub/" + "".join(f"{number}/" for number in range(1, depth + 1))
        index(source, folder, f"f{depth}", f"{depth + 1}/")

    ended = scan(library, mirror(library, source))

    said = ended["error"]["detail"] if limit == "folders" else ended["result"]["skipped_entries"][0]
    assert limit in said


def test_deleted_file_goes_after_seven_days_unless_it_returns(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b", "c")
    subscription = mirror(library, source)
    scan(library, subscription)
    index(source, "/pub/", "a")
    assert listed_urls(library, source, subscription)["gone"] == 2
    first = scan(library, subscription)["result"]
    assert (first["trashed"], first["in_trash"]) == (2, 2)

    library.cloud.clock.advance(6 * 86400)
    index(source, "/pub/", "a", "c")
    assert scan(library, subscription)["result"]["restored"] == 1
    assert paths(library) == {"/pub/a", "/pub/b", "/pub/c"}
    library.cloud.clock.advance(2 * 86400)
    assert scan(library, subscription)["result"]["deleted"] == 1

    assert paths(library) == {"/pub/a", "/pub/c"}
    again = scan(library, subscription)["result"]
    assert (again["queued"], again.get("in_trash")) == (0, None)


def test_deleted_file_goes_also_if_its_download_was_retried_or_cancelled(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b", "c")
    late = source.files.pop("/pub/b")
    subscription = mirror(library, source)
    scan(library, subscription)
    failed = next(task for task in tasks(library, subscription) if task["status"] == "failed")
    source.files["/pub/b"] = late
    retried = library.cloud.http("POST", f"/v1/requests/{failed['request_id']}/retry", key=library.project.key)
    assert retried.status == 200
    index(source, "/pub/", "a", "b", "c", note="17-Nov-2026 05:00 1")
    source.files["/pub/c"].refusals = [(503, None)]
    scan(library, subscription)
    waits = next(task for task in tasks(library, subscription) if task["status"] == "pending")
    path = f"/v1/requests/{waits['request_id']}/cancel"
    assert library.cloud.http("POST", path, key=library.project.key).status == 200
    assert paths(library) == {"/pub/a", "/pub/b", "/pub/c"}
    index(source, "/pub/", "a")
    assert scan(library, subscription)["result"]["trashed"] == 2
    library.cloud.clock.advance(8 * 86400)

    assert scan(library, subscription)["result"]["deleted"] == 2
    assert paths(library) == {"/pub/a"}


def test_deleted_file_goes_from_where_it_was_brought(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b")
    subscription = mirror(library, source, biz_id=1)
    scan(library, subscription)
    path = f"/v1/subscriptions/{subscription}"
    moved = library.cloud.http("PATCH", path, json={"biz_id": 2, "app_id": 3}, key=library.project.key)
    assert moved.status == 200
    index(source, "/pub/", "a")
    scan(library, subscription)
    library.cloud.clock.advance(8 * 86400)

    assert scan(library, subscription)["result"]["deleted"] == 1
    assert paths(library) == {"/pub/a"}


def test_scan_that_died_after_a_deletion_is_repeated(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b")
    subscription = mirror(library, source)
    scan(library, subscription)
    index(source, "/pub/", "a")
    scan(library, subscription)
    library.cloud.clock.advance(8 * 86400)
    store = library.cloud.app.ingest.store
    with patch.object(store, "drop_gone", side_effect=RuntimeError("killed")), pytest.raises(RuntimeError):
        scan(library, subscription)
    assert paths(library) == {"/pub/a"}

    library.cloud.clock.advance(400)
    again = scan(library, subscription)["result"]

    assert (again["deleted"], again.get("in_trash")) == (1, None)
    assert list(store.seen(library.project.id, subscription)) == [source.url("/pub/a")]


def test_many_deletions_wait_for_confirmation(library: Library, source: FileSource) -> None:
    names = [f"f{number}" for number in range(15)]
    index(source, "/pub/", *names)
    subscription = mirror(library, source, concurrency=16)
    scan(library, subscription)
    index(source, "/pub/", *names[:3])

    held = scan(library, subscription)["result"]
    assert (held["trash_held_back"], held.get("trashed")) == (12, None)
    assert "confirm_trash=12" in held["trash_reason"]
    path = f"/v1/subscriptions/{subscription}/download"
    for number, trashed in ((11, None), (12, 12)):
        asked = library.cloud.http("POST", path, query={"confirm_trash": number}, key=library.project.key)
        assert asked.status == 202, asked.body
        library.run()
        assert library.request(asked.json()["request_id"])["result"].get("trashed") == trashed


@pytest.mark.parametrize("fault", ["empty", "folder", "error"])
def test_list_that_may_be_wrong_deletes_nothing(library: Library, source: FileSource, fault: str) -> None:
    index(source, "/pub/", "a", "x/")
    index(source, "/pub/x/", "b")
    subscription = mirror(library, source)
    scan(library, subscription)
    library.cloud.clock.advance(1)
    if fault == "empty":
        index(source, "/pub/")
    elif fault == "folder":
        del source.files["/pub/x/"]
    else:
        source.files["/pub/"].refusals = [(404, None)]

    ended = scan(library, subscription)

    assert "trashed" not in (ended["result"] or {})
    entries = library.cloud.app.ingest.store.seen(library.project.id, subscription).values()
    assert [entry.gone_at for entry in entries] == [0, 0]
    assert paths(library) == {"/pub/a", "/pub/x/b"}


def test_deletion_spares_files_that_others_brought(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b")
    subscription = mirror(library, source)
    scan(library, subscription)
    other = subscribe(library, source.url("/pub/"))
    scan(library, other)
    by_hand = library.ask(source.url("/pub/b"), biz_id=0, app_id=0, file_path="/pub/b")
    library.run()
    index(source, "/pub/", "a")
    assert scan(library, subscription)["result"]["trashed"] == 1
    library.cloud.clock.advance(8 * 86400)

    assert scan(library, subscription)["result"]["deleted"] == 1

    listed = library.cloud.http("GET", "/v1/files", key=library.project.key, query={"limit": 100}).json()["items"]
    left = {item["request_id"] for item in listed if item["file_path"] == "/pub/b"}
    brought = {task["request_id"] for task in tasks(library, other)}
    assert len(left) == 2
    assert by_hand["request_id"] in left
    assert left & brought


def test_entry_that_cannot_be_read_holds_deletions_back(library: Library, source: FileSource) -> None:
    source.files |= {"/a": Hosted(b"a"), "/b": Hosted(b"b")}
    manifest(source, {"url": "/a"}, {"url": "/b"})
    subscription = subscribe(library, source.url("/list.json"), on_delete="trash")
    scan(library, subscription)
    manifest(source, {"url": "/a"}, {"path": "/b"})

    held = scan(library, subscription)["result"]

    assert (held["skipped"], held["trash_held_back"], held.get("trashed")) == (1, 1, None)
    assert "1 entry of the list cannot be read" in held["trash_reason"]
    path = f"/v1/subscriptions/{subscription}/download"
    asked = library.cloud.http("POST", path, query={"confirm_trash": 1}, key=library.project.key)
    library.run()
    assert library.request(asked.json()["request_id"])["result"]["trashed"] == 1


def test_folders_that_are_no_longer_read_are_not_gone(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b", "x/")
    index(source, "/pub/x/", "c")
    subscription = mirror(library, source)
    scan(library, subscription)
    path = f"/v1/subscriptions/{subscription}"
    assert library.cloud.http("PATCH", path, json={"recursive": False}, key=library.project.key).status == 200
    index(source, "/pub/", "a", "x/")

    assert scan(library, subscription)["result"]["trashed"] == 1
    seen = library.cloud.app.ingest.store.seen(library.project.id, subscription)
    assert [url for url, entry in seen.items() if entry.gone_at] == [source.url("/pub/b")]


def test_change_to_keep_empties_the_trash(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b")
    subscription = mirror(library, source)
    scan(library, subscription)
    index(source, "/pub/", "a")
    scan(library, subscription)
    changed = {"on_delete": "keep"}
    path = f"/v1/subscriptions/{subscription}"
    assert library.cloud.http("PATCH", path, json=changed, key=library.project.key).status == 200
    library.cloud.clock.advance(8 * 86400)

    assert scan(library, subscription)["result"]["restored"] == 1
    assert paths(library) == {"/pub/a", "/pub/b"}


def test_plan_names_new_and_changed_files(library: Library, source: FileSource) -> None:
    index(source, "/pub/", "a", "b")
    subscription = mirror(library, source)
    scan(library, subscription)
    index(source, "/pub/", "a", "c", note="17-Nov-2026 05:00 1")

    found = listed_urls(library, source, subscription)

    assert (found["new"], found["changed"], found["gone"]) == (1, 1, 1)
    assert [(item["file_name"], item["plan"]) for item in found["items"]] == [("a", "changed"), ("c", "new")]
    assert found["gone_entries"] == [source.url("/pub/b")]
