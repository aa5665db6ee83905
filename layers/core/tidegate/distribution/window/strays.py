"""Finds Tasks whose SQS message was never sent because the submit function died after it wrote them."""

from __future__ import annotations

from collections import defaultdict

from aws_lambda_powertools import Logger

from tidegate.distribution.model import Job
from tidegate.distribution.ports import Arrival
from tidegate.distribution.store.targets import TargetStore
from tidegate.distribution.store.tasks import TaskStore
from tidegate.distribution.window.target_queue import TargetMessages

logger = Logger(service="tidegate", child=True)


class StrayTasks:
    def __init__(self, tasks: TaskStore, targets: TargetStore, queue: TargetMessages) -> None:
        self._tasks = tasks
        self._targets = targets
        self._queue = queue

    def send(self, job: Job) -> int:
        """Sends the missing messages of a closed Job. Returns the number of their Tasks.

        collect_targets then moves the targets to a later Job. If a message was only slow, its targets arrive twice,
        and the second time changes nothing."""
        bound = {arrival.uuid for arrival in self._targets.collected(job.project_id, job.key)}
        unbound = [uuid for uuid in self._tasks.uuids_of_job(job) if uuid not in bound]
        # The index is eventually consistent; the Task itself has its present Job.
        tasks = self._tasks.get_many(job.project_id, unbound, consistent=True)
        # A late Task whose target was already bound is among the callbacks: it has reached the Job.
        joined = {uuid for _, uuids in self._targets.callbacks(job) for uuid in uuids} if tasks else set()
        by_submit: defaultdict[tuple[str | None, str], list[Arrival]] = defaultdict(list)
        for task in tasks:
            if task.job_id == job.job_id and task.uuid not in joined:
                arrival = Arrival(*task.target, task.uuid, task.callback is not None)
                by_submit[task.callback, task.create_time].append(arrival)
        for (callback, at), arrivals in by_submit.items():
            self._queue.send(job, arrivals, callback, at=at)
        found = sum(map(len, by_submit.values()))
        if found:
            logger.warning("Tasks had not reached their Job: their targets are sent again", count=found)
        return found
