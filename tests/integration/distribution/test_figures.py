"""Figures of a transfer (bytes, speed, times), from the agent's report to the Job's view."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fleet import Fleet

FIGURES: dict[str, Any] = {
    "size": 10_000,
    "speed": 5_000,
    "start_time": "2026-11-16T12:00:00.000Z",
    "end_time": "2026-11-16T12:00:02.000Z",
}


def test_figures_of_an_agent_are_shown_with_its_target_and_task(fleet: Fleet) -> None:
    submitted = fleet.submit("a-1")
    fleet.submit("a-2")
    fleet.run_until_dispatched(submitted["job_id"])
    assert fleet.report("a-1", 0, **FIGURES).status == 200
    fleet.report("a-2", 115, progress=20)
    fleet.step("poll_transfer", submitted["job_id"])

    targets = fleet.get(f"/v1/jobs/{fleet.job(submitted['job_id'])['key']}/targets")["items"]

    by_agent = {target["agent_id"]: target for target in targets}
    assert {name: by_agent["a-1"][name] for name in FIGURES} == FIGURES
    assert by_agent["a-2"].get("speed") is None
    assert fleet.task(submitted["task_id"])["speed"] == 5_000


@pytest.mark.parametrize(
    "wrong",
    [{"size": -1}, {"speed": 2**60}, {"speed": "fast"}, {"start_time": "yesterday"}, {"end_time": "2026-11-16"}],
)
def test_malformed_figures_are_422(fleet: Fleet, wrong: dict[str, Any]) -> None:
    fleet.run_until_dispatched(fleet.submit("a-1")["job_id"])

    answer = fleet.report("a-1", 0, **wrong)

    assert answer.status == 422


def test_rate_limit_is_shown_to_hosts_and_in_the_job(fleet: Fleet) -> None:
    limited = fleet.submit("a-1", limit_rate=500_000)
    free = fleet.submit("a-1")
    assert limited["job_id"] != free["job_id"], "a different limit needs a different Job"

    fleet.run_until_dispatched(limited["job_id"])

    assert [item["limit_rate"] for item in fleet.inbox("a-1")] == [500_000]
    assert fleet.job(limited["job_id"])["limit_rate"] == 500_000


def test_rate_limit_below_a_kilobyte_is_422(fleet: Fleet) -> None:
    body = fleet.body(target_agent_id="a-1", limit_rate=10)

    assert fleet.post("/v1/downloads", body).status == 422
