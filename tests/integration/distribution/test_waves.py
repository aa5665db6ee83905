"""Waves: a Job goes to a few hosts first, and to more only if those succeed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.conditions import remove_expired
from tests.support.fleet import Fleet

HOSTS = [f"h-{number:02}" for number in range(20)]
WAVES = [{"percent": 10, "wait_s": 60}, {"percent": 50, "max_failed_percent": 20}]


def submit(fleet: Fleet, waves: list[dict[str, Any]] = WAVES, hosts: list[str] = HOSTS) -> str:
    job_id = str(fleet.submit_many(hosts, waves=waves)["job_id"])
    fleet.run_until_dispatched(job_id)
    return job_id


def with_entries(fleet: Fleet) -> list[str]:
    return [host for host in HOSTS if list(fleet.cloud.app.distribution.inbox.inbox(fleet.project.id, host))]


def report(fleet: Fleet, hosts: list[str], code: int = 0) -> None:
    for host in hosts:
        fleet.report(host, code)


def poll(fleet: Fleet, job_id: str) -> str:
    return str(fleet.step("poll_transfer", job_id)["state"])


def test_first_wave_goes_to_its_share_only(fleet: Fleet) -> None:
    job_id = submit(fleet)

    assert len(with_entries(fleet)) == 2
    shown = fleet.job(job_id)
    assert [wave["targets"] for wave in shown["waves"]] == [2, 8, 10]
    assert shown["wave"] == 1


def test_waves_follow_each_other_after_their_waits(fleet: Fleet) -> None:
    job_id = submit(fleet)
    report(fleet, with_entries(fleet))
    assert poll(fleet, job_id) == "running"

    fleet.cloud.clock.advance(61)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    second = with_entries(fleet)
    assert len(second) == 8
    assert fleet.job(job_id)["wave"] == 2

    report(fleet, second)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    report(fleet, with_entries(fleet))
    assert poll(fleet, job_id) == "over"
    fleet.step("finish_job", job_id)
    assert fleet.job(job_id)["counts"]["success"] == 20


def test_wave_is_sent_after_a_poll_with_a_lost_answer(fleet: Fleet) -> None:
    """Step Functions repeats the poll, and sends the wave only if the repeated poll returns `next_wave` too."""
    job_id = submit(fleet)
    report(fleet, with_entries(fleet))
    fleet.cloud.clock.advance(61)
    assert poll(fleet, job_id) == "next_wave"

    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)

    assert len(with_entries(fleet)) == 8
    assert poll(fleet, job_id) == "running"


def test_failed_wave_fails_the_job_with_its_reason(fleet: Fleet) -> None:
    job_id = submit(fleet)
    report(fleet, with_entries(fleet)[:1], code=5)

    result = fleet.step("poll_transfer", job_id)
    assert (result["state"], result["error"]["Error"]) == ("refused", "WaveFailed")
    assert "wave 1 of 3 failed: 1 of its 2 targets" in result["error"]["Cause"]
    fleet.step("finish_job", job_id, error=result["error"])

    job = fleet.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("Failed", "wave_failed")
    assert job["counts"]["failed"] == 1
    assert job["counts"]["cancelled"] == 19
    assert sorted(set(fleet.states(job_id).values())) == ["Cancelled", "Failed"]
    assert with_entries(fleet) == []


@pytest.mark.parametrize(("failed", "after"), [(2, "next_wave"), (3, "refused")])
def test_wave_fails_by_the_percentage_that_it_allows(fleet: Fleet, failed: int, after: str) -> None:
    job_id = submit(fleet, [{"percent": 50, "max_failed_percent": 20}])
    first = with_entries(fleet)
    report(fleet, first[:failed], code=5)
    report(fleet, first[failed:])

    assert poll(fleet, job_id) == after


def test_silent_hosts_count_as_failed_at_the_waves_deadline(fleet: Fleet) -> None:
    job_id = submit(fleet)
    report(fleet, with_entries(fleet)[:1])
    assert poll(fleet, job_id) == "running"

    fleet.cloud.clock.advance(700)
    assert "1 of its 2 targets" in fleet.step("poll_transfer", job_id)["error"]["Cause"]


def test_each_wave_has_the_full_job_timeout(fleet: Fleet) -> None:
    job_id = submit(fleet, [{"percent": 10, "wait_s": 500}])
    report(fleet, with_entries(fleet))
    fleet.cloud.clock.advance(590)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)

    fleet.cloud.clock.advance(300)

    assert len(with_entries(fleet)) == 18
    assert poll(fleet, job_id) == "running"


def test_long_wait_between_waves_keeps_job_and_tasks(fleet: Fleet) -> None:
    made = fleet.submit_many(HOSTS, waves=[{"percent": 10, "wait_s": 3600}], callback="http://127.0.0.1:9/told")
    job_id = made["job_id"]
    fleet.run_until_dispatched(job_id)
    report(fleet, with_entries(fleet))
    for _ in range(3):
        fleet.cloud.clock.advance(1195)
        remove_expired(fleet.cloud)
        assert poll(fleet, job_id) == "running"
    fleet.cloud.clock.advance(30)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    report(fleet, with_entries(fleet))
    assert poll(fleet, job_id) == "over"
    fleet.step("finish_job", job_id)

    remove_expired(fleet.cloud)
    assert (fleet.job(job_id)["status"], fleet.job(job_id)["counts"]["success"]) == ("Success", 20)
    assert {fleet.task(task["task_id"])["status"] for task in made["tasks"]} == {"Success"}
    assert set(fleet.states(job_id).values()) == {"Success"}


def test_late_host_of_an_earlier_wave_does_not_affect_the_next(fleet: Fleet) -> None:
    job_id = submit(fleet, [{"percent": 20, "max_failed_percent": 50}, {"percent": 50}])
    report(fleet, with_entries(fleet)[:-1])
    fleet.cloud.clock.advance(601)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)

    report(fleet, [host for host in with_entries(fleet) if fleet.inbox(host)])

    assert poll(fleet, job_id) == "next_wave"


def test_repeated_dispatch_of_a_wave_sends_nothing_twice(fleet: Fleet) -> None:
    job_id = submit(fleet)
    first = with_entries(fleet)

    fleet.step("dispatch_transfer", job_id)

    assert with_entries(fleet) == first


@pytest.mark.parametrize(
    "waves",
    [[], [{"percent": 0}], [{"percent": 10}, {"percent": 10}], [{"percent": 50}, {"percent": 5}], [{"wait_s": 1}]],
)
def test_waves_that_do_not_rise_are_422(fleet: Fleet, waves: list[dict[str, Any]]) -> None:
    body = fleet.body(targets=[{"agent_id": "a"}], waves=waves)

    assert fleet.post("/v1/downloads/batch", body).status == 422


def test_one_target_is_the_first_wave(fleet: Fleet) -> None:
    job_id = submit(fleet, hosts=["h-00"])
    report(fleet, ["h-00"])

    assert poll(fleet, job_id) == "over"


def test_superseded_hosts_neither_fail_nor_hold_a_wave(fleet: Fleet) -> None:
    job_id = submit(fleet, [{"percent": 10}, {"percent": 100}])
    report(fleet, with_entries(fleet), code=409)

    assert poll(fleet, job_id) == "next_wave"

    fleet.step("dispatch_transfer", job_id)
    report(fleet, with_entries(fleet))
    assert poll(fleet, job_id) == "over"
    fleet.step("finish_job", job_id)
    job = fleet.job(job_id)
    assert (job["status"], job["counts"]["success"], job["counts"]["superseded"]) == ("Success", 18, 2)
    assert job["counts"]["failed"] == 0


def fail_wave(fleet: Fleet, job_id: str) -> None:
    result = fleet.step("poll_transfer", job_id)
    assert result["error"]["Error"] == "WaveFailed"
    fleet.step("finish_job", job_id, error=result["error"])


def redrive(fleet: Fleet, job_id: str, *statuses: str) -> str:
    path = f"/v1/jobs/{fleet.job(job_id)['key']}/redrive"
    answer = fleet.cloud.http("POST", path, key=fleet.project.key, json={"statuses": list(statuses)})
    assert answer.status == 202, answer.body
    again = str(answer.json()["job_id"])
    fleet.run_until_dispatched(again)
    return again


def test_redrive_of_a_failed_wave_continues_with_that_wave(fleet: Fleet) -> None:
    job_id = submit(fleet)
    report(fleet, with_entries(fleet))
    fleet.cloud.clock.advance(61)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    second = with_entries(fleet)
    report(fleet, second[:3], code=5)
    report(fleet, second[3:])
    fail_wave(fleet, job_id)
    rest = sorted(host for host, state in fleet.states(job_id).items() if state == "Cancelled")
    assert len(rest) == 10

    again = redrive(fleet, job_id, "Failed", "Cancelled")

    assert [(wave["percent"], wave["targets"]) for wave in fleet.job(again)["waves"]] == [(50, 3), (100, 10)]
    assert with_entries(fleet) == second[:3], "the hosts on which the wave had failed go first"
    report(fleet, second[:3])
    assert poll(fleet, again) == "next_wave"
    fleet.step("dispatch_transfer", again)
    assert with_entries(fleet) == rest
    report(fleet, rest)
    assert poll(fleet, again) == "over"
    fleet.step("finish_job", again)
    assert fleet.job(again)["status"] == "Success"


def test_redrive_of_what_was_not_sent_has_no_empty_waves(fleet: Fleet) -> None:
    job_id = submit(fleet)
    report(fleet, with_entries(fleet), code=5)
    fail_wave(fleet, job_id)

    again = redrive(fleet, job_id, "Cancelled")

    assert [(wave["percent"], wave["targets"]) for wave in fleet.job(again)["waves"]] == [(50, 8), (100, 10)]
    report(fleet, with_entries(fleet), code=5)
    fail_wave(fleet, again)
    once_more = redrive(fleet, again, "Failed", "Cancelled")
    assert [wave["targets"] for wave in fleet.job(once_more)["waves"]] == [8, 10]
