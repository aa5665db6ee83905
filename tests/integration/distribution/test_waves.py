"""A Job goes to few hosts first, and on only if they fared well."""

from __future__ import annotations

from typing import Any

import pytest

from tests.faults.weather import remove_expired
from tests.support.fleet import Fleet

HOSTS = [f"h-{number:02}" for number in range(20)]
WAVES = [{"percent": 10, "wait_s": 60}, {"percent": 50, "max_failed_percent": 20}]


def submit(fleet: Fleet, waves: list[dict[str, Any]] = WAVES, hosts: list[str] = HOSTS) -> str:
    job_id = str(fleet.submit_many(hosts, waves=waves)["job_id"])
    fleet.run_until_dispatched(job_id)
    return job_id


def asked(fleet: Fleet) -> list[str]:
    return [host for host in HOSTS if list(fleet.cloud.app.distribution.inbox.inbox(fleet.project.id, host))]


def answer(fleet: Fleet, hosts: list[str], code: int = 0) -> None:
    for host in hosts:
        fleet.report(host, code)


def poll(fleet: Fleet, job_id: str) -> str:
    return str(fleet.step("poll_transfer", job_id)["state"])


def test_first_wave_goes_to_its_share_only(fleet: Fleet) -> None:
    job_id = submit(fleet)

    assert len(asked(fleet)) == 2
    shown = fleet.job(job_id)
    assert [wave["targets"] for wave in shown["waves"]] == [2, 8, 10]
    assert shown["wave"] == 1


def test_next_wave_follows_after_the_wait_and_the_rest_at_last(fleet: Fleet) -> None:
    job_id = submit(fleet)
    answer(fleet, asked(fleet))
    assert poll(fleet, job_id) == "running"

    fleet.cloud.clock.advance(61)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    second = asked(fleet)
    assert len(second) == 8
    assert fleet.job(job_id)["wave"] == 2

    answer(fleet, second)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    answer(fleet, asked(fleet))
    assert poll(fleet, job_id) == "over"
    fleet.step("finish_job", job_id)
    assert fleet.job(job_id)["counts"]["success"] == 20


def test_poll_whose_answer_was_lost_begins_the_wave_again(fleet: Fleet) -> None:
    """Step Functions then invokes it once more, and sends the wave only if that one says so."""
    job_id = submit(fleet)
    answer(fleet, asked(fleet))
    fleet.cloud.clock.advance(61)
    assert poll(fleet, job_id) == "next_wave"

    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)

    assert len(asked(fleet)) == 8
    assert poll(fleet, job_id) == "running"


def test_wave_that_fails_stops_the_job_and_says_so(fleet: Fleet) -> None:
    job_id = submit(fleet)
    answer(fleet, asked(fleet)[:1], code=5)

    told = fleet.step("poll_transfer", job_id)
    assert (told["state"], told["error"]["Error"]) == ("refused", "WaveFailed")
    assert "wave 1 of 3 failed: 1 of its 2 targets" in told["error"]["Cause"]
    fleet.step("finish_job", job_id, error=told["error"])

    job = fleet.job(job_id)
    assert (job["status"], job["error"]["code"]) == ("Failed", "wave_failed")
    assert job["counts"]["failed"] == 1
    assert job["counts"]["cancelled"] == 19
    assert sorted(set(fleet.states(job_id).values())) == ["Cancelled", "Failed"]
    assert asked(fleet) == []


def test_wave_with_few_failures_goes_on(fleet: Fleet) -> None:
    job_id = submit(fleet, [{"percent": 50, "max_failed_percent": 20}])
    first = asked(fleet)
    answer(fleet, first[:2], code=5)
    answer(fleet, first[2:])

    assert poll(fleet, job_id) == "next_wave"


def test_hosts_that_never_answer_count_as_failed_at_the_waves_deadline(fleet: Fleet) -> None:
    job_id = submit(fleet)
    answer(fleet, asked(fleet)[:1])
    assert poll(fleet, job_id) == "running"

    fleet.cloud.clock.advance(700)
    assert "1 of its 2 targets" in fleet.step("poll_transfer", job_id)["error"]["Cause"]


def test_each_wave_has_the_whole_time_of_a_job(fleet: Fleet) -> None:
    job_id = submit(fleet, [{"percent": 10, "wait_s": 500}])
    answer(fleet, asked(fleet))
    fleet.cloud.clock.advance(590)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)

    fleet.cloud.clock.advance(300)

    assert len(asked(fleet)) == 18
    assert poll(fleet, job_id) == "running"


def test_wait_longer_than_a_job_lasts_keeps_job_and_tasks(fleet: Fleet) -> None:
    made = fleet.submit_many(HOSTS, waves=[{"percent": 10, "wait_s": 3600}], callback="http://127.0.0.1:9/told")
    job_id = made["job_id"]
    fleet.run_until_dispatched(job_id)
    answer(fleet, asked(fleet))
    for _ in range(3):
        fleet.cloud.clock.advance(1195)
        remove_expired(fleet.cloud)
        assert poll(fleet, job_id) == "running"
    fleet.cloud.clock.advance(30)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)
    answer(fleet, asked(fleet))
    assert poll(fleet, job_id) == "over"
    fleet.step("finish_job", job_id)

    remove_expired(fleet.cloud)
    assert (fleet.job(job_id)["status"], fleet.job(job_id)["counts"]["success"]) == ("Success", 20)
    assert {fleet.task(task["task_id"])["status"] for task in made["tasks"]} == {"Success"}
    assert set(fleet.states(job_id).values()) == {"Success"}


def test_late_host_of_an_earlier_wave_neither_stops_nor_delays_the_next(fleet: Fleet) -> None:
    job_id = submit(fleet, [{"percent": 20, "max_failed_percent": 50}, {"percent": 50}])
    answer(fleet, asked(fleet)[:-1])
    fleet.cloud.clock.advance(601)
    assert poll(fleet, job_id) == "next_wave"
    fleet.step("dispatch_transfer", job_id)

    answer(fleet, [host for host in asked(fleet) if fleet.inbox(host)])

    assert poll(fleet, job_id) == "next_wave"


def test_repeated_dispatch_of_a_wave_sends_nothing_twice(fleet: Fleet) -> None:
    job_id = submit(fleet)
    first = asked(fleet)

    fleet.step("dispatch_transfer", job_id)

    assert asked(fleet) == first


@pytest.mark.parametrize(
    "waves",
    [[], [{"percent": 0}], [{"percent": 10}, {"percent": 10}], [{"percent": 50}, {"percent": 5}], [{"wait_s": 1}]],
)
def test_waves_that_do_not_rise_are_refused(fleet: Fleet, waves: list[dict[str, Any]]) -> None:
    body = fleet.body(targets=[{"agent_id": "a"}], waves=waves)

    assert fleet.post("/v1/downloads/batch", body).status == 422


def test_one_target_is_the_first_wave(fleet: Fleet) -> None:
    job_id = submit(fleet, hosts=["h-00"])
    answer(fleet, ["h-00"])

    assert poll(fleet, job_id) == "over"
