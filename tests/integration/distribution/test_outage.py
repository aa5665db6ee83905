"""Records of unfinished Jobs survive an outage of hours; those of ended Jobs expire after RecordTtlSeconds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.faults.conditions import remove_expired
from tests.support.fleet import Fleet, collect, messages
from tidegate.aws import keys
from tidegate.notifications.notices import Notice

HOURS = 3600
CALLBACK = "http://127.0.0.1:9/told"


def pass_time(fleet: Fleet, seconds: float) -> None:
    fleet.cloud.clock.advance(seconds)
    remove_expired(fleet.cloud)


def missing(fleet: Fleet, path: str) -> bool:
    return fleet.cloud.http("GET", path, key=fleet.project.key).status == 404


def deliver(fleet: Fleet, job_id: str) -> None:
    fleet.run_until_dispatched(job_id)
    fleet.deliver_all(job_id)
    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)


def published(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> list[Notice]:
    """The notices that Jobs publish from now on."""
    sent: list[Notice] = []

    def publish(notices: Sequence[Notice]) -> Sequence[Notice]:
        sent.extend(notices)
        return notices

    monkeypatch.setattr(fleet.cloud.app.distribution.topic, "publish", publish)
    return sent


def test_job_that_was_not_closed_for_hours_is_delivered(fleet: Fleet) -> None:
    made = fleet.submit("a-1", callback=CALLBACK)
    fleet.collect()

    pass_time(fleet, 20 * HOURS)

    deliver(fleet, made["job_id"])
    assert fleet.task(made["task_id"])["status"] == "Success"


def test_report_of_a_host_is_counted_by_a_poll_hours_later(fleet: Fleet) -> None:
    made = fleet.submit_many(["a-1", "a-2"])
    job_id = made["job_id"]
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)

    pass_time(fleet, 20 * HOURS)

    fleet.step("poll_transfer", job_id)
    fleet.step("finish_job", job_id)
    assert fleet.states(job_id) == {"a-1": "Success", "a-2": "Timeout"}
    assert {fleet.task(task["task_id"])["status"] for task in made["tasks"]} == {"Success", "Timeout"}


def test_callbacks_are_sent_after_an_outage_that_began_at_the_end(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fleet.submit("a-1", callback=CALLBACK)
    job_id, topic = made["job_id"], fleet.cloud.app.distribution.topic
    fleet.run_until_dispatched(job_id)
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    with monkeypatch.context() as refused:
        refused.setattr(topic, "publish", lambda _notices: [])
        assert fleet.step("finish_job", job_id)["state"] == "more"

    pass_time(fleet, 20 * HOURS)

    sent = published(fleet, monkeypatch)
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    assert [notice.record_id for notice in sent] == [made["task_id"]]


def test_callback_that_joined_an_ended_job_is_sent_after_an_outage(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    fleet.collect()
    late = fleet.submit("a-1", callback=CALLBACK)
    assert late["job_id"] == job_id
    records = messages(fleet)
    deliver(fleet, job_id)
    collect(fleet, records)

    pass_time(fleet, 20 * HOURS)

    sent = published(fleet, monkeypatch)
    assert fleet.step("finish_job", job_id)["state"] == "ended"
    assert [notice.record_id for notice in sent] == [late["task_id"]]


def test_ended_job_and_its_tasks_are_gone_after_the_record_ttl(fleet: Fleet) -> None:
    made = fleet.submit("a-1", callback=CALLBACK)
    deliver(fleet, made["job_id"])
    key = fleet.job(made["job_id"])["key"]
    ttl = fleet.cloud.app.distribution.windows.ttl
    pass_time(fleet, ttl - 60)
    assert fleet.task(made["task_id"])["status"] == "Success"

    pass_time(fleet, 120)

    uuid = made["task_id"].rsplit(":", 1)[1]
    assert missing(fleet, f"/v1/jobs/{key}")
    assert missing(fleet, f"/v1/downloads/{uuid}")
    assert fleet.get("/v1/downloads") == {"items": [], "next_cursor": None}
    assert fleet.cloud.app.table.get(keys.task(fleet.project.id, uuid)), "nothing was written to the Task"


def test_tasks_of_expired_jobs_do_not_hide_older_ones(fleet: Fleet) -> None:
    unfinished = fleet.submit("a-1")
    fleet.run_until_dispatched(unfinished["job_id"])
    fleet.pass_window()
    ended = fleet.submit_many(["b-1", "b-2", "b-3"], target_file_dir="/elsewhere")["job_id"]
    deliver(fleet, ended)

    pass_time(fleet, fleet.cloud.app.distribution.windows.ttl + 60)

    page = fleet.get("/v1/downloads", limit=1)
    assert [task["task_id"] for task in page["items"]] == [unfinished["task_id"]]
