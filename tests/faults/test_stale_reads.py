"""Reads that decide something must be consistent: their items were written a moment before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from tests.faults.conditions import Conditions
from tests.faults.injection import inject_faults
from tests.support.fleet import Fleet, messages
from tests.support.moto.cloud import MotoCloud
from tests.support.releases import ReleaseWorld
from tidegate import app as composition
from tidegate.aws import keys
from tidegate.aws.table import put
from tidegate.files.library import ContentStore
from tidegate.ingest.feeds import Entry
from tidegate.notifications.notices import Notice, Topic

STALE = Conditions(stale=True)


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


def test_late_target_of_a_new_task_is_moved(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit("a-0")["job_id"]
    fleet.collect()
    fleet.key_of("a-1")
    cloud.clock.advance(cloud.app.distribution.windows.seconds - 0.5)
    with inject_faults(cloud, conditions=STALE):
        made = fleet.submit("a-1")
        assert made["job_id"] == job_id
        cloud.clock.advance(0.5)
        fleet.step("close_window", job_id)
        records = messages(fleet)
        cloud.invoke("collect_targets", {"Records": records})
    cloud.clock.advance(2)

    assert fleet.task(made["task_id"])["job_id"] != job_id


def test_end_of_a_task_that_just_moved_is_notified(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    published: list[Notice] = []

    def publish(_: Topic, notices: Sequence[Notice]) -> list[Notice]:
        published.extend(notices)
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
    with inject_faults(cloud, conditions=STALE):
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

    assert [notice.kind for notice in published if notice.kind.startswith("task.")] == ["task.completed"]


def test_new_key_works_at_once(cloud: MotoCloud) -> None:
    project = cloud.project()
    with inject_faults(cloud, conditions=Conditions(stale=True)):
        key = cloud.make_key(project.id, ["read"])

        assert cloud.http("GET", "/v1/files", key=key).status == 200


def test_deleted_subscription_leaves_no_entry_that_was_written_a_moment_ago(cloud: MotoCloud) -> None:
    project, table, store = cloud.project(), cloud.app.table, cloud.app.ingest.store
    body = {"name": "daily", "source_url": "http://127.0.0.1:9/list.json"}
    made = cloud.http("POST", "/v1/subscriptions", json=body, key=project.key)
    assert made.status == 201, made.body
    subscription_id = made.json()["subscription_id"]
    subscription = store.get(project.id, subscription_id)
    assert subscription
    cloud.clock.advance(60)

    with inject_faults(cloud, conditions=STALE):
        table.transact(store.seen_writes(subscription, Entry("http://127.0.0.1:9/a", "/a", "a", "1")))
        assert cloud.http("DELETE", f"/v1/subscriptions/{subscription_id}", key=project.key).status == 204

    assert store.get(project.id, subscription_id) is None
    assert not table.query(keys.manifest_entries(project.id, subscription_id), consistent=True).items


def ended_a_moment_ago(cloud: MotoCloud, code: int = 0) -> tuple[Fleet, str, str]:
    """A Job whose last result and end were written within the last second: its fleet, its Task and its id."""
    fleet = Fleet(cloud)
    made = fleet.submit("a-1")
    fleet.run_until_dispatched(made["job_id"])
    fleet.report("a-1", code)
    cloud.clock.advance(5)
    return fleet, made["task_id"], made["job_id"]


def end(fleet: Fleet, job_id: str) -> None:
    assert fleet.step("poll_transfer", job_id)["state"] == "over"
    assert fleet.step("finish_job", job_id)["state"] == "ended"


def test_task_that_just_succeeded_is_not_shown_as_failed(cloud: MotoCloud) -> None:
    fleet, task, job_id = ended_a_moment_ago(cloud)
    with inject_faults(cloud, conditions=STALE):
        end(fleet, job_id)

        assert fleet.task(task)["status"] == "Success"
        assert [one["status"] for one in fleet.get("/v1/downloads")["items"]] == ["Success"]
        assert [one["status"] for one in fleet.get("/v1/jobs")["items"]] == ["Success"]
        assert fleet.states(job_id) == {"a-1": "Success"}
        assert fleet.get(f"/v1/jobs/{fleet.job(job_id)['key']}/map")["states"] == "S"


def test_list_of_ended_jobs_has_no_job_of_another_status(cloud: MotoCloud) -> None:
    fleet, _, job_id = ended_a_moment_ago(cloud)
    with inject_faults(cloud, conditions=STALE):
        end(fleet, job_id)

        assert fleet.get("/v1/jobs", status="Running")["items"] == []


def test_host_shows_the_end_of_its_last_job(cloud: MotoCloud) -> None:
    fleet, _, job_id = ended_a_moment_ago(cloud)
    with inject_faults(cloud, conditions=STALE):
        end(fleet, job_id)

        assert fleet.get("/v1/agents/a-1")["last_job"]["status"] == "Success"


def test_late_report_does_not_change_the_end_of_the_last_job(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    items = fleet.inbox("a-1")
    cloud.clock.advance(700)
    end(fleet, job_id)
    assert fleet.get("/v1/agents/a-1")["last_job"]["status"] == "Timeout"

    assert fleet.report("a-1", 0, items=items).status < 300

    assert fleet.get("/v1/agents/a-1")["last_job"]["status"] == "Timeout"


def test_revoked_key_is_not_listed_as_active(cloud: MotoCloud) -> None:
    project = cloud.project()
    path = f"/v1/projects/{project.id}/keys"
    made = cloud.http("POST", path, json={"scopes": ["read"]}, key=cloud.admin_key).json()
    cloud.clock.advance(60)
    with inject_faults(cloud, conditions=STALE):
        assert cloud.http("DELETE", f"/v1/keys/{made['key_id']}", key=cloud.admin_key).status < 300
        listed = cloud.http("GET", path, key=cloud.admin_key).json()["items"]

    assert {key["key_id"]: key["state"] for key in listed}[made["key_id"]] == "revoked"


def test_deleted_release_leaves_no_revision_that_was_written_a_moment_ago(cloud: MotoCloud) -> None:
    world = ReleaseWorld(Fleet(cloud))
    project = world.fleet.project
    cloud.clock.advance(60)
    with inject_faults(cloud, conditions=STALE):
        assert world.put().status == 201
        assert cloud.http("DELETE", "/v1/releases/app", key=project.key).status == 204

    assert not cloud.app.table.query(keys.revisions(project.id, "app"), consistent=True).items


def test_object_of_a_content_that_was_stored_a_moment_ago_is_found(cloud: MotoCloud) -> None:
    project, signature = cloud.project(), "5" * 64
    with inject_faults(cloud, conditions=STALE):
        table = composition.app().table
        table.write(put(keys.content(project.id, signature) | {"signature": signature, "object": "uploads/new"}))
        found = ContentStore(table).objects_of(project.id, [signature])

    assert found == {signature: "uploads/new"}
