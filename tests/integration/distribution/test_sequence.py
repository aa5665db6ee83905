"""The sequence of a path on hosts rises with every Job, even if clocks differ."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.support.calls import count_calls
from tests.support.fleet import Fleet, collect, messages
from tidegate.aws import keys
from tidegate.distribution import submit
from tidegate.distribution.model import Target, TransferSpec, job_key
from tidegate.errors import Busy


def sequence_of(fleet: Fleet, job_key: str) -> int:
    item = fleet.cloud.app.table.get(keys.job(fleet.project.id, job_key))
    assert item
    return int(item["sequence"])


def sequences(fleet: Fleet, agent_id: str = "a-1") -> list[tuple[str, int]]:
    return [(item["signature"], item["sequence"]) for item in fleet.inbox(agent_id)]


def test_sequence_rises_by_window_and_orders_the_inbox(fleet: Fleet) -> None:
    old, new = fleet.signature, fleet.store(b"newer")
    wanted = []
    for number in range(8):
        signature = (old, new)[number % 2]
        job_id = fleet.submit("a-1", file_signature=signature)["job_id"]
        fleet.run_until_dispatched(job_id)
        wanted.append(signature)

    listed = sequences(fleet)

    assert [signature for signature, _ in listed] == wanted
    assert [sequence for _, sequence in listed] == sorted({sequence for _, sequence in listed})


def test_contents_of_one_window_are_ordered_by_submit(fleet: Fleet) -> None:
    fleet.to_window_start()
    new = fleet.store(b"newer")
    first = fleet.submit("a-1")["job_id"]
    second = fleet.submit("a-1", file_signature=new)["job_id"]
    fleet.run_until_dispatched(second)
    for name in ("close_window", "prepare_file", "dispatch_transfer"):
        fleet.step(name, first)

    assert [signature for signature, _ in sequences(fleet)] == [fleet.signature, new]
    assert len({sequence for _, sequence in sequences(fleet)}) == 2


@pytest.mark.parametrize("slow", [timedelta(seconds=40), timedelta(hours=2)])
def test_function_with_slow_clock_still_gives_higher_sequence(fleet: Fleet, slow: timedelta) -> None:
    new = fleet.store(b"newer")
    clock = fleet.cloud.clock
    fleet.submit("a-1")
    clock.move_to(clock() - slow)
    fleet.submit("a-1", file_signature=new)

    jobs = {job["file_signature"]: sequence_of(fleet, job["key"]) for job in fleet.get("/v1/jobs")["items"]}

    assert jobs[new] > jobs[fleet.signature]


def test_other_spelling_and_other_source_path_share_one_sequence(fleet: Fleet) -> None:
    """The target path counts, not the path in the library: two files may go to the same target path."""
    clock = fleet.cloud.clock
    fleet.submit("a-1", target_file_dir="/opt/app")
    clock.move_to(clock() - timedelta(minutes=5))
    fleet.submit("a-1", target_file_dir="/opt//app/", file_path="/data/other.bin")

    by_dir = {job["target_file_dir"]: sequence_of(fleet, job["key"]) for job in fleet.get("/v1/jobs")["items"]}

    assert by_dir["/opt//app/"] > by_dir["/opt/app"]


def test_late_target_keeps_the_sequence_of_its_first_job(fleet: Fleet) -> None:
    """v1 was submitted first, but its message arrived last: in its later Job it is still older than v2."""
    fleet.to_window_start()
    new = fleet.store(b"newer")
    messages(fleet)  # of earlier tests
    late = fleet.submit("a-1")
    (record,) = messages(fleet)
    fleet.pass_window()
    fleet.step("close_window", late["job_id"])
    newer = fleet.submit("a-1", file_signature=new)["job_id"]
    fleet.submit("a-2")
    collect(fleet, [record])
    home = fleet.task(late["task_id"])["job_id"]
    assert home != late["job_id"]
    fleet.run_until_dispatched(newer)
    for name in ("close_window", "prepare_file", "dispatch_transfer"):
        fleet.step(name, home)

    assert [signature for signature, _ in sequences(fleet)] == [fleet.signature, new]
    (_, of_new), (_, of_other) = sequences(fleet)[-1], *sequences(fleet, "a-2")
    assert of_other > of_new, "a target submitted in this window has this window's sequence"


def test_late_target_submitted_again_gets_the_new_sequence(fleet: Fleet) -> None:
    fleet.to_window_start()
    messages(fleet)  # of earlier tests
    late = fleet.submit("a-1")
    (record,) = messages(fleet)
    fleet.pass_window()
    fleet.step("close_window", late["job_id"])
    again = fleet.submit("a-1")["job_id"]
    collect(fleet, [record])
    fleet.run_until_dispatched(again)

    ((_, sequence),) = sequences(fleet)
    assert sequence == sequence_of(fleet, fleet.job(again)["key"])


def test_joining_a_job_from_a_cold_function_costs_no_read(fleet: Fleet) -> None:
    app, spec = fleet.cloud.app, TransferSpec(**fleet.body())
    submit.submit(app.distribution, fleet.project.id, spec, [Target("a-0")])
    app.distribution.known_jobs.clear()
    with count_calls(app) as calls:
        submit.submit(app.distribution, fleet.project.id, spec, [Target("a-1")])
    assert calls == {"dynamodb.TransactWriteItems": 1, "dynamodb.BatchWriteItem": 1, "sqs.SendMessageBatch": 1}


def test_concurrently_opened_job_is_joined(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    app, spec = fleet.cloud.app, TransferSpec(**fleet.body())
    submit.submit(app.distribution, fleet.project.id, spec, [Target("a-0")])
    app.distribution.known_jobs.clear()

    def conflict(*_: object, **__: object) -> None:
        raise Busy("the record is being changed by many at once")

    monkeypatch.setattr(app.table, "transact", conflict)
    submitted = submit.submit(app.distribution, fleet.project.id, spec, [Target("a-1")])

    assert len(fleet.get("/v1/jobs")["items"]) == 1
    assert submitted.job.spec == spec


def test_mode_makes_a_separate_job_and_reaches_the_agent(fleet: Fleet) -> None:
    fleet.to_window_start()
    plain = fleet.submit("a-1")["job_id"]
    private = fleet.submit("a-2", mode="640")["job_id"]
    fleet.run_until_dispatched(private)

    assert plain != private
    assert fleet.job(private)["mode"] == "0640"
    assert [item["mode"] for item in fleet.inbox("a-2")] == ["0640"]


@pytest.mark.parametrize("mode", ["4755", "0o640", "rw-r--r--", "0888", "", "64", "00640", 640])
def test_malformed_mode_is_422(fleet: Fleet, mode: object) -> None:
    answer = fleet.post("/v1/downloads", fleet.body(target_agent_id="a-1", mode=mode))

    assert answer.status == 422
    assert answer.json()["errors"][0]["loc"][-1] == "mode"


def contents_in_one_window(fleet: Fleet, *contents: bytes) -> list[dict[str, Any]]:
    """Requests these contents for one path, one after another."""
    fleet.to_window_start()
    made = []
    for content in contents:
        made.append(fleet.submit("a-1", file_signature=fleet.store(content)))
        fleet.cloud.clock.advance(0.5)
    return made


def order_on_host(fleet: Fleet, *job_ids: str) -> list[str]:
    """The Jobs of the host's inbox, by their sequences."""
    for job_id in dict.fromkeys(job_ids):
        fleet.run_until_dispatched(job_id)
    found = sorted(fleet.inbox("a-1"), key=lambda item: item["sequence"])
    assert len({item["sequence"] for item in found}) == len(found)
    return [item["job_id"] for item in found]


@pytest.mark.parametrize("late", [False, True])
def test_last_of_three_requests_in_one_window_wins(fleet: Fleet, late: bool) -> None:
    first, second, third = contents_in_one_window(fleet, b"v1", b"v2", b"v1")
    assert first["job_id"] == third["job_id"] != second["job_id"]
    if not late:
        fleet.collect()

    assert order_on_host(fleet, first["job_id"], second["job_id"])[-1] == first["job_id"]


def test_first_request_does_not_win_because_it_is_collected_last(fleet: Fleet) -> None:
    first, second = contents_in_one_window(fleet, b"v1", b"v2")
    records = messages(fleet)
    collect(fleet, records[1:])
    collect(fleet, records[:1])

    assert order_on_host(fleet, second["job_id"], first["job_id"]) == [first["job_id"], second["job_id"]]


def test_repeated_request_without_other_content_keeps_the_sequence(fleet: Fleet) -> None:
    first, second = contents_in_one_window(fleet, b"v1", b"v1")
    assert first["job_id"] == second["job_id"]
    fleet.run_until_dispatched(first["job_id"])

    job = fleet.cloud.app.distribution.jobs.require(fleet.project.id, job_key(first["job_id"]))
    assert [item["sequence"] for item in fleet.inbox("a-1")] == [job.sequence]
    assert not fleet.cloud.app.distribution.targets.shards(job, [0])[0].sequences


def test_third_request_that_comes_late_still_wins(fleet: Fleet) -> None:
    """Its message is delivered after the window has closed. The first Job has the host, but sent v1 before v2."""
    first, second, third = contents_in_one_window(fleet, b"v1", b"v2", b"v1")
    records = messages(fleet)
    collect(fleet, records[:2])
    assert order_on_host(fleet, first["job_id"], second["job_id"]) == [first["job_id"], second["job_id"]]
    collect(fleet, records[2:])
    moved = fleet.task(third["task_id"])["job_id"]

    assert moved not in (first["job_id"], second["job_id"])
    assert order_on_host(fleet, moved)[-1] == moved


def test_late_repeat_without_other_content_between_joins_its_job(fleet: Fleet) -> None:
    first, again, other = contents_in_one_window(fleet, b"v1", b"v1", b"v2")
    records = messages(fleet)
    collect(fleet, [records[0], records[2]])
    order_on_host(fleet, first["job_id"], other["job_id"])

    collect(fleet, records[1:2])

    assert fleet.task(again["task_id"])["job_id"] == first["job_id"]
