"""Two writers read the same record and both write: the second one is refused, at every store that relies on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime

import pytest

from tests.support.fleet import Fleet
from tests.support.moto.cloud import MotoCloud, Project
from tests.support.queue import TestQueue
from tidegate.aws import keys
from tidegate.aws.host_usage import HostUsage
from tidegate.aws.table import ConditionFailed, Write, put, update
from tidegate.batches.model import Batch
from tidegate.batches.store import BatchStore
from tidegate.common.ids import iso
from tidegate.distribution.model import REFUSED, Arrival, Job, TargetCounts, TargetReport, job_key
from tidegate.distribution.store import JobStore, move_task, still_collects
from tidegate.distribution.submit import job_of_window
from tidegate.errors import LeaseLost
from tidegate.ingest.feeds import Entry
from tidegate.ingest.sources import FileVersion
from tidegate.notifications.deliveries import CircuitStore, DeliveryStore, new_delivery
from tidegate.projects.audit import SYSTEM, act
from tidegate.queue.model import RUNNING, Request
from tidegate.queue.retention import RetentionStore
from tidegate.queue.store import CHANNEL, SLOT, Refused


@pytest.fixture
def cloud() -> Iterator[MotoCloud]:
    with MotoCloud() as made:
        yield made


@pytest.fixture
def project(cloud: MotoCloud) -> Project:
    return cloud.project()


@pytest.fixture
def queue(cloud: MotoCloud, project: Project) -> TestQueue:
    return TestQueue(cloud, project)


def _running_job(cloud: MotoCloud) -> tuple[Fleet, Job]:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job_id = fleet.submit("a-1")["job_id"]
    fleet.run_until_dispatched(job_id)
    job = cloud.app.distribution.jobs.get(fleet.project.id, job_key(job_id))
    assert job
    return fleet, job


def test_second_poller_does_not_overwrite_the_counts_of_a_job(cloud: MotoCloud) -> None:
    _, job = _running_job(cloud)
    jobs, now = cloud.app.distribution.jobs, cloud.clock()

    jobs.progress(job, now, replace(job, counts=TargetCounts(total=1, success=1)))
    kept = jobs.progress(job, now, replace(job, counts=TargetCounts(total=1, failed=1)))

    assert (kept.counts.success, kept.counts.failed) == (1, 0)


def test_second_poller_does_not_overwrite_a_shard(cloud: MotoCloud) -> None:
    fleet, job = _running_job(cloud)
    targets, now = cloud.app.distribution.targets, cloud.clock()
    (shard,) = targets.shards(job, [0])

    assert targets.save(job, [shard.after_all(TargetReport(0))], now)
    assert not targets.save(job, [shard.after_all(TargetReport(7))], now)
    assert fleet.states(job.job_id) == {"a-1": "Success"}


def test_refused_transfer_is_asked_again_by_one_dispatcher(cloud: MotoCloud) -> None:
    _, job = _running_job(cloud)
    transfers = cloud.app.distribution.transfers
    (transfer,) = transfers.list(job)
    cloud.app.table.write(update(keys.transfer(job.project_id, job.key, 0), {"state": REFUSED}))

    asked = [transfers.ask_again(job, transfer, cloud.clock().timestamp()) for _ in range(2)]

    assert asked == [True, False]


def test_recovery_with_an_old_generation_does_not_set_it_back(cloud: MotoCloud) -> None:
    _, job = _running_job(cloud)
    jobs, now = cloud.app.distribution.jobs, cloud.clock()
    second = jobs.next_generation(jobs.next_generation(job, now), now)

    assert second.generation == 2
    assert jobs.next_generation(job, now).generation == 2


def test_late_target_is_moved_by_one_collector(cloud: MotoCloud) -> None:
    fleet, source = _running_job(cloud)
    late = fleet.submit("a-2")
    app, now = cloud.app.distribution, iso(cloud.clock())
    source = replace(source, job_id=late["job_id"])
    arrival = Arrival("a-2", "", late["task_id"].rsplit(":", 1)[-1])
    homes = [job_of_window(app, fleet.project.id, source.spec, after=source.bucket + number) for number in (3, 4)]

    moved = [
        app.targets.rebind(
            home, [arrival], [move_task(fleet.project.id, arrival.uuid, source, home, now, 2**33)], 2**33
        )
        for home in homes
    ]

    assert [one.done for one in moved] == [True, False]
    assert moved[1].gone == {arrival.uuid}


def test_outdated_attempt_does_not_release_the_slot(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    running, now = queue.now(request), queue.cloud.clock()
    assert running.status == RUNNING
    line = act(request.project_id, request.request_id, now, SYSTEM, "retry")
    # The slot already belongs to the next attempt.
    slot = keys.slot(running.channel, running.request_id)
    queue.cloud.app.table.write(update(slot, {"attempt": running.attempt + 1}))

    ended = replace(running, status="failed", version=running.version + 1)
    with pytest.raises(Refused) as refused:
        queue.cloud.app.queue.store.move(running, ended, line, now=now)

    assert SLOT in refused.value.parts


def test_heartbeat_of_an_outdated_attempt_is_refused(queue: TestQueue) -> None:
    request = queue.submit()
    queue.admit()
    running, now = queue.now(request), queue.cloud.clock()
    earlier = replace(running, attempt=running.attempt - 1)
    store = queue.cloud.app.queue.store
    store.heartbeat(running, now, "0", None)

    with pytest.raises(LeaseLost):
        store.heartbeat(earlier, now, "0", None)


def test_second_move_from_the_same_version_is_refused(queue: TestQueue) -> None:
    request = queue.submit()
    store, now = queue.cloud.app.queue.store, queue.cloud.clock()
    line = act(request.project_id, request.request_id, now, SYSTEM, "test")
    first = replace(request, version=request.version + 1, priority=1)
    store.move(request, first, line, now=now)

    with pytest.raises(Refused):
        store.move(request, replace(first, priority=9), line, now=now)


def test_retention_keeps_a_request_that_has_changed(queue: TestQueue) -> None:
    request = queue.submit()
    store = RetentionStore(queue.cloud.app.table)
    seen_before = replace(request, version=request.version - 1)

    assert not store.remove(seen_before)
    assert not store.expire(seen_before, 1.0)
    assert queue.now(request).status in ("pending", "queued")


def test_second_change_of_a_project_is_refused(cloud: MotoCloud, project: Project) -> None:
    store = cloud.app.projects.projects._store
    was = store.get(project.id)
    assert was
    line = act(project.id, project.id, cloud.clock(), SYSTEM, "project.change")

    assert store.change(was, replace(was, group="first"), line)
    assert not store.change(was, replace(was, group="second"), line)
    assert (store.get(project.id) or was).group == "first"


def test_last_slot_is_taken_by_one_admission(queue: TestQueue) -> None:
    queue.capacity(no_cookie=1)
    first, second = queue.submit(), queue.submit()
    _run(queue, first)

    with pytest.raises(Refused) as refused:
        _run(queue, second)

    assert CHANNEL in refused.value.parts
    assert queue.channel().running == 1


def _run(queue: TestQueue, request: Request) -> None:
    """Admits the request as a run that read the channel before the other run wrote to it."""
    now = queue.cloud.clock()
    line = act(request.project_id, request.request_id, now, SYSTEM, "admit")
    running = replace(request, status=RUNNING, attempt=1, version=request.version + 1)
    queue.cloud.app.queue.store.move(request, running, line, now=now)


def test_replaced_runner_cannot_save_its_slice(cloud: MotoCloud, project: Project) -> None:
    store, batch = BatchStore(cloud.app.table), _batch(cloud, project)
    now = cloud.clock().timestamp()
    first = store.acquire(batch, now, 10)
    assert first
    assert store.acquire(batch, now + 5, 10) is None, "the lease lasts"
    second = store.acquire(batch, now + 11, 10)
    assert second

    with pytest.raises(LeaseLost):
        store.save(batch, first[0], first[1])
    store.save(batch, second[0], second[1])


def _batch(cloud: MotoCloud, project: Project) -> Batch:
    from tests.support.batches.lab import Lab

    return Lab(cloud.app.table, "http://127.0.0.1:1/").batch(3, rate=1)


def test_deliverer_that_lost_its_lease_cannot_settle(cloud: MotoCloud, project: Project) -> None:
    store, now = DeliveryStore(cloud.app.table), cloud.clock()
    message = {
        "message_id": "msg-1",
        "type": "task.completed",
        "project_id": project.id,
        "record_id": "r",
        "status": "completed",
        "callback": "http://receiver.example/",
        "timestamp": now.isoformat(),
        "data": {},
    }
    delivery = new_delivery(message, "{}", now)
    at = now.timestamp()
    assert store.add(delivery, at + 45)
    assert store.claim(project.id, delivery.delivery_id, at + 10, at + 55) is None, "the first lease lasts"
    assert store.claim(project.id, delivery.delivery_id, at + 46, at + 91)

    assert not store.settle(delivery, at + 45, at + 47)
    assert store.settle(delivery, at + 91, at + 48)


def test_unprocessed_part_of_a_batch_is_sent_again(cloud: MotoCloud) -> None:
    from tests.faults.injection import inject_faults
    from tests.faults.modes import PARTIAL
    from tidegate import app as composition

    items = [{"pk": "P#partial", "sk": str(number)} for number in range(9)]
    with inject_faults(cloud, at=1, mode=PARTIAL):
        composition.app().table.batch_put(items)
    with inject_faults(cloud, at=1, mode=PARTIAL):
        found = composition.app().table.batch_get(items)
    composition.install(composition.App(clock=cloud.clock))

    assert len(found) == 9
    assert len(list(cloud.app.table.query_all("P#partial", consistent=True))) == 9


def test_two_pollers_start_one_wave(cloud: MotoCloud) -> None:
    _, job = _running_job(cloud)
    jobs, now = cloud.app.distribution.jobs, cloud.clock()

    first = jobs.next_wave(job, now, deadline=now.timestamp() + 60)
    again = jobs.next_wave(replace(job, counts=TargetCounts(failed=7)), now, deadline=now.timestamp() + 900)

    assert (first.wave, again.wave) == (1, 1)
    assert (again.failed_before, again.deadline) == (first.failed_before, first.deadline)


def test_job_cancelled_meanwhile_starts_no_wave(cloud: MotoCloud) -> None:
    _, job = _running_job(cloud)
    jobs, now = cloud.app.distribution.jobs, cloud.clock()
    jobs.cancel(job, now, SYSTEM)

    assert jobs.next_wave(job, now, deadline=now.timestamp() + 60).wave == 0


def test_target_does_not_bind_to_a_job_cancelled_meanwhile(cloud: MotoCloud) -> None:
    fleet = Fleet(cloud)
    fleet.to_window_start()
    job = cloud.app.distribution.jobs.get(fleet.project.id, job_key(fleet.submit("a-1")["job_id"]))
    assert job
    cloud.app.distribution.jobs.cancel(job, cloud.clock(), SYSTEM)

    with pytest.raises(ConditionFailed):
        cloud.app.table.transact([still_collects(job.project_id, job.key)])


def test_two_callers_with_one_dedupe_key_get_one_request(queue: TestQueue, cloud: MotoCloud, project: Project) -> None:
    """Two callers submit with one key, first without and then with an ended request: one of them must read again."""
    key = keys.dedupe(project.id, "once")
    for held in (None, "req-1"):
        made: list[str] = []

        def make(request_id: str, write: Write, made: list[str] = made) -> Request:
            if not made:
                # The other caller has read the same, and writes first.
                cloud.app.table.write(put(key | {"request_id": "req-other"}))
            made.append(request_id)
            cloud.app.table.transact([write])
            return queue.submit()

        if held:
            cloud.app.table.write(put(key | {"request_id": held}))
        cloud.app.queue.submit_once(project.id, "once", make)

        assert len(made) == 2, "the first attempt must be refused and repeated after another read"


OF_RUNNING_JOBS: dict[str, Callable[[JobStore, Job, datetime], Job]] = {
    "shard": lambda jobs, job, now: jobs.shard(job, now, [(0, 1)], [1]),
    "sent": lambda jobs, job, now: jobs.sent(job, now, "tr-late", 7),
    "sent_as": lambda jobs, job, now: jobs.sent_as(job, now, ["tr-late"]),
    "wave_sent": lambda jobs, job, now: jobs.wave_sent(job, now),
    "next_wave": lambda jobs, job, now: jobs.next_wave(job, now, now.timestamp() + 60),
    "progress": lambda jobs, job, now: jobs.progress(job, now, replace(job, counts=TargetCounts(total=1, failed=1))),
}


@pytest.mark.parametrize("name", OF_RUNNING_JOBS)
def test_step_of_a_job_that_ended_meanwhile_changes_nothing(cloud: MotoCloud, name: str) -> None:
    """The steps that a late or repeated function takes with the Job as it was while it ran."""
    _, job = _running_job(cloud)
    table, key = cloud.app.table, keys.job(job.project_id, job.key)
    # Without what the step adds, so that only the status can refuse it.
    table.write(update(key, {"status": "Timeout"}, removes=("shard_count", "transfer_id", "wave_at")))
    before = table.get(key, consistent=True)

    OF_RUNNING_JOBS[name](cloud.app.distribution.jobs, job, cloud.clock())

    assert table.get(key, consistent=True) == before


def test_place_that_is_not_in_the_shared_lane_is_not_counted_again(queue: TestQueue) -> None:
    request = queue.submit()
    channels = queue.cloud.app.queue.channel_store
    before = channels.standing(request.channel, request.project_id)
    # The own lane has no place of it either, so that only the shared one can refuse.
    moved = replace(request, priority=request.priority + 1)

    assert not queue.cloud.app.queue.store.move_to_project_lane(moved)
    assert channels.standing(request.channel, request.project_id) == before


def test_place_at_slow_host_is_taken_once_while_circuit_closed(cloud: MotoCloud, project: Project) -> None:
    store, key = CircuitStore(cloud.app.table), keys.circuit(project.id, "slow.example")
    cloud.app.table.write(update(key, {"open_until": 100}, condition=""))

    assert not store.claim_place(project.id, "slow.example", 0, 99, 130), "the circuit is open"
    assert store.claim_place(project.id, "slow.example", 0, 101, 130)
    assert not store.claim_place(project.id, "slow.example", 0, 102, 140), "another call has it"
    assert store.claim_place(project.id, "slow.example", 1, 102, 140)
    assert store.claim_place(project.id, "slow.example", 0, 131, 160), "that call was given up"


def test_download_of_an_older_version_does_not_describe_the_newer_one(cloud: MotoCloud, project: Project) -> None:
    store, url = cloud.app.ingest.store, "http://127.0.0.1:9/a"
    body = {"name": "daily", "source_url": "http://127.0.0.1:9/list.json"}
    made = cloud.http("POST", "/v1/subscriptions", json=body, key=project.key).json()
    subscription = store.get(project.id, made["subscription_id"])
    assert subscription
    cloud.app.table.transact(store.seen_writes(subscription, Entry(url, "/a", "a", "2")))
    key = keys.manifest_entry(project.id, subscription.subscription_id, url)
    stored = cloud.app.table.get(key, consistent=True)
    assert stored

    store.fetched(project.id, subscription.subscription_id, url, "1", FileVersion('"old"', 3))
    assert cloud.app.table.get(key, consistent=True) == stored
    store.fetched(project.id, subscription.subscription_id, url, stored["fingerprint"], FileVersion('"new"', 4))
    assert (cloud.app.table.get(key, consistent=True) or {})["etag"] == '"new"'


def test_two_callers_of_an_idle_host_get_different_times(cloud: MotoCloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other caller reserves after this one has found that nobody has, and before it writes."""
    table, now = cloud.app.table, cloud.clock().timestamp()
    usage, write, others = HostUsage(table, cloud.clock), table.try_write, list[float | None]()

    def raced(*writes: Write) -> bool:
        monkeypatch.undo()
        others.append(usage.reserve("192.0.2.1", 2.0, now, now + 60))
        return write(*writes)

    monkeypatch.setattr(table, "try_write", raced)
    mine = usage.reserve("192.0.2.1", 2.0, now, now + 60)

    assert others == [now]
    assert mine == pytest.approx(now + 2.0, abs=0.001)
