"""A file goes to three hosts: one is requested twice, some too late for the window. Agents fetch it and report."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tests.faults.sweep import Scenario
from tests.faults.world import World
from tests.support.moto.cloud import Answer, Project
from tidegate.files.library import Announcement, new_file
from tidegate.files.model import READY, content_object
from tidegate.projects.audit import SYSTEM, act

CONTENT = b"to many hosts at once"
SHA = hashlib.sha256(CONTENT).hexdigest()
OVER = {"Success", "Failed", "Timeout"}
EARLY = ("a1", "a2", "a2")
LATE = ("a3", "a1")


# Returns what an agent reports about a transfer; None for nothing yet.
Report = Callable[[str, dict[str, Any]], dict[str, Any] | None]


def done(_name: str, _item: dict[str, Any]) -> dict[str, Any]:
    return {"error_code": 0}


class Agents:
    """The agents of all hosts, as the API sees them: they read their inboxes and report success, or `report`."""

    def __init__(
        self, world: World, project: Project, names: Iterable[str] = (*EARLY, *LATE), report: Report = done
    ) -> None:
        self._world = world
        self._report = report
        with world.calls.without_faults():
            self._keys = {name: project.agent_key(name) for name in dict.fromkeys(names)}
        self.got: dict[str, set[str]] = defaultdict(set)
        self._turn = 0

    def work(self) -> None:
        """Works at every second call, because reading empty inboxes more often would only add calls."""
        self._turn += 1
        if self._turn % 2:
            return
        for name, key in self._keys.items():
            can = {"x-tidegate-can": "stage"}
            inbox = self._world.try_ask("GET", f"/v1/agents/{name}/transfers?wait=0", key=key, headers=can)
            items = inbox.json()["items"] if inbox and inbox.status == 200 else []
            self.got[name] |= {item["transfer_id"] for item in items}
            results = [
                {"transfer_id": item["transfer_id"], "container_id": item["container_id"], **result}
                for item in items
                if (result := self._report(name, item)) is not None
            ]
            if results:
                self._world.try_ask("POST", f"/v1/agents/{name}/results", key=key, json={"items": results})


def stored_file(world: World, project: Project) -> None:
    cloud = world.cloud
    with world.calls.without_faults():
        file = new_file(project.id, Announcement(1, 1, "/f", None, SHA, len(CONTENT)), READY, cloud.clock())
        world.put_object(content_object(project.id, SHA), CONTENT)
        cloud.app.files.store.add(file, act(project.id, file.file_id, cloud.clock(), SYSTEM, "file.create"))
        cloud.app.table.transact(cloud.app.files.store._content_writes(file))


def run(world: World) -> None:
    project = world.new_project()
    stored_file(world, project)
    agents = Agents(world, project)
    world.cloud.while_waiting.append(agents.work)
    with world.cloud.windows_stay_open():
        tasks = [_submit(world, project, agent) for agent in EARLY]
        world.deliver_all()
        world.held.add("TargetsQueue")
        tasks += [_submit(world, project, agent) for agent in LATE]
    world.wait_for_machines(seconds=3, strict=False)
    world.held.clear()

    world.settle(lambda: all(task_of(world, project, task)["status"] in OVER for task in tasks))

    seen = [task_of(world, project, task) for task in tasks]
    assert [one["status"] for one in seen] == ["Success"] * len(tasks), seen
    jobs = {one["job_id"] for one in seen}
    listed = world.ask("GET", "/v1/jobs", key=project.key).json()["items"]
    assert jobs <= {job["job_id"] for job in listed}
    targets = {(one["job_id"], one["target_agent_id"]) for one in seen}
    # A submit whose answer was lost was repeated, with its Idempotency-Key: all Tasks and targets are known.
    assert sum(job["counts"]["total"] for job in listed) == len(targets), (listed, targets)
    every = world.ask("GET", "/v1/downloads?limit=100", key=project.key).json()["items"]
    assert sorted(one["task_id"].rsplit(":", 1)[-1] for one in every) == sorted(tasks), every
    # Each agent got one transfer for each of its Jobs: nothing was dispatched twice.
    for agent, transfers in agents.got.items():
        known = len({job for job, target in targets if target == agent})
        assert len(transfers) == known, agents.got
    world.settle(lambda: jobs <= world.notified())


def post_batch(world: World, project: Project, names: Iterable[str], **more: Any) -> Answer:
    body: dict[str, Any] = {"biz_id": 1, "app_id": 1, "file_path": "/f", "file_name": "f", "file_signature": SHA}
    body |= {"target_user": "root", "target_file_dir": "/data", "targets": [{"agent_id": name} for name in names]}
    return world.ask("POST", "/v1/downloads/batch", key=project.key, json=body | more)


def submit_all(world: World, project: Project, names: Iterable[str], **more: Any) -> tuple[str, list[str]]:
    """Returns the Job and the uuids of its Tasks, as the caller got them."""
    with world.cloud.windows_stay_open():
        return accepted(post_batch(world, project, names, **more))


def accepted(answer: Answer) -> tuple[str, list[str]]:
    assert answer.status == 202, answer.body
    tasks = [str(task["task_id"]).rsplit(":", 1)[-1] for task in answer.json()["tasks"]]
    return str(answer.json()["job_id"]), tasks


def _submit(world: World, project: Project, agent: str) -> str:
    body: dict[str, Any] = {"biz_id": 1, "app_id": 1, "file_path": "/f", "file_name": "f", "file_signature": SHA}
    body |= {"target_agent_id": agent, "target_user": "root", "target_file_dir": "/data"}
    made = world.ask("POST", "/v1/downloads", key=project.key, json=body)
    assert made.status == 202, made.body
    return str(made.json()["task_id"]).rsplit(":", 1)[-1]


def task_of(world: World, project: Project, task: str) -> dict[str, Any]:
    return world.shown(f"/v1/downloads/{task}", project)


SCENARIO = Scenario("distribution", run)
