"""Batches whose items are objects of a bucket: the keys of a prefix, or an S3 inventory."""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import quote_plus

import pytest

from tests.support.batches.schedules import batches, fire, to_next_run
from tests.support.batches.world import BatchWorld, batch_world
from tests.support.exports.killing import Killed, killed_at
from tests.support.moto.cloud import MotoCloud
from tidegate.batches import listing
from tidegate.batches import slice as slices
from tidegate.batches.items import check_rows, listing_of

BUCKET = "acme-data-1"
ODD_KEYS = ["in/a+b c.txt", "in/100%25.txt", "in/单据 1.csv", "in/line\nbreak\tx", 'in/"quoted",\\.txt', "in/é&<>?#"]
SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag"
MANIFEST = f"s3://{BUCKET}/inv/data/2026-11-17T01-00Z/manifest.json"


@pytest.fixture
def world() -> Iterator[BatchWorld]:
    with MotoCloud() as cloud, batch_world(cloud) as made:
        prepare(made)
        yield made


def prepare(world: BatchWorld) -> None:
    world.cloud.app.exports.allowed_sources.bucket = "acme-data-*"
    world.cloud.client("s3").create_bucket(Bucket=BUCKET)
    grant(world, f"s3://{BUCKET}/in/*", f"s3://{BUCKET}/inv/*")
    world.business.answers["/process"] = lambda said: (200, {"results": [{"result": "ok"} for _ in said["items"]]})


def grant(world: BatchWorld, *patterns: str) -> None:
    path = f"/v1/projects/{world.project.id}"
    answer = world.cloud.http("PATCH", path, json={"read_from": list(patterns)}, key=world.cloud.admin_key)
    assert answer.status == 200, answer.body


def put(world: BatchWorld, *keys: str, body: bytes = b"x") -> None:
    for key in keys:
        world.cloud.client("s3").put_object(Bucket=BUCKET, Key=key, Body=body)


def post(world: BatchWorld, source: dict[str, Any], **more: Any) -> Any:
    body = {"biz_id": world.register(), "name": "objects", "rate": 5000, "items_per_call": 100, "source": source}
    return world.http("POST", "/v1/batches", body | more)


def started(world: BatchWorld, source: dict[str, Any], **more: Any) -> tuple[str, str]:
    made = post(world, source, **more)
    assert made.status == 201, made.body
    request = world.act(made.json()["batch_id"], "start")
    world.admit()
    return request["batch_id"], request["request_id"]


def heartbeats(world: BatchWorld, request_id: str) -> dict[str, int]:
    """When each worker whose heartbeats are waited for sent the last one."""
    return dict(world.cloud.app.queue.get(world.project.id, request_id).beats)


def run(world: BatchWorld, batch_id: str, request_id: str, event: dict[str, Any] | None = None) -> dict[str, Any]:
    """Runs the steps of the machine until the first runner has ended the batch."""
    event = event or {}
    while (answer := world.step(request_id, **event))["outcome"] in ("continue", "split"):
        event = {name: answer[name] for name in ("runner", "round", "generation") if name in answer}
    assert answer["outcome"] == "ended", answer
    return world.shown(batch_id)


def list_parts(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Each function lists this many parts at most, as if its time were up then."""

    list_items = listing.list_items

    def limited(b: Any, batch: Any, source: Any, folder: str, may_continue: Callable[[], bool]) -> bool:
        left = iter([True] * most)
        return list_items(b, batch, source, folder, lambda: may_continue() and next(left, False))

    monkeypatch.setattr(slices, "list_items", limited)


def sent(world: BatchWorld) -> list[dict[str, Any]]:
    items = [item for call in world.business.calls() for item in call["items"]]
    return [item["job_data"] for item in sorted(items, key=lambda item: item["index"])]


def inventory(world: BatchWorld, *files: list[str], **changes: Any) -> dict[str, Any]:
    """Stores an inventory of these files of CSV lines. Returns its source."""
    listed = []
    for number, lines in enumerate(files):
        data, key = gzip.compress("\n".join(lines).encode()), f"inv/data/{number}.csv.gz"
        put(world, key, body=data)
        listed.append({"key": key, "size": len(data), "MD5checksum": hashlib.md5(data).hexdigest()})
    manifest = {
        "sourceBucket": "acme-photos",
        "destinationBucket": f"arn:aws:s3:::{BUCKET}",
        "version": "2016-11-30",
        "creationTimestamp": "1794877200000",
        "fileFormat": "CSV",
        "fileSchema": SCHEMA,
        "files": listed,
    }
    put(world, MANIFEST.partition(f"{BUCKET}/")[2], body=json.dumps(manifest | changes).encode())
    return {"s3_inventory": MANIFEST}


def inventory_line(key: str, *, marker: str = "false", size: str = "7") -> str:
    values = ["acme-photos", quote_plus(key), "v1", "true", marker, size, "2026-11-01T00:00:00.000Z", "abc"]
    return ",".join(f'"{value}"' for value in values)


def test_objects_of_a_prefix_are_items_in_s3_order(world: BatchWorld) -> None:
    put(world, *ODD_KEYS, "inside", "other/x")
    shown = run(world, *started(world, {"s3_prefix": f"s3://{BUCKET}/in/"}))
    assert (shown["status"], shown["total"], shown["progress"]["succeeded"]) == ("finished", 6, 6)
    assert shown["source"]["s3_prefix"] == f"s3://{BUCKET}/in/"
    items = sent(world)
    assert [item["key"] for item in items] == sorted(ODD_KEYS, key=str.encode)
    listed = world.cloud.client("s3").head_object(Bucket=BUCKET, Key=items[0]["key"])
    assert items[0] | {"last_modified": ""} == {
        "bucket": BUCKET,
        "key": items[0]["key"],
        "size": 1,
        "etag": listed["ETag"].strip('"'),
        "last_modified": "",
    }
    assert items[0]["last_modified"].startswith(listed["LastModified"].strftime("%Y-%m-%dT%H:%M:%S"))


def test_long_listing_goes_on_in_the_next_functions(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 keys: three pages, three parts, a function for each."""
    monkeypatch.setattr(listing, "PART_BYTES", 1000)
    list_parts(monkeypatch, 1)
    put(world, *(f"in/{number:05d}" for number in range(3000)))
    batch_id, request_id = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"})
    for step in range(3):
        answer = world.step(request_id, round=step)
        assert (answer["outcome"], answer["round"], "runner" in answer) == ("continue", step + 1, False)
        assert heartbeats(world, request_id) == {}, "the next function may begin late"
    tried = world.http("POST", f"/v1/batches/{batch_id}/dry-run", {"items": 1})
    assert (tried.status, "not listed yet" in tried.json()["detail"]) == (409, True)
    shown = run(world, batch_id, request_id)
    assert (shown["status"], shown["total"]) == ("finished", 3000)
    assert [item["key"] for item in sent(world)] == [f"in/{number:05d}" for number in range(3000)]
    batch = world.cloud.app.batches.store.get(world.project.id, batch_id)
    assert batch
    parts = [key for key in world.cloud.app.batches.objects.keys(listing_of(batch)) if key.endswith(".ndjson")]
    assert len(parts) == 3
    tried = world.http("POST", f"/v1/batches/{batch_id}/dry-run", {"items": 2})
    assert [item["job_data"]["key"] for item in tried.json()["items"]] == ["in/00000", "in/00001"]


def test_calls_after_a_long_listing_end_within_the_functions_time(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function runs 900 s: after 595 s of listing there is no time for an answer that may take 600 s."""
    put(world, "in/1")
    source = {"s3_prefix": f"s3://{BUCKET}/in/"}
    batch_id, request_id = started(world, source, item_timeout=600)
    passed, really, check = [0.0], time.monotonic, check_rows

    def checks_slowly(*args: Any) -> int:
        passed[0] += 595
        return check(*args)

    with monkeypatch.context() as slow:
        slow.setattr(time, "monotonic", lambda: really() + passed[0])
        slow.setattr(slices, "check_rows", checks_slowly)
        answer = world.step(request_id)
    assert (answer["outcome"], sent(world)) == ("continue", [])
    assert run(world, batch_id, request_id)["status"] == "finished"
    assert len(sent(world)) == 1


def test_listing_continues_in_a_new_execution(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """After `batch_rounds` steps the successor is not taken for a runner that has begun."""
    list_parts(monkeypatch, 0)
    put(world, "in/a")
    batch_id, request_id = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"})
    rounds = world.cloud.app.settings.batch_rounds
    answer = world.step(request_id, round=rounds - 1)
    assert answer["outcome"] == "renew"
    assert "runner" not in answer["successor"]["input"]
    list_parts(monkeypatch, 9)
    more = {name: answer["successor"]["input"][name] for name in ("round", "generation")}
    assert run(world, batch_id, request_id, more)["total"] == 1


@pytest.mark.parametrize("kind", ["s3_prefix", "s3_inventory"])
def test_function_killed_at_any_call_of_the_listing_loses_no_key(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(listing, "PART_BYTES", 100)
    keys = [f"in/{number:05d}" for number in range(1300)]
    b, call = world.cloud.app.batches, 0
    if kind == "s3_prefix":
        put(world, *keys)
        source = {"s3_prefix": f"s3://{BUCKET}/in/"}
    else:
        lines = [inventory_line(key) for key in keys]
        source = inventory(world, lines[:700], lines[700:])
    batch_id, _ = started(world, source)
    batch = b.store.get(world.project.id, batch_id)
    assert batch
    assert batch.source
    reached = True
    while reached:
        call += 1
        folder = f"{listing_of(batch)}{call}/"
        with killed_at(call) as was_reached:
            with suppress(Killed):
                listing.list_items(b, batch, batch.source, folder, lambda: True)
            reached = was_reached()
        assert listing.list_items(b, batch, batch.source, folder, lambda: True)
        rows = b.rows.of_listing(folder)
        assert rows.ensure_indexed(10**9) == (1300, True)
        assert [rows.row(number)["key"] for number in (0, 699, 700, 999, 1000, 1299)] == [
            keys[number] for number in (0, 699, 700, 999, 1000, 1299)
        ]
    assert call > 8


def test_two_functions_that_list_a_changing_bucket_agree(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The late one lists other keys after the same one: what is stored first counts, for both."""
    monkeypatch.setattr(listing, "PART_BYTES", 100)
    put(world, *(f"in/{number:05d}" for number in range(0, 2400, 2)))
    batch_id, _ = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"})
    b = world.cloud.app.batches
    batch = b.store.get(world.project.id, batch_id)
    assert batch
    assert batch.source
    source, folder, list_part = batch.source, listing_of(batch), listing._next_part

    def overtaken(*args: Any) -> bytes:
        monkeypatch.setattr(listing, "_next_part", list_part)
        data = list_part(*args)
        # Another function begins later, sees more keys, and is done before.
        put(world, "in/00001", "in/00003")
        assert listing.list_items(b, batch, source, folder, lambda: True)
        return data

    monkeypatch.setattr(listing, "_next_part", overtaken)
    assert listing.list_items(b, batch, source, folder, lambda: True)
    rows = b.rows.of_listing(folder)
    known, complete = rows.ensure_indexed(10**9)
    keys = [rows.row(number)["key"] for number in range(known)]
    assert (complete, len(keys), len(set(keys)), keys == sorted(keys)) == (True, 1202, 1202, True)


def test_prefix_without_objects_finishes_with_no_items(world: BatchWorld) -> None:
    shown = run(world, *started(world, {"s3_prefix": f"s3://{BUCKET}/in/none/"}))
    assert (shown["status"], shown["total"], world.business.calls()) == ("finished", 0, [])


def test_batch_that_is_stopped_while_listing_ends_stopped(world: BatchWorld) -> None:
    put(world, "in/a", "in/b")
    batch_id, request_id = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"}, runners=2)
    world.act(batch_id, "stop")
    assert world.step(request_id)["outcome"] == "ended"
    shown = world.shown(batch_id)
    assert (shown["status"], shown["stop_reason"]) == ("stopped", "stopped on request")
    again = world.act(batch_id, "start")
    world.admit()
    answer = world.step(again["request_id"])
    assert answer["outcome"] == "split"
    assert world.step(again["request_id"], runner=1)["outcome"] == "ended"
    assert run(world, batch_id, again["request_id"], {"runner": 0})["status"] == "finished"
    assert len(sent(world)) == 2


def test_function_that_has_ended_is_not_missed(world: BatchWorld) -> None:
    """The next one may begin late: until it does, nobody waits for a heartbeat."""
    put(world, "in/a", "in/b")
    _, request_id = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"}, runners=2)
    for event, outcome in (({}, "split"), ({"runner": 1}, "ended")):
        assert world.step(request_id, **event)["outcome"] == outcome
        assert heartbeats(world, request_id) == {}, outcome


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ({"s3_prefix": "s3://elsewhere/in/"}, "SourceBucket"),
        ({"s3_prefix": "s3://acme-data-2/in/"}, "read_from"),
        ({"s3_prefix": f"s3://{BUCKET}/"}, "read_from"),
        ({"s3_prefix": f"s3://{BUCKET}/i"}, "read_from"),
        ({"s3_prefix": f"s3://{BUCKET}/one.csv"}, "read_from"),
        ({"s3_inventory": f"s3://{BUCKET}/secret/manifest.json"}, "read_from"),
    ],
)
def test_source_without_a_grant_is_403(world: BatchWorld, source: dict[str, str], reason: str) -> None:
    grant(world, f"s3://{BUCKET}/in/*", f"s3://{BUCKET}/one.csv")
    refused = post(world, source)
    assert (refused.status, refused.json()["code"]) == (403, "source_not_granted")
    assert reason in refused.json()["detail"]


def test_own_bucket_and_other_projects_grants_are_refused(world: BatchWorld) -> None:
    own = world.cloud.app.settings.files_bucket
    world.cloud.app.exports.allowed_sources.bucket = "*"
    grant(world, f"s3://{own}/*", f"s3://{BUCKET}/in/*")
    assert post(world, {"s3_prefix": f"s3://{own}/content/"}).status == 403
    other = BatchWorld(world.cloud, world.cloud.project(), world.business)
    assert post(other, {"s3_prefix": f"s3://{BUCKET}/in/"}).status == 403


def test_grant_that_was_withdrawn_stops_the_batch_before_a_call(world: BatchWorld) -> None:
    put(world, "in/a")
    batch_id, request_id = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"})
    grant(world)
    shown = run(world, batch_id, request_id)
    assert (shown["status"], "read_from" in shown["stop_reason"], world.business.calls()) == ("stopped", True, [])


def test_bucket_that_does_not_exist_stops_the_batch(world: BatchWorld) -> None:
    grant(world, "s3://acme-data-9/*")
    shown = run(world, *started(world, {"s3_prefix": "s3://acme-data-9/x"}))
    assert (shown["status"], shown["stop_reason"]) == ("stopped", "s3://acme-data-9/x cannot be read: NoSuchBucket")


def test_objects_of_an_inventory_are_items(world: BatchWorld) -> None:
    lines = [inventory_line(key) for key in ODD_KEYS]
    source = inventory(world, lines[:4], [], [inventory_line("gone", marker="true"), *lines[4:]])
    shown = run(world, *started(world, source))
    assert (shown["status"], shown["total"]) == ("finished", 6)
    items = sent(world)
    assert [item["key"] for item in items] == ODD_KEYS
    assert items[0] == {
        "bucket": "acme-photos",
        "key": ODD_KEYS[0],
        "size": 7,
        "etag": "abc",
        "last_modified": "2026-11-01T00:00:00.000Z",
        "version_id": "v1",
    }


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"fileFormat": "Parquet"}, "in the format Parquet: only CSV"),
        ({"fileFormat": "ORC"}, "in the format ORC: only CSV"),
        ({"fileSchema": "Bucket, Key, Size"}, "no column ETag"),
        ({"fileSchema": SCHEMA + ", Other"}, "has 8 values for 9 columns"),
        ({"version": "2030-01-01"}, "only 2016-11-30"),
        ({"destinationBucket": "arn:aws:s3:::acme-data-2"}, "not in the bucket of its manifest"),
        ({"files": [{"key": "inv/data/0.csv.gz", "MD5checksum": "0" * 32}]}, "its MD5 differs"),
        ({"files": [{"key": "inv/data/9.csv.gz", "MD5checksum": "0" * 32}]}, "cannot be read: NoSuchKey"),
        ({"files": [{"key": "bank/0.csv.gz", "MD5checksum": "0" * 32}]}, "may not read"),
        ({"files": 7}, "is not the manifest.json"),
    ],
)
def test_inventory_that_cannot_be_trusted_stops_the_batch_before_a_call(
    world: BatchWorld, changes: dict[str, Any], reason: str
) -> None:
    source = inventory(world, [inventory_line("a")], [inventory_line("b")], **changes)
    shown = run(world, *started(world, source))
    assert (shown["status"], world.business.calls()) == ("stopped", [])
    assert reason in shown["stop_reason"]


def test_inventory_with_an_unreadable_row_or_size_is_refused(
    world: BatchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = run(world, *started(world, inventory(world, [inventory_line("a", size="much")])))
    assert "has a key or a size that cannot be read" in shown["stop_reason"]
    monkeypatch.setattr(listing, "LARGEST_MANIFEST", 100)
    shown = run(world, *started(world, inventory(world, [inventory_line("a")])))
    assert "are read at most" in shown["stop_reason"]


@pytest.mark.parametrize(
    "source",
    [
        {},
        {"s3_prefix": f"s3://{BUCKET}/in/", "s3_inventory": MANIFEST},
        {"s3_prefix": f"s3://{BUCKET}/in/", "file_id": "file-1"},
        {"s3_prefix": f"s3://{BUCKET}/in/", "encoding": "gbk"},
        {"s3_prefix": f"s3://{BUCKET}"},
        {"s3_prefix": "https://acme/in/"},
        {"s3_inventory": f"s3://{BUCKET}/inv/data.csv.gz"},
    ],
)
def test_source_that_names_no_single_place_is_422(world: BatchWorld, source: dict[str, str]) -> None:
    assert post(world, source).status == 422


def test_each_batch_of_a_schedule_lists_the_objects_again(world: BatchWorld) -> None:
    world.business.secret = None
    body = {"biz_id": world.register(), "name": "nightly", "rate": 5000, "items_per_call": 100}
    source = {"s3_prefix": f"s3://{BUCKET}/in/"}
    refused = world.http("POST", "/v1/batch-schedules", {"schedule": "rate(1 hour)", "batch": body | {"source": {}}})
    assert refused.status == 422
    made = world.http("POST", "/v1/batch-schedules", {"schedule": "rate(1 hour)", "batch": body | {"source": source}})
    assert made.status == 201, made.body
    assert made.json()["batch"]["source"] == source
    for number in (1, 2):
        put(world, f"in/{number}")
        to_next_run(world, made.json())
        fire(world)
        world.admit()
        newest = batches(world)[0]
        shown = run(world, newest["batch_id"], newest["request_id"])
        assert (shown["status"], shown["total"]) == ("finished", number)


def test_machine_lists_in_several_executions_then_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PART_BYTES", 1000)
    list_parts(monkeypatch, 1)
    with MotoCloud(machines_run=True, BATCH_ROUNDS="2") as cloud, batch_world(cloud) as world:
        prepare(world)
        put(world, *(f"in/{number:05d}" for number in range(2500)))
        batch_id, _ = started(world, {"s3_prefix": f"s3://{BUCKET}/in/"}, runners=2)
        shown = world.ended(batch_id)
        machine = cloud.app.settings.batch_machine_arn
        executions = cloud.client("stepfunctions").list_executions(stateMachineArn=machine)["executions"]
    assert (shown["status"], shown["progress"]["succeeded"], shown["total"]) == ("finished", 2500, 2500)
    assert [item["key"] for item in sent(world)] == [f"in/{number:05d}" for number in range(2500)]
    # Four steps of listing take two executions; the second runner has its own.
    assert len(executions) >= 3
