"""The report of all items: each item that is done once, with its last state, even if functions die or run twice."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

from tests.support.batches.lab import Lab
from tests.support.batches.receiver import receiver
from tests.support.batches.world import BatchWorld, batch_world
from tests.support.moto.cloud import MotoCloud
from tests.support.patience import Background
from tidegate.aws import keys
from tidegate.aws.table import update
from tidegate.batches import batches, items, rows
from tidegate.batches.items import DataItems
from tidegate.batches.model import ItemOutcome, ItemResult


@pytest.fixture
def world(cloud: MotoCloud) -> Iterator[BatchWorld]:
    with batch_world(cloud) as made:
        yield made


def write(world: BatchWorld, batch_id: str, runner: int, part: int, fence: int, *indexes: int, msg: str = "") -> None:
    b = world.cloud.app.batches
    batch = batches.get(b, world.project.id, batch_id)
    done = [ItemOutcome(index, "succeeded", 1, ItemResult("ok", msg), 1_800_000_000.25) for index in indexes]
    b.outcomes.write_report(batch, runner, part, fence, done, DataItems(lambda: None))


def end(world: BatchWorld, batch_id: str, *parts: int) -> None:
    """Ends the batch; the progress of each runner counts this many parts."""
    table, project_id = world.cloud.app.table, world.project.id
    for runner, count in enumerate(parts):
        table.write(update(keys.batch_progress(project_id, batch_id, runner), {"report_parts": count}))
    table.write(update(keys.batch(project_id, batch_id), {"status": "stopped"}))


def ask(world: BatchWorld, batch_id: str, form: str = "jsonl") -> Any:
    return world.http("GET", f"/v1/batches/{batch_id}/results?all=true&format={form}")


def text(world: BatchWorld, answer: Any) -> str:
    assert answer.status == 200, answer.body
    key = unquote(urlsplit(answer.json()["url"]).path).removeprefix(f"/{world.cloud.app.settings.files_bucket}")
    return (world.cloud.app.batches.objects.get(key.removeprefix("/")) or b"").decode()


def lines(world: BatchWorld, batch_id: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text(world, ask(world, batch_id)).splitlines()]


def test_parts_of_all_runners_are_joined_and_others_left_out(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), report=True, runners=2, total=5000)
    write(world, batch_id, 0, 1, 1, 0, 1)
    # The first function died before it saved its progress; the second one has the same part with a higher token.
    write(world, batch_id, 0, 2, 1, 2, 3, 4)
    write(world, batch_id, 0, 2, 2, 2)
    write(world, batch_id, 1, 1, 1, 1000)
    # Its progress was never saved: these items are called again.
    write(world, batch_id, 1, 2, 1, 1001)
    end(world, batch_id, 2, 1)

    found = lines(world, batch_id)

    assert [line["index"] for line in found] == [0, 1, 2, 1000]
    assert found[0] == {"index": 0, "state": "succeeded", "attempts": 1, "time": "2027-01-15T08:00:00.250Z"}


def test_report_as_csv_has_the_same_items_and_no_formulas(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), report=True)
    write(world, batch_id, 0, 1, 1, 0, msg='=HYPERLINK("x")')
    write(world, batch_id, 0, 2, 1, 1, msg='said "yes", and\nmore')
    end(world, batch_id, 2)

    answer = ask(world, batch_id, "csv")
    found = list(csv.DictReader(text(world, answer).splitlines(keepends=True)))

    assert answer.json()["file_name"] == f"{batch_id}-report.csv"
    assert [row["msg"] for row in found] == ['\'=HYPERLINK("x")', 'said "yes", and\nmore']
    assert {tuple(row)[:4] for row in found} == {("index", "state", "attempts", "time")}


def test_large_report_is_put_together_over_several_calls(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_GROUP_BYTES", 5 * 1024 * 1024 + 1)
    monkeypatch.setattr(rows, "_ASSEMBLE_SECONDS", 0.0)
    batch_id = world.create(world.register(), report=True, total=1000)
    for part in range(1, 19):
        write(world, batch_id, 0, part, 1, part, msg="x" * 1000 * 1000)
    end(world, batch_id, 18)

    answers = [ask(world, batch_id) for _ in range(3)]

    assert [answer.status for answer in answers] == [409, 409, 200]
    assert answers[0].json()["code"] == "not_ready"
    assert answers[0].json()["detail"].startswith("1 of 3 parts")
    assert answers[0].headers["retry-after"] == "1"
    assert [line["index"] for line in lines(world, batch_id)] == list(range(1, 19))


def test_upload_of_another_version_is_not_continued(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began the report with other parts, before groups were joined."""
    monkeypatch.setattr(rows, "_GROUP_BYTES", 5 * 1024 * 1024 + 1)
    batch_id = world.create(world.register(), report=True, total=1000)
    for part in range(1, 13):
        write(world, batch_id, 0, part, 1, part, msg="x" * 1000 * 1000)
    end(world, batch_id, 12)
    b = world.cloud.app.batches
    place: Any = {"Bucket": b.bucket.name, "Key": f"batches/{world.project.id}/{batch_id}/report-000000012.jsonl"}
    upload = b.s3.create_multipart_upload(**place)["UploadId"]
    b.s3.upload_part(**place, UploadId=upload, PartNumber=1, Body=b'{"index": 7}\n' * 500_000)

    assert [line["index"] for line in lines(world, batch_id)] == list(range(1, 13))


def test_report_of_very_many_parts_needs_several_calls(world: BatchWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow batch writes a small object for each item: no call could read them all."""
    monkeypatch.setattr(items, "_MOST_PARTS_A_CALL", 10)
    monkeypatch.setattr(items, "_PARTS_A_GROUP", 5)
    monkeypatch.setattr(items, "_MERGE_SECONDS", -1.0)
    batch_id = world.create(world.register(), report=True, runners=2, total=5000)
    for part in range(1, 24):
        write(world, batch_id, 0, part, 1, part)
        write(world, batch_id, 1, part, 2, 1000 + part)
        write(world, batch_id, 1, part, 1, 2000 + part)
    end(world, batch_id, 22, 7)

    answers = [ask(world, batch_id) for _ in range(5)]

    assert [answer.status for answer in answers] == [409, 409, 409, 409, 200], (
        "four groups, and one of the other runner"
    )
    assert {answer.json()["code"] for answer in answers[:4]} == {"not_ready"}
    found = [line["index"] for line in lines(world, batch_id)]
    assert sorted(found) == [*range(1, 23), *range(1001, 1008)]
    again = csv.DictReader(text(world, ask(world, batch_id, "csv")).splitlines(keepends=True))
    assert [int(row["index"]) for row in again] == found


def test_batch_without_report_is_refused_with_the_reason(world: BatchWorld) -> None:
    batch_id = world.create(world.register())
    end(world, batch_id)

    refused = ask(world, batch_id)

    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")
    assert "report: true" in refused.json()["detail"]


def test_report_of_a_running_batch_is_refused(world: BatchWorld) -> None:
    batch_id = world.create(world.register(), report=True)
    world.act(batch_id, "start")
    refused = ask(world, batch_id)
    assert (refused.status, refused.json()["code"]) == (409, "wrong_state")


def test_killed_runner_reports_each_item_once(cloud: MotoCloud) -> None:
    with receiver() as business:
        lab = Lab(cloud.app.table, business.url).faster(lease_seconds=3)
        batch = lab.batch(300, rate=100, report=True)
        mortal, dead = lab.mortal()
        running = Background(lambda: _dies(mortal, batch))
        while lab.now(batch)[1].position < 100:
            time.sleep(0.05)
        dead.set()
        running.join(10)
        while lab.run(batch) != "ended":
            time.sleep(0.1)
        ended, progress = lab.now(batch)

    assert (ended.status, progress.position) == ("finished", 300)
    counted = [one for (_, part), one in lab.outcomes.report_lines if part <= progress.report_parts]
    assert sorted(one.index for one in counted) == list(range(300))
    assert {one.state for one in counted} == {"succeeded"}


def _dies(lab: Lab, batch: Any) -> None:
    try:
        lab.slice(batch)
    except BaseException:
        return
