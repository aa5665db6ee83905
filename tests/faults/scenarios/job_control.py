"""Jobs in waves, Jobs that are cancelled and redriven, and Jobs whose file is fetched before its activation time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.faults.scenarios.distribution import (
    OVER,
    Agents,
    accepted,
    done,
    post_batch,
    stored_file,
    submit_all,
    task_of,
)
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tidegate.common.ids import iso
from tidegate.distribution.model import Target, job_key, wave_rank

ENDED = {*OVER, "Cancelled"}


def in_waves(world: World) -> None:
    """Three hosts in two waves: the last one gets the file after the first ones have reported success."""
    project, names = world.new_project(), sorted(("w1", "w2", "w3"), key=lambda name: wave_rank(Target(name)))
    stored_file(world, project)
    reported: set[tuple[str, str]] = set()
    early: list[str] = []

    def report(name: str, item: dict[str, Any]) -> dict[str, Any]:
        job = item["job_id"]
        early.extend(job for other in names[:2] if name == names[2] and (job, other) not in reported)
        reported.add((job, name))
        return {"error_code": 0}

    agents = Agents(world, project, names, report)
    world.cloud.while_waiting.append(agents.work)
    waves = [{"percent": 60, "wait_s": 5}, {"percent": 100}]
    _, tasks = submit_all(world, project, names, waves=waves)

    world.settle(lambda: all(task_of(world, project, task)["status"] in OVER for task in tasks))

    seen = [task_of(world, project, task) for task in tasks]
    assert [one["status"] for one in seen] == ["Success"] * len(names), seen
    # A target that came too late for its window moves to the next Job, whose first wave may have fewer hosts.
    whole = {job["job_id"] for job in _jobs(world, project.key) if job["counts"]["total"] == len(names)}
    assert not whole & set(early), "a wave was sent before the previous one had ended"
    world.settle(lambda: {one["job_id"] for one in seen} <= world.notified())


def cancelled_and_redriven(world: World) -> None:
    """One host has the file when the Job is cancelled; the other gets it through a redrive."""
    project = world.new_project()
    stored_file(world, project)
    slow_is_asleep, cancels = True, 0

    def report(name: str, item: dict[str, Any]) -> dict[str, Any] | None:
        return None if slow_is_asleep and name == "slow" else done(name, item)

    agents = Agents(world, project, ("quick", "slow"), report)
    world.cloud.while_waiting.append(agents.work)
    job, (quick, slow) = submit_all(world, project, ("quick", "slow"))
    path = f"/v1/jobs/{job_key(job)}"

    def cancel() -> None:
        nonlocal cancels
        if not cancels and task_of(world, project, quick)["status"] == "Success":
            answer = world.try_ask("POST", f"{path}/cancel", key=project.key, json={})
            cancels += answer is not None and answer.status in (202, 409)

    world.cloud.while_waiting.append(cancel)
    world.settle(lambda: all(task_of(world, project, task)["status"] in ENDED for task in (quick, slow)))
    # The function may have died after it had cancelled the Job: a caller without an answer asks again.
    cancel()
    seen = {task: task_of(world, project, task) for task in (quick, slow)}
    assert seen[quick]["status"] == "Success", seen
    # If the target came too late for its window, it is in a later Job, which was not cancelled.
    expected = {"Cancelled", "Timeout"} if seen[slow]["job_id"] == job else OVER
    assert seen[slow]["status"] in expected, seen
    assert seen[slow]["job_id"] != job or cancels, "the cancel was never answered"

    slow_is_asleep = False
    source = f"/v1/jobs/{job_key(seen[slow]['job_id'])}"
    again = world.ask("POST", f"{source}/redrive", key=project.key, json={"statuses": ["Cancelled", "Timeout"]})
    assert again.status == 202, again.body
    # As above: a target that came too late is in a later Job, with the same origin.
    origin = job_key(seen[slow]["job_id"])

    def redriven() -> list[dict[str, Any]]:
        return [one for one in _jobs(world, project.key) if one["redrive_of"] == origin]

    world.settle(lambda: sum(one["counts"]["success"] for one in redriven()) >= 1)
    world.settle(lambda: all(one["status"] in ENDED for one in redriven()))
    # Once, however often the caller asked with its Idempotency-Key.
    assert sum(one["counts"]["total"] for one in redriven()) == 1, redriven()
    assert {one["status"] for one in redriven()} == {"Success"}, redriven()
    assert task_of(world, project, slow)["status"] in expected, "an ended Task has changed"
    world.settle(lambda: {job, *(one["job_id"] for one in redriven())} <= world.notified())


def ahead_of_time(world: World) -> None:
    """Two hosts stage the file in advance, and move it into place at the activation time, not before."""
    project = world.new_project()
    stored_file(world, project)
    clock = world.cloud.clock
    fetched: list[str] = []

    def report(name: str, item: dict[str, Any]) -> dict[str, Any]:
        if clock() >= datetime.fromisoformat(item["activate_at"]):
            return {"error_code": 0}
        if not item["staged_at"]:
            fetched.append(name)
        return {"error_code": 115, "progress": 100, "staged_at": iso(clock())}

    agents = Agents(world, project, ("p1", "p2"), report)
    world.cloud.while_waiting.append(agents.work)
    with world.cloud.windows_stay_open():
        at = clock() + timedelta(seconds=90)
        answer = post_batch(world, project, ("p1", "p2"), activate_at=iso(at))
        if answer.status == 422 and world.calls.injected:
            # A function was frozen until after that time, so the caller names a later one.
            at = clock() + timedelta(seconds=90)
            answer = post_batch(world, project, ("p1", "p2"), activate_at=iso(at))
    job, tasks = accepted(answer)

    world.settle(lambda: all(task_of(world, project, task)["status"] in OVER for task in tasks))

    seen = [task_of(world, project, task) for task in tasks]
    assert [one["status"] for one in seen] == ["Success"] * 2, seen
    assert all(one["update_time"] >= iso(at) for one in seen), seen
    # A fault may last longer than the time until the activation.
    assert world.calls.injected or {"p1", "p2"} <= set(fetched), fetched
    world.settle(lambda: job in world.notified())


def _jobs(world: World, key: str) -> list[dict[str, Any]]:
    with world.calls.without_faults():
        found: list[dict[str, Any]] = world.cloud.http("GET", "/v1/jobs", key=key).json()["items"]
    return found


WAVES = Scenario("waves", in_waves)
CONTROL = Scenario("cancel and redrive", cancelled_and_redriven)
PREHEAT = Scenario("preheat", ahead_of_time)
