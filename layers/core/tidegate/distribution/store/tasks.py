"""Tasks in the table: small, written once, and moved only together with their target."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tidegate.aws import keys
from tidegate.aws.serialization import decode_cursor, encode_cursor, unknown_cursor
from tidegate.aws.table import ConditionFailed, Table
from tidegate.aws.writes import Write, put, put_new, update
from tidegate.common.listing import Listed
from tidegate.common.slices import slices
from tidegate.distribution.model import Job, Task, job_key
from tidegate.distribution.targets import Target
from tidegate.projects.audit import AuditLine
from tidegate.projects.audit_store import audit_item

_WRITTEN_TOGETHER = 100


def task_from(item: Mapping[str, Any]) -> Task:
    return Task(
        project_id=item["project_id"],
        uuid=item["uuid"],
        job_id=item["job_id"],
        target=Target(item["agent_id"], item.get("container_id", "")),
        create_time=item["create_time"],
        update_time=item["update_time"],
        callback=item.get("callback"),
    )


def _item(task: Task, expires_at: int) -> dict[str, Any]:
    """A Task is needed until its Job has ended (for its callback and its status), but nothing rewrites all Tasks of a
    Job when it ends: `expires_at` allows for an outage, and a Task whose Job has expired is not shown any more."""
    spread = keys.task_spread(task.uuid)
    order = _order(task)
    return keys.task(task.project_id, task.uuid) | {
        "project_id": task.project_id,
        "uuid": task.uuid,
        "job_id": task.job_id,
        "agent_id": task.target.agent_id,
        "container_id": task.target.container_id or None,
        "create_time": task.create_time,
        "update_time": task.update_time,
        "callback": task.callback,
        "gsi1pk": keys.tasks_of_job(task.project_id, job_key(task.job_id), spread),
        "gsi1sk": order,
        "gsi2pk": keys.tasks_list(task.project_id, spread),
        "gsi2sk": order,
        "expires_at": expires_at,
    }


def move_task(project_id: str, uuid: str, source: Job, new_home: Job, now: str, expires_at: int) -> Write:
    """For the transaction that binds the Task's target to another Job. It fails if the Task has left `source`."""
    sets = {
        "job_id": new_home.job_id,
        "update_time": now,
        "expires_at": expires_at,
        "gsi1pk": keys.tasks_of_job(project_id, new_home.key, keys.task_spread(uuid)),
    }
    return update(keys.task(project_id, uuid), sets, condition="#job_id = :source", source=source.job_id)


def renew_task(task: Task, source_id: str, expires_at: int) -> Write:
    """As `move_task`, for a Task whose Job has expired. The Task may have expired too, so it is written as a whole."""
    unmoved = "attribute_not_exists(#pk) OR #job_id = :source"
    return put(_item(task, expires_at), unmoved, source=source_id)


class TaskStore:
    def __init__(self, table: Table) -> None:
        self._table = table

    def add(self, tasks: Sequence[Task], expires_at: int, line: AuditLine) -> None:
        """Writes the Tasks and the audit line. No transaction is needed, as the targets are queued afterwards; it would
        cost twice as much."""
        self._table.batch_put([audit_item(line), *(_item(task, expires_at) for task in tasks)])

    def take_back(self, tasks: Sequence[Task]) -> None:
        """Deletes the Tasks of a submit that failed."""
        self._table.batch_delete(keys.task(task.project_id, task.uuid) for task in tasks)

    def add_missing(self, tasks: Sequence[Task], expires_at: int) -> None:
        """Writes the Tasks that do not exist yet, a hundred in each transaction."""
        for portion in slices(tasks, _WRITTEN_TOGETHER):
            left = [*portion]
            while left:
                try:
                    self._table.transact([put_new(_item(task, expires_at)) for task in left])
                    break
                except ConditionFailed as refused:
                    left = [task for place, task in enumerate(left) if place not in refused.failed]

    def get(self, project_id: str, uuid: str) -> Task | None:
        item = self._table.get(keys.task(project_id, uuid), consistent=True)
        return task_from(item) if item else None

    def get_many(self, project_id: str, uuids: Iterable[str], *, consistent: bool = False) -> list[Task]:
        wanted = (keys.task(project_id, uuid) for uuid in uuids)
        return [task_from(item) for item in self._table.batch_get(wanted, consistent=consistent)]

    def uuids_of_job(self, job: Job) -> Iterator[str]:
        """The ids of a Job's Tasks, from an eventually consistent index."""
        for spread in range(keys.TASK_SPREAD):
            pk = keys.tasks_of_job(job.project_id, job.key, spread)
            for item in self._table.query_all(pk, index="gsi1", project=("uuid",)):
                yield item["uuid"]

    def list(self, project_id: str, job_key: str | None, limit: int, cursor: str | None) -> Listed[Task]:
        """A page of Tasks, newest first, merged from all partitions."""
        before = _position(cursor)
        index, range_name = ("gsi1", "gsi1sk") if job_key else ("gsi2", "gsi2sk")
        found: list[dict[str, Any]] = []
        for spread in range(keys.TASK_SPREAD):
            pk = keys.tasks_of_job(project_id, job_key, spread) if job_key else keys.tasks_list(project_id, spread)
            between = (" ", before) if before else None
            # One more than needed: the bound itself was on the page before.
            page = self._table.query(pk, index=index, newest_first=True, limit=limit + 1, sk_between=between)
            found += [item for item in page.items if item[range_name] != before]
        found.sort(key=lambda item: str(item[range_name]), reverse=True)
        shown = found[:limit]
        tasks = [task_from(item) for item in shown]
        return Listed(tasks, self.cursor_after(tasks[-1]) if len(found) > limit else None)

    @staticmethod
    def cursor_after(task: Task) -> str:
        return encode_cursor({"before": {"S": _order(task)}})


def _order(task: Task) -> str:
    return f"{task.create_time}#{task.uuid}"


def _position(cursor: str | None) -> str | None:
    if cursor is None:
        return None
    position = decode_cursor(cursor).get("before", {}).get("S")
    if not isinstance(position, str) or not position:
        raise unknown_cursor()
    return position
