"""At the edge of a window no target is lost and none is sent twice."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from tests.support import sample
from tests.support.fleet import Fleet, collect, messages
from tidegate.aws import keys
from tidegate.aws.table import delete
from tidegate.distribution import submit, window
from tidegate.distribution.model import Arrival, Job, Target, TransferSpec, job_key
from tidegate.distribution.submit import TargetMessage


def spec_of(fleet: Fleet) -> TransferSpec:
    body = fleet.body()
    return TransferSpec(**body)


def test_late_target_moves_to_a_later_job_with_its_task(fleet: Fleet) -> None:
    early, late = fleet.submit("a-1"), fleet.submit("a-2")
    first, second = messages(fleet)
    collect(fleet, [first])
    fleet.pass_window()
    fleet.step("close_window", early["job_id"])
    assert fleet.task(late["task_id"])["status"] == "Pending"

    collect(fleet, [second])

    moved = fleet.task(late["task_id"])
    assert moved["job_id"] != late["job_id"]
    assert fleet.task(early["task_id"])["job_id"] == early["job_id"]
    assert fleet.states(early["job_id"]) == {"a-1": "Running"}
    assert fleet.states(moved["job_id"]) == {"a-2": "Pending"}
    listed = fleet.get("/v1/downloads", job_id=moved["job_id"])["items"]
    assert [task["task_id"] for task in listed] == [late["task_id"]]


def test_message_repeated_after_the_close_binds_nothing_twice(fleet: Fleet) -> None:
    task = fleet.submit("a-1")
    records = messages(fleet)
    collect(fleet, records)
    fleet.pass_window()
    fleet.step("close_window", task["job_id"])

    collect(fleet, records)

    assert fleet.task(task["task_id"])["job_id"] == task["job_id"]
    assert len(fleet.get("/v1/jobs")["items"]) == 1


def test_late_message_delivered_twice_moves_its_target_once(fleet: Fleet) -> None:
    task = fleet.submit("a-1")
    records = messages(fleet)
    fleet.pass_window()
    fleet.step("close_window", task["job_id"])
    collect(fleet, records)
    home = fleet.task(task["task_id"])["job_id"]
    fleet.pass_window()
    fleet.step("close_window", home)

    collect(fleet, records)

    assert fleet.task(task["task_id"])["job_id"] == home
    assert fleet.job(home)["counts"]["total"] == 1
    assert len(fleet.get("/v1/jobs")["items"]) == 2


def test_late_task_of_a_bound_target_stays_in_its_job(fleet: Fleet) -> None:
    in_time, late = fleet.submit("a-1"), fleet.submit("a-1")
    first, second = messages(fleet)
    collect(fleet, [first])
    fleet.pass_window()
    fleet.step("close_window", in_time["job_id"])

    collect(fleet, [second])

    assert fleet.task(late["task_id"])["job_id"] == in_time["job_id"]
    assert fleet.task(late["task_id"])["status"] == "Running"


def test_late_task_of_an_ended_target_is_not_pending(fleet: Fleet) -> None:
    in_time, late = fleet.submit("a-1"), fleet.submit("a-1")
    first, second = messages(fleet)
    collect(fleet, [first])
    fleet.run_until_dispatched(in_time["job_id"])
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", in_time["job_id"])
    assert fleet.step("finish_job", in_time["job_id"])["state"] == "ended"
    assert fleet.task(late["task_id"])["status"] == "Success"

    collect(fleet, [second])

    assert fleet.task(late["task_id"])["status"] == "Success"
    assert len(fleet.get("/v1/jobs")["items"]) == 1


def test_message_repeated_in_another_batch_overwrites_no_chunk(fleet: Fleet) -> None:
    """The two chunks begin with the same Task and have the same length."""
    job = fleet.submit("a-1")["job_id"]
    fleet.submit("a-2")
    fleet.submit("a-3")
    first, second, third = messages(fleet)
    collect(fleet, [first, second])

    collect(fleet, [first, third])

    assert fleet.states(job) == {"a-1": "Pending", "a-2": "Pending", "a-3": "Pending"}
    fleet.pass_window()
    fleet.step("close_window", job)
    assert fleet.job(job)["counts"]["total"] == 3


def test_only_the_unreadable_message_is_reported_as_failed(fleet: Fleet) -> None:
    fleet.submit("a-1")
    (good,) = messages(fleet)
    bad = {**good, "messageId": "bad", "body": json.dumps({"job_id": 3})}
    answer = fleet.cloud.invoke("collect_targets", {"Records": [bad, good]})
    assert answer == {"batchItemFailures": [{"itemIdentifier": "bad"}]}


def test_failed_messages_are_visible_again_within_seconds(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQS alone would hide them for three minutes. Other Jobs of the batch are not affected."""
    lost, good = fleet.submit("a-1"), fleet.submit("a-2", file_path="/data/other.bin")
    failing, other = messages(fleet)
    targets, sqs = fleet.cloud.app.distribution.targets, fleet.cloud.app.sqs
    bind, pauses = targets.bind, list[int]()

    def throttled(project_id: str, key: str, *more: Any) -> Any:
        if key == job_key(lost["job_id"]):
            raise RuntimeError("throttled")
        return bind(project_id, key, *more)

    def note(params: Any, **_: Any) -> None:
        pauses.extend(entry["VisibilityTimeout"] for entry in json.loads(params["body"])["Entries"])

    monkeypatch.setattr(targets, "bind", throttled)
    sqs.meta.events.register("before-call.sqs.ChangeMessageVisibilityBatch", note)
    for count in (1, 2, 4):
        record = failing | {"attributes": {"ApproximateReceiveCount": str(count)}}
        answer = fleet.cloud.invoke("collect_targets", {"Records": [record, other]})
        assert answer == {"batchItemFailures": [{"itemIdentifier": failing["messageId"]}]}
    sqs.meta.events.unregister("before-call.sqs.ChangeMessageVisibilityBatch", note)

    assert pauses == [3, 6, 24]
    assert fleet.states(good["job_id"]) == {"a-2": "Pending"}


class Held:
    """A queue whose messages the test delivers later."""

    def __init__(self) -> None:
        self.messages: list[TargetMessage] = []

    def send(self, job: Job, arrivals: Sequence[Arrival], callback: str | None, new: object = None, *, at: str) -> None:
        number = str(len(self.messages))
        self.messages.append(TargetMessage(number, job.project_id, job.job_id, arrivals, job.spec, job.sequence))


@pytest.mark.slow
def test_submits_around_a_window_edge_are_each_delivered_once(fleet: Fleet) -> None:
    """Collectors are delayed at random. Every Task ends, all targets are in Jobs, and none is dispatched twice."""
    rng, many = random.Random(7), sample.count(1000, 250)
    app, clock, windows = fleet.cloud.app, fleet.cloud.clock, fleet.cloud.app.distribution.windows
    spec = spec_of(fleet)
    edge = clock() + timedelta(seconds=windows.seconds)
    offsets = sorted(rng.uniform(-0.1, 0.1) for _ in range(many))
    queue: Any = Held()
    app.distribution.target_messages = queue
    tasks: dict[str, str] = {}
    for number, offset in enumerate(offsets):
        clock.move_to(edge + timedelta(seconds=offset))
        submitted = submit.submit(app.distribution, fleet.project.id, spec, [Target(f"a-{number}")])
        tasks[submitted.tasks[0].uuid] = f"a-{number}"
    waiting = queue.messages
    rng.shuffle(waiting)

    dispatched: Counter[str] = Counter()
    done: set[str] = set()
    for _ in range(40):
        some = waiting[: rng.randint(0, many // 3)]
        waiting = waiting[len(some) :]
        assert window.collect(app.distribution, some) == []
        clock.advance(rng.uniform(1, windows.seconds))
        for job in fleet.get("/v1/jobs", limit=100)["items"]:
            if job["job_id"] in done or job["window_closes_at"] > clock().isoformat():
                continue
            for name in ("close_window", "prepare_file", "dispatch_transfer"):
                fleet.step(name, job["job_id"])
            dispatched.update(fleet.deliver_all(job["job_id"]))
            fleet.step("poll_transfer", job["job_id"])
            assert fleet.step("finish_job", job["job_id"])["state"] == "ended"
            done.add(job["job_id"])
        if not waiting and len(done) == len(fleet.get("/v1/jobs", limit=100)["items"]):
            break

    jobs = fleet.get("/v1/jobs", limit=100)["items"]
    assert len(jobs) > 2, "some collectors must be late"
    assert sum(job["counts"]["total"] for job in jobs) == many
    assert set(dispatched.values()) == {1}
    assert set(dispatched) == set(tasks.values())
    seen = app.distribution.lookup._task_views(
        fleet.project.id, app.distribution.tasks.get_many(fleet.project.id, tasks)
    )
    assert {task["task_id"].rsplit(":", 1)[1]: task["status"] for task in seen} == dict.fromkeys(tasks, "Success")


@pytest.mark.parametrize("why", ["closed", "cancelled", "expired"])
def test_late_targets_beyond_one_transaction_all_move(fleet: Fleet, why: str) -> None:
    """A transaction moves 90; whichever way they became late, none of 200 is dropped."""
    names = [f"a-{number:03d}" for number in range(200)]
    app, project = fleet.cloud.app, fleet.project
    fleet.to_window_start()
    if why == "cancelled":
        first = fleet.submit("early")
        collect(fleet, messages(fleet))
        assert fleet.post(f"/v1/jobs/{job_key(first['job_id'])}/cancel", {}).status == 202
        fleet.cloud.clock.advance(0.5)
    submitted = fleet.submit_many(names)
    late = messages(fleet)
    fleet.pass_window()
    if why == "expired":
        app.table.write(delete(keys.job(project.id, job_key(submitted["job_id"]))))
    else:
        fleet.step("close_window", submitted["job_id"])

    collect(fleet, late)

    tasks = [fleet.task(task["task_id"]) for task in submitted["tasks"]]
    assert {task["status"] for task in tasks} == {"Pending"}
    found: dict[str, str] = {}
    for job_id in {task["job_id"] for task in tasks}:
        found |= fleet.states(job_id)
    assert sorted(found) == names
    assert submitted["job_id"] not in {task["job_id"] for task in tasks}
