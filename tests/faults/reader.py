"""A caller who reads every record all the time, while eventually consistent reads return earlier states.

What it was shown must stay true: an ended record does not change any more, a list shows what the record's own route
shows in every field that both have, and counts add up: a Job's to its targets, a batch's to its items, a channel's to
the requests in it. A release's counts are those of its hosts, no host goes to a lower revision, and none is shown to
have one that was withdrawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aws_lambda_powertools.event_handler.api_gateway import BaseRouter

from tests.faults.injection import Calls
from tests.support.moto.cloud import MotoCloud, Project, load_function
from tidegate.distribution.model import ENDED
from tidegate.queue.model import WAITING

_OF_REQUESTS = frozenset({"completed", "failed", "cancelled"})


class Kind(NamedTuple):
    """How the records of one kind are listed and read; `ended` are the states that never change."""

    name: str
    listed_at: str
    shown_at: str
    id_field: str
    ended: frozenset[str] = frozenset()
    status_field: str = "status"
    # Fields whose present value only the record's own route has, and those that a list has exactly once it has ended.
    own: frozenset[str] = frozenset()
    exact_at_end: frozenset[str] = frozenset()


KINDS = (
    Kind("Task", "/v1/downloads", "/v1/downloads/{}", "task_id", ENDED),
    Kind("Job", "/v1/jobs", "/v1/jobs/{}", "key", ENDED, exact_at_end=frozenset({"counts"})),
    Kind("request", "/v1/queue", "/v1/requests/{}", "request_id", _OF_REQUESTS),
    Kind("export", "/v1/tasks", "/v1/task?task_id={}", "task_id", _OF_REQUESTS),
    # A stopped batch can be started again.
    Kind("batch", "/v1/batches", "/v1/batches/{}", "batch_id", frozenset({"finished"})),
    Kind("file", "/v1/files", "/v1/files/{}", "file_id", frozenset({"ready", "failed"}), "state"),
    Kind(
        "callback",
        "/v1/callbacks",
        "/v1/callbacks/{}",
        "delivery_id",
        frozenset({"delivered"}),
        "callback_state",
        own=frozenset({"body"}),
    ),
    Kind("subscription", "/v1/subscriptions", "/v1/subscriptions/{}", "subscription_id"),
    Kind("export schedule", "/v1/export-schedules", "/v1/export-schedules/{}", "schedule_id", status_field=""),
    Kind("batch schedule", "/v1/batch-schedules", "/v1/batch-schedules/{}", "schedule_id", status_field=""),
    Kind("business", "/v1/biz", "/v1/biz/{}", "biz_id", status_field=""),
    Kind("host", "/v1/agents", "/v1/agents/{}", "agent_id", status_field="state", own=frozenset({"current", "peers"})),
)
# A revision that has passed, or was taken back, is so for good.
RELEASE = Kind(
    "release",
    "/v1/releases",
    "/v1/releases/{}",
    "name",
    frozenset({"converged", "failed", "rolled_back"}),
    # A list has the counts of the last look at the roll-out.
    own=frozenset({"counts"}),
)
AT_THE_END = "at the end"
_OF_BATCHES = frozenset({"finished", "stopped"})


@dataclass
class Reader:
    """Reads after every `every`-th write of the functions. What it read wrong is in `wrong`: a caller does not stop."""

    cloud: MotoCloud
    calls: Calls
    every: int = 1
    projects: list[Project] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    reads: int = 0
    # Paths that were refused, because the caller's key has ended.
    refused: list[str] = field(default_factory=list)
    _writes: int = 0
    _ended: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    # By project and release, and by host of it: the highest revision that was shown.
    _highest: dict[tuple[str, ...], int] = field(default_factory=dict)

    def after_write(self, name: str) -> None:
        self._writes += 1
        # Not from a thread that the function waits for: its own thread holds the lock.
        if self._writes % self.every == 0 and self.calls.one_at_a_time.acquire(blocking=False):
            try:
                with _request_kept():
                    self.read(f"after {name}")
            finally:
                self.calls.one_at_a_time.release()

    def read(self, when: str) -> None:
        """Reads all records of all projects, with stale reads; the queue also as it is."""
        with self.calls.reads_as_caller(stale=True):
            for project in self.projects:
                self._read(project, when)
            self._check_queue(when, stale=True)
        with self.calls.reads_as_caller(stale=False):
            self._check_queue(when, stale=False)

    def _read(self, project: Project, when: str) -> None:
        tasks: dict[tuple[str, str], str] = {}
        for kind in KINDS:
            for listed in self._items(project, kind.listed_at):
                shown = self._agreed(project, kind, listed, when)
                if shown is None:
                    continue
                if kind.name == "Task":
                    tasks[shown["job_id"], shown["target_agent_id"]] = str(shown["status"])
                if kind.name == "Job":
                    self._check_job(project, shown, tasks, when)
                if kind.name == "batch":
                    self._check_batch(project, shown, when)
                if kind.name == "subscription":
                    self._check_subscription(project, shown, when)
        for listed in self._items(project, RELEASE.listed_at):
            if self._agreed(project, RELEASE, listed, when, f"{listed['name']} revision {listed['revision']}"):
                self._check_release(project, f"/v1/releases/{listed['name']}", when)

    def _agreed(
        self, project: Project, kind: Kind, listed: dict[str, Any], when: str, named: str = ""
    ) -> dict[str, Any] | None:
        """The record as its own route shows it, which must be as the list shows it. None if it is gone."""
        found = str(listed[kind.id_field]).rsplit(":", 1)[-1]
        path = kind.shown_at.format(found)
        shown = self._get(project, path)
        if shown is None:
            return None
        if kind.status_field:
            self._note(kind, named or found, str(shown[kind.status_field]), when)
        if different := _different(kind, listed, shown):
            # Threads of the function may have written between the two reads, or the clock may have moved.
            again = [one for one in self._items(project, kind.listed_at) if one[kind.id_field] == listed[kind.id_field]]
            shown = self._get(project, path)
            if shown is None or not again:
                return None
            if different := _different(kind, again[0], shown):
                said = {name: (again[0][name], shown[name]) for name in different}
                self.wrong.append(f"{when}: {kind.name} {found} differs in its list and its own route: {said}")
        return shown

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

    def _check_batch(self, project: Project, batch: dict[str, Any], when: str) -> None:
        path, progress = f"/v1/batches/{batch['batch_id']}", batch["progress"]
        parts = (progress["succeeded"], progress["failed"], progress["abandoned"])
        whole = progress["processed"] - batch.get("start_index", 0)
        total = progress.get("total")
        if (
            min(*parts, progress["retrying"], progress["awaiting"]) < 0
            or sum(parts) != whole
            or progress["errors"] != progress["failed"] + progress["abandoned"]
            or (total is not None and progress["processed"] > total)
        ):
            self.wrong.append(f"{when}: the counts of {path} do not add up: {progress}")
        self._rises((project.id, path, "processed"), progress["processed"], when)
        if batch["status"] in _OF_BATCHES:
            items = Counter(item["state"] for item in self._items(project, f"{path}/items"))
            if any(items[name] != progress[name] for name in ("failed", "abandoned")):
                self.wrong.append(f"{when}: {path} is {batch['status']} with {progress}, its items are {items}")

    def _check_subscription(self, project: Project, subscription: dict[str, Any], when: str) -> None:
        requests = KINDS[2]._replace(listed_at=f"/v1/subscriptions/{subscription['subscription_id']}/tasks")
        for listed in self._items(project, requests.listed_at):
            self._agreed(project, requests, listed, when)

    def _check_queue(self, when: str, *, stale: bool) -> None:
        """What the channels count is what callers see in their lists. A stale list may lack the newest requests."""
        if not self.projects:
            return
        before, refused = self._get(self.projects[0], "/v1/queue/stats"), len(self.refused)
        listed = [one for project in self.projects for one in self._items(project, "/v1/queue")]
        # Without a key, a caller does not see its requests. A thread of the function may have written meanwhile.
        if before is None or len(self.refused) > refused or self._get(self.projects[0], "/v1/queue/stats") != before:
            return
        running = Counter(one["channel"] for one in listed if one["status"] == "running")
        waiting = Counter(one["channel"] for one in listed if one["status"] in WAITING)
        for name, channel in before["channels"].items():
            counted = f"{when}: channel {name} counts {channel}"
            # A batch with several runners takes several places, and a leaked place is given back after a while.
            at_the_end = when == AT_THE_END and bool(channel["running"]) != bool(running[name])
            if not running[name] <= channel["running"] <= channel["capacity"] or at_the_end:
                self.wrong.append(f"{counted}, {running[name]} requests run in it")
            if waiting[name] > channel["queued"] or (waiting[name] < channel["queued"] and not stale):
                self.wrong.append(f"{counted}, {waiting[name]} requests wait in it")

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
        self._rises((project.id, path), before["revision"], when)
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
            if answer.status == 401:
                self.refused.append(path)
            if answer.status not in (401, 404):
                self.wrong.append(f"{path} answers {answer.status}: {answer.body!r}")
            return None
        found: dict[str, Any] = answer.json()
        return found


def _different(kind: Kind, listed: dict[str, Any], shown: dict[str, Any]) -> list[str]:
    """Names of the fields that both have, with other values."""
    compared = listed.keys() & shown.keys() - kind.own
    if kind.exact_at_end and shown[kind.status_field] not in kind.ended:
        compared -= kind.exact_at_end
    return sorted(name for name in compared if listed[name] != shown[name])


@contextmanager
def _request_kept() -> Iterator[None]:
    """Powertools keeps the present request in its resolvers: a read within one would take its place."""
    resolvers = [load_function(name).api for name in ("api", "submit")]
    kept = [dict(resolver.context) for resolver in resolvers]
    before = {name: getattr(BaseRouter, name, None) for name in ("current_event", "lambda_context")}
    try:
        yield
    finally:
        for resolver, context in zip(resolvers, kept, strict=True):
            resolver.context.update(context)
        for name, value in before.items():
            setattr(BaseRouter, name, value)
