"""Tasks, Jobs and targets as callers see them. A Task costs at most three reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidegate.aws.table import unknown_cursor
from tidegate.common.ids import Clock
from tidegate.common.sequences import Listed
from tidegate.distribution.fleet import FleetStore
from tidegate.distribution.model import (
    OFFLINE,
    PENDING,
    RUNNING,
    SUPERSEDED,
    Job,
    TargetCounts,
    TargetState,
    Task,
    job_key,
    job_key_of,
    task_uuid_of,
    why_silent,
)
from tidegate.distribution.store import JobStore, TargetStore, TaskStore, outcome, shard_number, task_view
from tidegate.errors import RecordNotFound

Record = dict[str, Any]
# A list returns what it found after this many pages, with a cursor to continue from.
_PAGES = 10
_PAGE = 100

# A list of targets returns what it found after this many shards (of up to 500 targets), with a cursor.
_SHARDS = 40

# Targets on one page of a map: some hundred kilobytes.
_MAPPED = 20_000


@dataclass(frozen=True, slots=True)
class TargetMap:
    """Targets for the console's map. `states` has one letter for each name.

    Pending W, Running R, Success S, Failed F, Timeout T, Cancelled C, Superseded N (newer content)."""

    names: Sequence[str]
    states: str
    next_shard: int | None


class Lookup:
    def __init__(
        self, jobs: JobStore, tasks: TaskStore, targets: TargetStore, fleet: FleetStore | None, clock: Clock
    ) -> None:
        self._jobs = jobs
        self._fleet = fleet
        self._clock = clock
        self._tasks = tasks
        self._targets = targets

    def task(self, project_id: str, given: str) -> Record:
        uuid = task_uuid_of(given)
        task = self._tasks.get(project_id, uuid) if uuid else None
        job = self._jobs.get(project_id, job_key(task.job_id)) if task else None
        if task is None or job is None or (":" in given and not job.spec.is_task_id(given, task.uuid)):
            raise RecordNotFound(
                f"no Task {given} was found: check its id, and note that Tasks are deleted some time after they end"
            )
        number = shard_number(task, job)
        return task_view(task, job, self._targets.one_shard(job, number) if number is not None else None)

    def tasks_by_id(self, project_id: str, given: Sequence[str]) -> dict[str, Record]:
        """The Tasks among these ids, by id. A hundred ids cost three reads."""
        uuids = {one: uuid for one in given if (uuid := task_uuid_of(one))}
        tasks = self._tasks.get_many(project_id, dict.fromkeys(uuids.values()), consistent=True)
        records = self._task_views(project_id, tasks)
        found = {task.uuid: record for task, record in zip(tasks, records, strict=True) if record}
        by_id = {one: found[uuid] for one, uuid in uuids.items() if uuid in found}
        return {one: record for one, record in by_id.items() if ":" not in one or one == record["task_id"]}

    def tasks(
        self, project_id: str, job: str | None, status: str | None, limit: int, cursor: str | None
    ) -> Listed[Record]:
        key = job_key_of(job) if job else None
        found: list[tuple[Task, Record]] = []
        for number in range(_PAGES):
            page = self._tasks.list(project_id, key, _PAGE if status or number else limit + 1, cursor)
            views = zip(page.items, self._task_views(project_id, page.items), strict=True)
            # Tasks outlive their Job, and are listed as long as it is there.
            found += [(task, each) for task, each in views if each and status in (None, each["status"])]
            cursor = page.next_cursor
            if len(found) > limit:
                cursor = self._tasks.cursor_after(found[limit - 1][0])
                break
            if cursor is None:
                break
        return Listed([record for _, record in found[:limit]], cursor)

    def _task_views(self, project_id: str, tasks: Sequence[Task]) -> list[Record]:
        """The Tasks as callers see them. Returns {} for a Task whose Job has expired."""
        if not tasks:
            return []
        jobs = self._jobs.get_many(project_id, [job_key(task.job_id) for task in tasks], consistent=True)
        homes = [(task, jobs.get(job_key(task.job_id))) for task in tasks]
        places = [(job, n) for task, job in homes if job and (n := shard_number(task, job)) is not None]
        shards = self._targets.shards_of_jobs(places)
        records: list[Record] = []
        for task, job in homes:
            if job is None:
                records.append({})
                continue
            number = shard_number(task, job)
            records.append(task_view(task, job, shards.get((job.key, number)) if number is not None else None))
        return records

    def job(self, project_id: str, given: str) -> Record:
        job = self._job(project_id, given)
        return job.view(self._counts(job))

    def jobs_by_id(self, project_id: str, given: Sequence[str]) -> dict[str, Record]:
        """The Jobs among these ids, by id, with one read for each hundred. Counts of a collecting Job are not read."""
        found = self._jobs.get_many(project_id, [job_key_of(one) for one in given], consistent=True)
        return {one: job.view() for one in given if (job := found.get(job_key_of(one)))}

    def jobs(
        self,
        project_id: str,
        limit: int,
        cursor: str | None,
        *,
        file_path: str | None = None,
        **given: int | str | None,
    ) -> Listed[Record]:
        wanted = {name: value for name, value in given.items() if value is not None}
        biz_id, app_id = wanted.get("biz_id"), wanted.get("app_id")
        place = None
        if file_path is not None and isinstance(biz_id, int) and isinstance(app_id, int):
            place = (biz_id, app_id, file_path)
            wanted = {name: value for name, value in wanted.items() if name == "status"}
        elif file_path is not None:
            wanted["file_path"] = file_path
        page = self._jobs.list(project_id, place, limit, cursor, **wanted)
        return Listed([job.view() for job in page.items], page.next_cursor)

    def targets(
        self, project_id: str, given: str, status: str | None, limit: int, cursor: str | None
    ) -> Listed[Record]:
        """The targets, shard by shard, sorted within a shard. The cursor is `shard.index`.

        `status`: only targets with this status; None: all targets."""
        job = self._job(project_id, given)
        first, place = _position(cursor)
        found: list[tuple[str, Record]] = []
        for number in range(first, first + _SHARDS):
            states = self._states(job, number)
            if states is None:
                return Listed(self._with_agent_state(job, [record for _, record in found]), None)
            for index, (target, state) in list(enumerate(sorted(states.items())))[place:]:
                shown = {"status": PENDING} if job.shard_count is None else outcome(job, state)
                if status is None or shown["status"] == status:
                    record = {"agent_id": target.agent_id, "container_id": target.container_id, **shown}
                    found.append((f"{number}.{index + 1}", record))
            if len(found) > limit:
                break
            place = 0
        after = found[limit - 1][0] if len(found) > limit else f"{first + _SHARDS}.0"
        return Listed(self._with_agent_state(job, [record for _, record in found[:limit]]), after)

    def map(self, project_id: str, given: str, first: int) -> TargetMap:
        """The names and states of some thousand targets, from shard `first` on, for the console's map."""
        job = self._job(project_id, given)
        names: list[str] = []
        states: list[str] = []
        number = first
        while len(names) < _MAPPED and (found := self._states(job, number)) is not None:
            for target, state in sorted(found.items()):
                names.append(f"{target.agent_id} {target.container_id}" if target.container_id else target.agent_id)
                states.append(_letter(job, state))
            number += 1
        more = job.shard_count is not None and number < job.shard_count
        return TargetMap(names, "".join(states), number if more else None)

    def _with_agent_state(self, job: Job, rows: list[Record]) -> list[Record]:
        """For each target without a report, adds whether its host is online."""
        silent = [row for row in rows if row["status"] in (PENDING, RUNNING) and row.get("error_code") is None]
        if not silent or self._fleet is None:
            return rows
        agents = self._fleet.get_many(job.project_id, [row["agent_id"] for row in silent])
        now = self._clock()
        for row in silent:
            agent = agents.get(row["agent_id"])
            row["agent_state"] = agent.state(now) if agent else OFFLINE
            if row["status"] == RUNNING or agent is None:
                row["error_msg"] = why_silent(agent, now)
        return rows

    def _states(self, job: Job, number: int) -> dict[Any, TargetState] | None:
        if job.shard_count is None:
            waiting = {arrival.target: TargetState() for arrival in self._targets.collected(job.project_id, job.key)}
            return waiting if number == 0 else None
        if number >= job.shard_count:
            return None
        shard = self._targets.one_shard(job, number)
        return dict(shard.states) if shard else {}

    def _job(self, project_id: str, given: str) -> Job:
        return self._jobs.require(project_id, job_key_of(given), named=given)

    def _counts(self, job: Job) -> TargetCounts:
        if job.shard_count is not None:
            return job.counts
        return TargetCounts(total=len({arrival.target for arrival in self._targets.collected(job.project_id, job.key)}))


def _letter(job: Job, state: TargetState) -> str:
    """The map's letter for a target. A target that has not started is waiting (W), as in the Job's counts."""
    if job.shard_count is None:
        return "W"
    status = str(outcome(job, state)["status"])
    if status == SUPERSEDED:
        return "N"
    return "W" if status == RUNNING and state.code is None else status[0]


def _position(cursor: str | None) -> tuple[int, int]:
    number, dot, place = (cursor or "0.0").partition(".")
    if not dot or not number.isdecimal() or not place.isdecimal() or len(number + place) > 12:
        raise unknown_cursor()
    return int(number), int(place)
