"""A batch takes a slot of its channel for each runner, and no batch needs more than there are."""

from __future__ import annotations

from tests.support.http_servers import Handler, serve
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue
from tidegate.queue.admission import admit
from tidegate.queue.control import repair_counts


def start(
    cloud: MotoCloud, project: Project, runners: int, process_url: str = "http://127.0.0.1:1/", rate: int = 100
) -> dict[str, object]:
    given = {"name": "b", "process_url": process_url}
    biz = cloud.http("POST", "/v1/biz", json=given, key=project.key).json()
    body = {"biz_id": biz["biz_id"], "name": "n", "total": 10_000, "rate": rate, "runners": runners}
    batch = cloud.http("POST", "/v1/batches", json=body, key=project.key)
    assert batch.status == 201, batch.body
    made = dict(batch.json())
    assert cloud.http("POST", f"/v1/batches/{made['batch_id']}/start", json={}, key=project.key).status in (200, 202)
    return made


def test_runners_take_slots_and_the_next_batch_waits(cloud: MotoCloud, project: Project) -> None:
    TestQueue(cloud, project).capacity(batch=4)
    start(cloud, project, 3)
    cloud.clock.advance(1)
    start(cloud, project, 2)
    store = cloud.app.queue.channel_store
    admit(cloud.app.queue, "batch")

    channel = store.get("batch")
    assert channel is not None
    assert (channel.running, store.standing("batch", project.id).running) == (3, 3)
    waiting = [r for r in cloud.app.queue.store.list(project.id, 10, None).items if r.status == "queued"]
    assert [(r.slots, r.last_wait_reason) for r in waiting] == [(2, "capacity")]
    # The counts are right: there is nothing to repair.
    assert repair_counts(cloud.app.queue, "batch") == 0


def test_end_of_a_batch_gives_all_its_slots_back(cloud: MotoCloud, project: Project) -> None:
    TestQueue(cloud, project).capacity(batch=4)
    start(cloud, project, 4)
    admit(cloud.app.queue, "batch")
    (request,) = cloud.app.queue.store.list(project.id, 10, None).items
    cloud.app.queue.finish(project.id, request.request_id, request.attempt, result={})

    channel = cloud.app.queue.channel_store.get("batch")
    assert channel is not None
    assert (channel.running, cloud.app.queue.channel_store.standing("batch", project.id).running) == (0, 0)


def test_batch_gets_no_more_runners_than_its_channel_has_slots(cloud: MotoCloud, project: Project) -> None:
    TestQueue(cloud, project).capacity(batch=4)
    assert start(cloud, project, 32)["runners"] == 4
    assert admit(cloud.app.queue, "batch") == 1


def test_batch_runs_alone_after_its_channel_was_made_smaller(cloud: MotoCloud, project: Project) -> None:
    queue = TestQueue(cloud, project)
    queue.capacity(batch=4)
    start(cloud, project, 4)
    queue.capacity(batch=2)
    admit(cloud.app.queue, "batch")
    channel = cloud.app.queue.channel_store.get("batch")
    assert channel is not None
    assert channel.running == 2


def test_batch_sleeps_until_midnight_when_runner_hours_are_used_up(cloud: MotoCloud, project: Project) -> None:
    quotas = {"quotas": {"runner_hours_per_day": 1}}
    start(cloud, project, 1)
    admit(cloud.app.queue, "batch")
    cloud.http("PATCH", f"/v1/projects/{project.id}", json=quotas, key=cloud.admin_key)
    (request,) = cloud.app.queue.store.list(project.id, 10, None).items
    cloud.app.projects.usage.add_today(project.id, cloud.clock(), runner_seconds=3600)
    before = cloud.app.projects.usage.today(project.id, cloud.clock())
    event = {"project_id": project.id, "request_id": request.request_id, "attempt": request.attempt}

    slept = cloud.invoke("run_batch_slice", event)

    assert (slept["outcome"], slept["seconds"] <= 900) == ("sleep", True)
    waiting = cloud.app.queue.get(project.id, request.request_id)
    assert (waiting.status, waiting.last_wait_reason) == ("running", "quota")
    assert cloud.app.projects.usage.today(project.id, cloud.clock()) == before


def test_batch_makes_no_more_calls_in_a_day_than_its_quota(cloud: MotoCloud, project: Project) -> None:
    calls: list[bytes] = []

    def agree(request: Handler) -> None:
        calls.append(request.body())
        request.answer(200, b'{"result": "ok"}', Content_Type="application/json")

    quotas = {"quotas": {"outgoing_calls_per_day": 30}}
    cloud.http("PATCH", f"/v1/projects/{project.id}", json=quotas, key=cloud.admin_key)
    with serve(agree) as port:
        start(cloud, project, 1, f"http://127.0.0.1:{port}/", rate=10)
        admit(cloud.app.queue, "batch")
        (request,) = cloud.app.queue.store.list(project.id, 10, None).items
        event = {"project_id": project.id, "request_id": request.request_id, "attempt": request.attempt}
        for _ in range(20):
            if cloud.invoke("run_batch_slice", event)["outcome"] == "sleep":
                break

    assert cloud.app.queue.get(project.id, request.request_id).last_wait_reason == "quota"
    # Calls are counted once a second, so those of one more second may be made.
    assert 30 <= len(calls) <= 45
