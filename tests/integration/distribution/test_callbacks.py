"""One notice per Job and one per Task with a callback, whichever function dies in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support.fleet import Fleet, collect, due, messages
from tidegate.distribution import transfer as download_finish
from tidegate.errors import Busy
from tidegate.notifications.notices import Notice

CALLBACK = "http://127.0.0.1:9/told"


@pytest.fixture
def published(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    """The notices that the topic accepted, in order."""
    accepted: list[Notice] = []

    def publish(notices: Sequence[Notice]) -> list[Notice]:
        json.dumps([notice.data for notice in notices])
        accepted.extend(notices)
        return list(notices)

    monkeypatch.setattr(fleet.cloud.app.notifications.topic, "publish", publish)
    return accepted


def finish(fleet: Fleet, job_id: str) -> None:
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)


def test_job_and_each_task_with_a_callback_have_one_notice(fleet: Fleet, published: list[Notice]) -> None:
    quiet = fleet.submit("a-1")
    with_callback = fleet.submit("a-1", callback=CALLBACK)
    other = fleet.submit("a-2", callback=CALLBACK)
    job_id = quiet["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    fleet.report("a-2", 7, error_msg="disk full")
    finish(fleet, job_id)

    ends = {notice.record_id: notice for notice in published if notice.kind != "job.progress"}
    assert set(ends) == {job_id, with_callback["task_id"], other["task_id"]}
    assert (ends[job_id].kind, ends[job_id].status) == ("job.finished", "Failed")
    good, bad = ends[with_callback["task_id"]], ends[other["task_id"]]
    assert (good.kind, good.status, good.callback) == ("task.completed", "Success", CALLBACK)
    assert (bad.kind, bad.status, bad.data["error_msg"]) == ("task.failed", "Failed", "disk full")
    shown = {name: value for name, value in fleet.task(with_callback["task_id"]).items() if value is not None}
    assert good.data == shown

    before = len(published)
    finish(fleet, job_id)
    assert len(published) == before, "nothing is published twice"


def test_moved_task_gets_the_notice_of_its_new_job(fleet: Fleet, published: list[Notice]) -> None:
    made = fleet.submit("a-1", callback=CALLBACK)
    fleet.pass_window()
    fleet.step("close_window", made["job_id"])
    finish(fleet, made["job_id"])
    assert [notice.kind for notice in published] == ["job.finished"]

    fleet.collect()
    home = fleet.task(made["task_id"])["job_id"]
    fleet.run_until_dispatched(home)
    fleet.report("a-1", 0)
    finish(fleet, home)
    assert [(n.kind, n.record_id) for n in published if n.callback] == [("task.completed", made["task_id"])]


def test_failed_publish_is_repeated_with_the_same_ids(
    fleet: Fleet, published: list[Notice], monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = fleet.submit_many([f"a-{n}" for n in range(3)], callback=CALLBACK)["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.deliver_all(job_id)
    fleet.step("poll_transfer", job_id)
    publish = fleet.cloud.app.notifications.topic.publish

    def refusing(notices: Sequence[Notice]) -> list[Notice]:
        publish(notices[:1])
        if any(notice.callback for notice in notices):
            raise Busy("died")
        return list(notices)

    monkeypatch.setattr(fleet.cloud.app.notifications.topic, "publish", refusing)
    with pytest.raises(Busy):
        fleet.step("finish_job", job_id)
    assert fleet.job(job_id)["status"] == "Success"
    monkeypatch.setattr(fleet.cloud.app.notifications.topic, "publish", publish)

    assert fleet.step("finish_job", job_id)["state"] == "ended"

    ids = [notice.notice_id for notice in published if notice.callback]
    assert len(ids) == 4
    assert len(set(ids)) == 3


def test_many_callbacks_are_published_in_portions(
    fleet: Fleet, published: list[Notice], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download_finish, "_PORTIONS_A_STEP", 2)
    made: list[dict[str, Any]] = []
    for number in range(5):
        made.append(fleet.submit(f"a-{number}", callback=CALLBACK))
        fleet.collect()
    job_id = made[0]["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.deliver_all(job_id)
    fleet.step("poll_transfer", job_id)
    assert [fleet.step("finish_job", job_id)["state"] for _ in range(3)] == ["more", "more", "ended"]
    assert {n.record_id for n in published if n.callback} == {task["task_id"] for task in made}


def test_late_task_that_shares_a_target_gets_its_callback_after_the_end(fleet: Fleet, published: list[Notice]) -> None:
    in_time = fleet.submit("a-1")
    late = fleet.submit("a-1", callback=CALLBACK)
    first, second = messages(fleet)
    collect(fleet, [first])
    fleet.run_until_dispatched(in_time["job_id"])
    fleet.report("a-1", 0)
    finish(fleet, in_time["job_id"])
    collect(fleet, [second])
    assert not [n for n in published if n.callback]

    (item,) = due(fleet)
    fleet.cloud.app.due_handlers["job"](item)
    finish(fleet, in_time["job_id"])
    assert [n.record_id for n in published if n.callback] == [late["task_id"]]
