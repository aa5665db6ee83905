"""A worker that continues after its attempt was given up changes nothing and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

from tests.support.exports.paged_source import PagedSource, honest, numbered
from tests.support.exports.running import ExportWorld, read_csv
from tidegate.exports.store import ledger_object, output_object, page_object, spec_object
from tidegate.queue.retention import sweep


def test_worker_of_an_older_attempt_changes_nothing(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    task_id = world.submit()
    first = world.admit(task_id)
    rendered = world.cloud.invoke("render_export", world.cloud.invoke("pull_pages", first))
    world.cloud.invoke("publish_export", {**first, "failure": {"Error": "States.Timeout"}})
    world.attempt(task_id)
    published = world.cloud.app.queue.get(world.project.id, task_id).result

    assert world.cloud.invoke("publish_export", rendered)["next"] == "over"
    assert world.cloud.invoke("render_export", first)["next"] == "over"
    assert world.cloud.app.queue.get(world.project.id, task_id).result == published


def test_worker_of_an_older_attempt_changes_no_page(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    first, second = world.admit(task_id), dict[str, Any]()

    def overtaken_by_attempt_2(source: PagedSource, page: int, size: int) -> dict[str, Any]:
        """Attempt 1 is given up while it waits for this response, and attempt 2 pulls everything."""
        if page != 1 or second:
            return honest(source, page, size)
        world.cloud.invoke("publish_export", {**first, "failure": {"Error": "States.Timeout"}})
        second.update(world.admit(task_id))
        second.update(world.cloud.invoke("pull_pages", second))
        late = honest(source, page, size)
        late["data"]["data"] = [{"id": "late"}] * size
        return late

    world.source.answer = overtaken_by_attempt_2
    assert world.cloud.invoke("pull_pages", first)["next"] == "over"
    assert second["next"] == "render"
    world.cloud.invoke("publish_export", world.cloud.invoke("render_export", second))

    assert world.shown(task_id)["status"] == "completed"
    assert [row["id"] for row in read_csv(world.file(task_id))] == [str(number) for number in range(250)]
    assert world.objects("staging") == []


def test_incomplete_page_list_is_not_rendered(world: ExportWorld) -> None:
    world.source.rows = numbered(250)
    task_id = world.submit(step=100)
    state = world.cloud.invoke("pull_pages", world.admit(task_id))
    # A duplicate of the pull ran out of time and saved its shorter page list last.
    key = ledger_object(world.project.id, task_id, 1)
    (ledger,) = json.loads(world.s3.get_object(Bucket=world.bucket, Key=key)["Body"].read())
    shorter = ledger | {"counts": ledger["counts"][:2], "done": False}
    world.s3.put_object(Bucket=world.bucket, Key=key, Body=json.dumps([shorter]))

    assert world.cloud.invoke("render_export", state)["status"] == "pending"
    shown = world.attempt(task_id)

    assert (shown["status"], shown["attempts"]) == ("completed", 2)
    assert len(read_csv(world.file(task_id))) == 250
    assert world.source.pages == {0: 1, 1: 1, 2: 1}


def test_objects_of_a_late_worker_are_swept_a_day_later(world: ExportWorld) -> None:
    world.source.rows = numbered(3)
    done = world.submit()
    world.run(done)
    # Contradicting pages are not kept for a retry.
    world.source.answer = lambda *_: {"status": 1}
    failed = world.submit()
    world.run(failed)
    kept = world.objects()
    project_id = world.project.id
    for task_id in (done, failed):
        for key in (output_object(project_id, task_id, 9), page_object(project_id, task_id, 0, 0)):
            world.s3.put_object(Bucket=world.bucket, Key=key, Body=b"late")
    world.s3.put_object(Bucket=world.bucket, Key=spec_object(project_id, done), Body=b"late")

    sweep(world.cloud.app.queue)
    assert len(world.objects()) == len(kept) + 5, "young objects may belong to a running export"
    world.cloud.clock.advance(2 * 24 * 3600)
    sweep(world.cloud.app.queue)

    assert world.objects() == kept == [output_object(project_id, done, 1), spec_object(project_id, failed)]
