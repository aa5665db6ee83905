"""Submits whose queue fails, and messages that arrive after their Job has expired."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.faults.conditions import remove_expired
from tests.support.fleet import Fleet, messages
from tests.support.moto.cloud import MotoCloud
from tidegate.aws import keys
from tidegate.aws.clients import SqsQueue
from tidegate.aws.table import delete
from tidegate.common.ids import iso
from tidegate.distribution import submit
from tidegate.distribution.model import Target, TransferSpec, job_key
from tidegate.distribution.store import TargetStore, TaskStore
from tidegate.notifications.notices import Notice


@pytest.fixture
def fleet(cloud: MotoCloud) -> Fleet:
    made = Fleet(cloud)
    made.to_window_start()
    return made


def _fail(*_: object, **__: object) -> Any:
    raise ClientError({"Error": {"Code": "ServiceUnavailable", "Message": "no"}}, "SendMessageBatch")


def test_submit_binds_directly_if_the_queue_fails(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqsQueue, "send", _fail)
    made = fleet.submit("a-1")
    fleet.run_until_dispatched(made["job_id"])
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", made["job_id"])
    fleet.step("finish_job", made["job_id"])

    assert fleet.task(made["task_id"])["status"] == "Success"
    assert fleet.job(made["job_id"])["counts"]["total"] == 1


def test_failed_submit_leaves_no_task(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SqsQueue, "send", _fail)
    monkeypatch.setattr(TargetStore, "bind", _fail)

    answer = fleet.post("/v1/downloads", fleet.body(target_agent_id="a-1"))

    assert answer.status >= 500
    assert fleet.get("/v1/downloads")["items"] == []


@pytest.mark.parametrize("task_expires", [True, False])
def test_redriven_targets_whose_job_expired_are_delivered(fleet: Fleet, task_expires: bool) -> None:
    made = fleet.submit_many(["a-1", "a-2"])
    records = messages(fleet)
    fleet.cloud.clock.advance(2 * 24 * 3600)
    if task_expires:
        remove_expired(fleet.cloud)
    else:
        job = fleet.cloud.app.distribution.jobs
        table, key = fleet.cloud.app.table, fleet.job(made["job_id"])["key"]
        table.write(delete(keys.job(fleet.project.id, key)))
        assert job.get(fleet.project.id, key) is None
    fleet.to_window_start()

    answer = fleet.cloud.invoke("collect_targets", {"Records": records})

    assert answer == {"batchItemFailures": []}
    tasks = [fleet.task(task["task_id"]) for task in made["tasks"]]
    (home,) = {task["job_id"] for task in tasks}
    assert home != made["job_id"]
    assert fleet.job(home)["counts"]["total"] == 2
    # A repeated redrive changes nothing.
    fleet.cloud.invoke("collect_targets", {"Records": records})
    assert fleet.job(home)["counts"]["total"] == 2
    fleet.run_until_dispatched(home)
    for agent in ("a-1", "a-2"):
        fleet.report(agent, 0)
    fleet.step("poll_transfer", home)
    assert fleet.step("finish_job", home)["state"] == "ended"
    assert {fleet.task(task["task_id"])["status"] for task in made["tasks"]} == {"Success"}


def cancelled_and_expired(fleet: Fleet, *, task_expires: bool) -> tuple[dict[str, Any], list[Any]]:
    """A cancelled Job that has expired, and the messages of its targets, which were dead letters meanwhile."""
    made = fleet.submit_many(["a-1", "a-2"])
    records = messages(fleet)
    fleet.cloud.clock.advance(1)
    key = fleet.job(made["job_id"])["key"]
    assert fleet.post(f"/v1/jobs/{key}/cancel", {}).status in (200, 202)
    fleet.cloud.clock.advance(13 * 24 * 3600)
    if task_expires:
        remove_expired(fleet.cloud)
    else:
        fleet.cloud.app.table.write(delete(keys.job(fleet.project.id, key)))
    fleet.to_window_start()
    return made, records


@pytest.mark.parametrize("version", ["now", "without a time"])
@pytest.mark.parametrize("task_expires", [True, False])
def test_redriven_targets_of_a_cancelled_job_are_dropped(fleet: Fleet, task_expires: bool, version: str) -> None:
    import json

    _, records = cancelled_and_expired(fleet, task_expires=task_expires)
    if version == "without a time":
        bodies = [json.loads(record["body"]) for record in records]
        for record, body in zip(records, bodies, strict=True):
            del body["at"]
            record["body"] = json.dumps(body)

    assert fleet.cloud.invoke("collect_targets", {"Records": records}) == {"batchItemFailures": []}

    assert fleet.get("/v1/jobs")["items"] == []


def test_redriven_targets_submitted_after_the_cancel_are_delivered(fleet: Fleet) -> None:
    import json

    made, (record,) = cancelled_and_expired(fleet, task_expires=True)
    later = json.loads(record["body"]) | {"at": iso(fleet.cloud.clock())}

    answer = fleet.cloud.invoke("collect_targets", {"Records": [{**record, "body": json.dumps(later)}]})

    assert answer == {"batchItemFailures": []}
    (home,) = {fleet.task(task["task_id"])["job_id"] for task in made["tasks"]}
    assert fleet.job(home)["counts"]["total"] == 2


def test_redriven_targets_are_delivered_if_only_their_tasks_expired(fleet: Fleet) -> None:
    """TTL may delete an item up to 48 hours late, so the Job may outlive its Tasks."""
    made = fleet.submit_many(["a-1", "a-2"])
    records = messages(fleet)
    fleet.pass_window()
    for step in ("close_window", "finish_job"):
        fleet.step(step, made["job_id"])
    records += messages(fleet)
    fleet.cloud.clock.advance(2 * 24 * 3600)
    uuids = [task["task_id"].rsplit(":", 1)[-1] for task in made["tasks"]]
    fleet.cloud.app.table.batch_delete(keys.task(fleet.project.id, uuid) for uuid in uuids)
    fleet.to_window_start()

    for _ in range(2):
        assert fleet.cloud.invoke("collect_targets", {"Records": records}) == {"batchItemFailures": []}

    (home,) = {fleet.task(task["task_id"])["job_id"] for task in made["tasks"]}
    assert home != made["job_id"]
    _run_to_the_end(fleet, home, ["a-1", "a-2"])
    assert {fleet.task(task["task_id"])["status"] for task in made["tasks"]} == {"Success"}


def test_late_message_of_a_submit_that_failed_binds_nothing(fleet: Fleet) -> None:
    """Its Tasks were deleted, and the caller was told that nothing was accepted."""
    made = fleet.submit("a-1")
    records = messages(fleet)
    fleet.cloud.app.table.batch_delete([keys.task(fleet.project.id, made["task_id"].rsplit(":", 1)[-1])])
    fleet.pass_window()
    fleet.step("close_window", made["job_id"])

    assert fleet.cloud.invoke("collect_targets", {"Records": records}) == {"batchItemFailures": []}

    assert len(fleet.get("/v1/jobs")["items"]) == 1


def test_redriven_message_of_an_earlier_version_stays_a_dead_letter(fleet: Fleet) -> None:
    import json

    fleet.submit("a-1")
    (record,) = messages(fleet)
    body = json.loads(record["body"])
    old = {name: body[name] for name in ("project_id", "job_id", "targets")}
    fleet.cloud.clock.advance(2 * 24 * 3600)
    remove_expired(fleet.cloud)

    answer = fleet.cloud.invoke("collect_targets", {"Records": [{**record, "body": json.dumps(old)}]})

    assert [one["itemIdentifier"] for one in answer["batchItemFailures"]] == [record["messageId"]]


def test_large_submit_binds_directly_if_the_queue_fails(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, collect_targets writes the Tasks; without the queue, the submit writes them."""
    monkeypatch.setattr("tidegate.distribution.submit.TASKS_A_SUBMIT", 2)
    first = fleet.submit("a-0")
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(first["job_id"]))
    assert job is not None
    monkeypatch.setattr(SqsQueue, "send", _fail)
    targets = [Target(f"a-{number}", "") for number in range(1, 6)]

    submitted = submit.submit(fleet.cloud.app.distribution, fleet.project.id, job.spec, targets)

    listed = fleet.get("/v1/downloads", job_id=submitted.job.job_id)["items"]
    assert {task["target_agent_id"] for task in listed} >= {target.agent_id for target in targets}
    fleet.run_until_dispatched(submitted.job.job_id)
    assert fleet.job(submitted.job.job_id)["counts"]["total"] >= 5


def test_failed_large_submit_leaves_no_task(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidegate.distribution.submit.TASKS_A_SUBMIT", 2)
    first = fleet.submit("a-0")
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(first["job_id"]))
    assert job is not None
    monkeypatch.setattr(SqsQueue, "send", _fail)
    monkeypatch.setattr(TargetStore, "bind", _fail)

    with pytest.raises(ClientError):
        submit.submit(
            fleet.cloud.app.distribution,
            fleet.project.id,
            job.spec,
            [Target(f"a-{number}", "") for number in range(1, 6)],
        )

    assert [task["target_agent_id"] for task in fleet.get("/v1/downloads")["items"]] == ["a-0"]


def test_tasks_of_a_large_submit_are_written_in_parallel(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch may bring 40,000 Tasks: 400 transactions of 100 ms would take longer than the function has."""
    monkeypatch.setattr("tidegate.distribution.submit.TASKS_A_SUBMIT", 2)
    monkeypatch.setattr("tidegate.distribution.submit._TARGETS_A_MESSAGE", 1)
    job = fleet.cloud.app.distribution.jobs.get(fleet.project.id, job_key(fleet.submit("a-0")["job_id"]))
    assert job is not None
    targets = [Target(f"a-{number}", "") for number in range(1, 5)]
    submit.submit(fleet.cloud.app.distribution, fleet.project.id, job.spec, targets)
    all_writing = threading.Barrier(len(targets), timeout=5)
    write = TaskStore.add_missing

    def writes_beside_the_others(*given: Any) -> None:
        all_writing.wait()
        write(*given)

    monkeypatch.setattr(TaskStore, "add_missing", writes_beside_the_others)

    assert fleet.cloud.invoke("collect_targets", {"Records": messages(fleet)}) == {"batchItemFailures": []}
    listed = fleet.get("/v1/downloads", job_id=job.job_id)["items"]
    assert {task["target_agent_id"] for task in listed} == {"a-0", *(target.agent_id for target in targets)}


class Killed(BaseException):
    """The function is killed, as by AWS at its time-out: no exception handler runs."""


def _killed(*_: object, **__: object) -> Any:
    raise Killed


@pytest.mark.parametrize("alone", [True, False])
def test_tasks_of_a_killed_submit_are_delivered_in_a_later_window(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    distribution, spec = fleet.cloud.app.distribution, TransferSpec(**fleet.body())
    with monkeypatch.context() as patched:
        patched.setattr(SqsQueue, "send", _killed)
        with pytest.raises(Killed):
            submit.submit(distribution, fleet.project.id, spec, [Target("a-1"), Target("a-2", "c-1")])
    (job_id,) = {task["job_id"] for task in _tasks(fleet)}
    if not alone:
        fleet.submit("a-0")
    _run_to_the_end(fleet, job_id, [] if alone else ["a-0"])
    fleet.collect()

    tasks = {task["target_agent_id"]: task for task in _tasks(fleet)}
    homes = {name: task["job_id"] for name, task in tasks.items()}
    assert homes["a-1"] == homes["a-2"] != job_id
    _run_to_the_end(fleet, homes["a-1"], ["a-1", "a-2"])
    assert {task["status"] for task in _tasks(fleet)} == {"Success"}
    assert fleet.job(homes["a-1"])["counts"]["total"] == 2


def test_callback_of_a_killed_submit_for_a_bound_target_is_published(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[str] = []

    def publish(notices: Sequence[Notice]) -> list[Notice]:
        published.extend(notice.record_id for notice in notices)
        return list(notices)

    monkeypatch.setattr(fleet.cloud.app.notifications.topic, "publish", publish)
    distribution, spec = fleet.cloud.app.distribution, TransferSpec(**fleet.body())
    with monkeypatch.context() as patched:
        patched.setattr(SqsQueue, "send", _killed)
        with pytest.raises(Killed):
            submit.submit(distribution, fleet.project.id, spec, [Target("a-1")], "http://127.0.0.1:9/told")
    (lost,) = _tasks(fleet)
    fleet.submit("a-1")
    _run_to_the_end(fleet, lost["job_id"], ["a-1"])
    fleet.collect()
    fleet.step("finish_job", lost["job_id"])

    assert lost["task_id"] in published


def test_finish_sends_nothing_if_all_tasks_arrived(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = fleet.submit_many(["a-1", "a-2"])["job_id"]
    fleet.run_until_dispatched(job_id)
    for agent in ("a-1", "a-2"):
        fleet.report(agent, 0)
    fleet.step("poll_transfer", job_id)
    monkeypatch.setattr(SqsQueue, "send", _fail)

    assert fleet.step("finish_job", job_id)["state"] == "ended"


def test_finish_sends_nothing_for_a_late_task_that_shares_a_target(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = fleet.submit("a-1")["job_id"]
    in_time = messages(fleet)
    fleet.submit("a-1", callback="http://127.0.0.1:9/told")
    late = messages(fleet)
    fleet.cloud.invoke("collect_targets", {"Records": in_time})
    fleet.pass_window()
    fleet.step("close_window", job_id)
    fleet.cloud.invoke("collect_targets", {"Records": late})
    fleet.step("prepare_file", job_id)
    fleet.step("dispatch_transfer", job_id)
    fleet.report("a-1", 0)
    fleet.step("poll_transfer", job_id)
    monkeypatch.setattr(SqsQueue, "send", _fail)

    assert fleet.step("finish_job", job_id)["state"] == "ended"


def _tasks(fleet: Fleet) -> list[dict[str, Any]]:
    return list(fleet.get("/v1/downloads")["items"])


def _run_to_the_end(fleet: Fleet, job_id: str, agents: list[str]) -> None:
    fleet.collect()
    fleet.pass_window()
    fleet.step("close_window", job_id)
    if agents:
        assert fleet.step("prepare_file", job_id)["state"] == "ready"
        assert fleet.step("dispatch_transfer", job_id)["state"] == "dispatched"
    for agent in agents:
        fleet.report(agent, 0)
    fleet.step("poll_transfer", job_id)
    assert fleet.step("finish_job", job_id)["state"] == "ended"
