"""A caller who reads every record all the time, while eventually consistent reads return earlier states.

What it was shown must stay true: an ended record does not change any more, a list shows what the record's own route
shows, and a Job's counts add up to its targets. A release's counts are those of its hosts, no host goes to a lower
revision, and none is shown to have one that was withdrawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.faults.injection import Calls
from tests.support.moto.cloud import MotoCloud, Project
from tidegate.distribution.model import ENDED

_OF_REQUESTS = frozenset({"completed", "failed", "cancelled"})


class Kind(NamedTuple):
    """How the records of one kind are listed and read; `ended` are the states that never change."""

    name: str
    listed_at: str
    shown_at: str
    id_field: str
    ended: frozenset[str]
    status_field: str = "status"


KINDS = (
    Kind("Task", "/v1/downloads", "/v1/downloads/{}", "task_id", ENDED),
    Kind("Job", "/v1/jobs", "/v1/jobs/{}", "key", ENDED),
    Kind("request", "/v1/queue", "/v1/requests/{}", "request_id", _OF_REQUESTS),
    Kind("export", "/v1/tasks", "/v1/task?task_id={}", "task_id", _OF_REQUESTS),
    # A stopped batch can be started again.
    Kind("batch", "/v1/batches", "/v1/batches/{}", "batch_id", frozenset({"finished"})),
    Kind("file", "/v1/files", "/v1/files/{}", "file_id", frozenset({"ready", "failed"}), "state"),
    Kind("callback", "/v1/callbacks", "/v1/callbacks/{}", "delivery_id", frozenset({"delivered"}), "callback_state"),
)
# A revision that has passed, or was taken back, is so for good.
RELEASE = Kind("release", "/v1/releases", "/v1/releases/{}", "name", frozenset({"converged", "failed", "rolled_back"}))


@dataclass
class Reader:
    """Reads after every `every`-th write of the functions. What it read wrong is in `wrong`: a caller does not stop."""

    cloud: MotoCloud
    calls: Calls
    every: int = 1
    projects: list[Project] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reads: int = 0
    _writes: int = 0
    _ended: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    # By project and release, and by host of it: the highest revision that was shown.
    _highest: dict[tuple[str, ...], int] = field(default_factory=dict)

    def after_write(self, name: str) -> None:
        self._writes += 1
        # Not from a thread that the function waits for: its own thread holds the lock.
        if self._writes % self.every == 0 and self.calls.one_at_a_time.acquire(blocking=False):
            try:
                self.read(f"after {name}")
            finally:
                self.calls.one_at_a_time.release()

    def read(self, when: str) -> None:
        """Reads all records of all projects, with stale reads."""
        for project in self.projects:
            with self.calls.reads_stale():
                self._read(project, when)

    def _read(self, project: Project, when: str) -> None:
        tasks: dict[tuple[str, str], str] = {}
        for kind in KINDS:
            for listed in self._items(project, kind.listed_at):
                found = str(listed[kind.id_field]).rsplit(":", 1)[-1]
                shown = self._get(project, kind.shown_at.format(found))
                if shown is None:
                    continue
                status = str(shown[kind.status_field])
                self._note(kind, found, status, when)
                if listed[kind.status_field] != status:
                    self.wrong.append(f"{when}: {kind.name} {found} is {status}, listed as {listed[kind.status_field]}")
                if kind.name == "Task":
                    tasks[shown["job_id"], shown["target_agent_id"]] = status
                if kind.name == "Job":
                    self._check_job(project, shown, tasks, when)
        for listed in self._items(project, "/v1/releases"):
            self._check_release(project, f"/v1/releases/{listed['name']}", when)

    def _note(self, kind: Kind, found: str, status: str, when: str) -> None:
        before = self._ended.get((kind.name, found))
        if before and before[0] != status:
            self.wrong.append(f"{when}: {kind.name} {found} is {status}, was {before[0]} {before[1]}")
        elif status in kind.ended:
            self._ended[kind.name, found] = (status, when)

    def _check_job(self, project: Project, job: dict[str, Any], tasks: dict[tuple[str, str], str], when: str) -> None:
        counts = {name: count for name, count in job["counts"].items() if name != "total"}
        if sum(counts.values()) != job["counts"]["total"]:
            self.wrong.append(f"{when}: the counts of Job {job['key']} do not add up: {job['counts']}")
        targets = list(self._items(project, f"/v1/jobs/{job['key']}/targets"))
        for target in targets:
            status, seen = target["status"], tasks.get((job["job_id"], target["agent_id"]))
            self._note(KINDS[0], f"{job['key']}/{target['agent_id']}", status, when)
            if seen not in (None, status):
                self.wrong.append(f"{when}: {target['agent_id']} of Job {job['key']} is {status}, its Task {seen}")
        ended = Counter(target["status"].lower() for target in targets)
        if job["status"] in ENDED and ended != Counter({name: count for name, count in counts.items() if count}):
            self.wrong.append(f"{when}: Job {job['key']} is {job['status']} with {counts}, its targets are {ended}")

    def _check_release(self, project: Project, path: str, when: str) -> None:
        before, hosts = self._get(project, path), list(self._items(project, f"{path}/hosts"))
        after = self._get(project, path)
        if before is None or after is None:
            return
        found = Counter(host["state"] for host in hosts)
        expected = Counter({name: count for name, count in before["counts"].items() if count and name != "desired"})
        # While machines wait, the clock of the tests moves, and hosts go offline.
        if before == after and found != expected:
            self.wrong.append(f"{when}: {path} counts {before['counts']}, its hosts are {found}")
        revision = before["revision"]
        self._note(RELEASE, f"{path} revision {revision}", before["status"], when)
        self._rises((project.id, path), revision, when)
        for host in hosts:
            self._rises((project.id, path, host["agent_id"]), host["revision"], when)
            if host["revision"] in after["withdrawn"] and host["state"] in ("current", "staged"):
                self.wrong.append(f"{when}: {host['agent_id']} is shown with {host['revision']}, which was withdrawn")

    def _rises(self, what: tuple[str, ...], revision: int, when: str) -> None:
        if revision < self._highest.get(what, 0):
            self.wrong.append(f"{when}: {what} went from {self._highest[what]} to {revision}")
        self._highest[what] = max(revision, self._highest.get(what, 0))

    def _items(self, project: Project, path: str) -> Iterator[dict[str, Any]]:
        cursor = ""
        while True:
            page = self._get(project, f"{path}?limit=100{cursor}")
            if page is None:
                return
            yield from page["items"]
            if not page["next_cursor"]:
                return
            cursor = f"&cursor={page['next_cursor']}"

    def _get(self, project: Project, path: str) -> dict[str, Any] | None:
        """The answer; None if the record or the key is gone."""
        self.reads += 1
        answer = self.cloud.http("GET", path, key=project.key)
        if answer.status != 200:
            # A scenario may end the caller's key.
            if answer.status not in (401, 404):
                self.wrong.append(f"{path} answers {answer.status}: {answer.body!r}")
            return None
        found: dict[str, Any] = answer.json()
        return found
