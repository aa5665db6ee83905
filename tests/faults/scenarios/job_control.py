"""Jobs that go in waves, are cancelled and redriven, or are fetched ahead of a named time."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from tests.faults.scenarios.distribution import OVER, Agents, done, stored_file, submit_all, task_of
from tests.faults.sweep import Scenario
from tests.faults.world import World
from tidegate.common.ids import iso
from tidegate.distribution.model import job_key
from tidegate.distribution.targets import Target, wave_rank

ENDED = {*OVER, "Cancelled"}


def in_waves(world: World) -> None:
    """Three hosts in two waves: the last one is given the file after the first ones have reported it."""
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
    # On its way to a window that closed, a target moves to the next Job, which may have fewer hosts in its first wave.
    whole = {job["job_id"] for job in _jobs(world, project.key) if job["counts"]["total"] == len(names)}
    assert not whole & set(early), "a later wave was sent before the one before it had ended"
    world.settle(lambda: {one["job_id"] for one in seen} <= world.told())


def cancelled_and_redriven(world: World) -> None:
    """One host has the file when the Job is cancelled; the other gets it by a redrive."""
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
    seen = {task: task_of(world, project, task) for task in (quick, slow)}
    assert seen[quick]["status"] == "Success", seen
    # Where its window had closed before it came, the target is in a later Job, which nobody cancelled.
    expected = {"Cancelled", "Timeout"} if seen[slow]["job_id"] == job else OVER
    assert seen[slow]["status"] in expected, seen
    assert seen[slow]["job_id"] != job or cancels, "the cancel was never answered"

    slow_is_asleep = False
    source = f"/v1/jobs/{job_key(seen[slow]['job_id'])}"
    again = world.ask("POST", f"{source}/redrive", key=project.key, json={"statuses": ["Cancelled", "Timeout"]})
    assert again.status == 202, again.body
    # As above: a target that comes when the window has closed is in a later Job, with the same origin.
    origin = job_key(seen[slow]["job_id"])

    def redriven() -> list[dict[str, Any]]:
        return [one for one in _jobs(world, project.key) if one["redrive_of"] == origin]

    world.settle(lambda: sum(one["counts"]["success"] for one in redriven()) == 1)
    world.settle(lambda: all(one["status"] in ENDED for one in redriven()))
    assert sum(one["counts"]["total"] for one in redriven()) == 1, redriven()
    assert {one["status"] for one in redriven()} == {"Success"}, redriven()
    assert task_of(world, project, slow)["status"] in expected, "what has ended stays as it is"
    world.settle(lambda: {job, *(one["job_id"] for one in redriven())} <= world.told())


def ahead_of_time(world: World) -> None:
    """Two hosts fetch the file ahead: both have it staged, and put it in place at its time and not before."""
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
    at = clock() + timedelta(seconds=90)
    job, tasks = submit_all(world, project, ("p1", "p2"), activate_at=iso(at))

    world.settle(lambda: all(task_of(world, project, task)["status"] in OVER for task in tasks))

    seen = [task_of(world, project, task) for task in tasks]
    assert [one["status"] for one in seen] == ["Success"] * 2, seen
    assert all(one["update_time"] >= iso(at) for one in seen), seen
    # What went wrong may have taken longer than the file had time.
    assert world.calls.happened or {"p1", "p2"} <= set(fetched), fetched
    world.settle(lambda: job in world.told())


def _jobs(world: World, key: str) -> list[dict[str, Any]]:
    with world.calls.uncounted():
        found: list[dict[str, Any]] = world.cloud.http("GET", "/v1/jobs", key=key).json()["items"]
    return found


WAVES = Scenario("waves", in_waves)
CONTROL = Scenario("cancel and redrive", cancelled_and_redriven)
PREHEAT = Scenario("preheat", ahead_of_time)
