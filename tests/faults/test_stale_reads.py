"""Reads that decide something, a moment after what they read was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.faults.dying import dying
from tests.faults.weather import Weather
from tests.support.fleet import Fleet, messages
from tests.support.moto.cloud import MotoCloud
from tidegate.notifications.notice import Notice
from tidegate.notifications.topic import Topic

STALE = Weather(stale=True)


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def test_late_target_whose_task_was_written_a_moment_ago_is_moved(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit("a-0")["job_id"]
    fleet.collect()
    fleet.key_of("a-1")
    cloud.clock.advance(cloud.app.distribution.windows.seconds - 0.5)
    with dying(cloud, weather=STALE):
        made = fleet.submit("a-1")
        assert made["job_id"] == job_id
        cloud.clock.advance(0.5)
        fleet.step("close_window", job_id)
        records = messages(fleet)
        cloud.invoke("collect_targets", {"Records": records})
    cloud.clock.advance(2)

    assert fleet.task(made["task_id"])["job_id"] != job_id


def test_task_that_moved_a_moment_ago_is_told_of_its_end(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Notice] = []

    def publish(_: Topic, notices: Sequence[Notice]) -> list[Notice]:
        told.extend(notices)
        return list(notices)

    monkeypatch.setattr(Topic, "publish", publish)
    fleet = Fleet(cloud)
    fleet.to_window_start()
    cloud.clock.advance(cloud.app.distribution.windows.seconds - 0.5)
    made = fleet.submit("a-1", callback="http://127.0.0.1:9/told")
    cloud.clock.advance(30)
    fleet.step("close_window", made["job_id"])
    fleet.key_of("a-1")
    app = cloud.app.distribution
    with dying(cloud, weather=STALE):
        cloud.invoke("collect_targets", {"Records": messages(fleet)})
        with_home = app.tasks.get(fleet.project.id, made["task_id"].rsplit(":", 1)[-1])
        assert with_home
        home = with_home.job_id
        assert home != made["job_id"]
        # All within the second in which the Task moved.
        fleet.step("close_window", home)
        assert fleet.step("prepare_file", home)["state"] == "ready"
        assert fleet.step("dispatch_transfer", home)["state"] == "dispatched"
        job = app.jobs.get(fleet.project.id, fleet.job(home)["key"])
        assert job
        done = fleet.report("a-1", 0, items=[{"transfer_id": f"tr-{job.key}-0-1", "container_id": ""}])
        assert done.status < 300, done.body
        assert fleet.step("poll_transfer", home)["state"] == "over"
        while fleet.step("finish_job", home)["state"] == "more":
            pass

    assert [notice.kind for notice in told if notice.kind.startswith("task.")] == ["task.completed"]


def test_key_that_was_made_this_moment_is_known(cloud: MotoCloud) -> None:
    project = cloud.project()
    with dying(cloud, weather=Weather(stale=True)):
        key = cloud.make_key(project.id, ["read"])

        assert cloud.http("GET", "/v1/files", key=key).status == 200
