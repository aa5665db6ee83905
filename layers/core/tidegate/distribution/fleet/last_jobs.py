"""The outcome of the last Job of each host, read from the Job's records, so that it costs no writes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tidegate.distribution.fleet.model import FleetAgent
from tidegate.distribution.model import job_key
from tidegate.distribution.store.agent_inbox import AgentInboxStore
from tidegate.distribution.store.jobs import JobStore
from tidegate.distribution.targets import Target
from tidegate.distribution.task_view import outcome


class LastJobs:
    def __init__(self, inbox: AgentInboxStore, jobs: JobStore) -> None:
        self._inbox = inbox
        self._jobs = jobs

    def of(self, project_id: str, agents: Iterable[FleetAgent]) -> dict[str, dict[str, Any]]:
        """The last Jobs by agent id, with two batch reads. `status` is None if the Job's records have expired."""
        last_jobs = {agent.agent_id: agent.last_job for agent in agents if agent.last_job}
        if not last_jobs:
            return {}
        places = {name: (last.transfer_id, Target(name, last.container_id)) for name, last in last_jobs.items()}
        entries = self._inbox.read(project_id, places.values())
        jobs = self._jobs.get_many(project_id, list({job_key(last.job_id) for last in last_jobs.values()}))
        found: dict[str, dict[str, Any]] = {}
        for name, last in last_jobs.items():
            key = job_key(last.job_id)
            job, entry = jobs.get(key), entries.get(places[name])
            status = outcome(job, entry.state)["status"] if job and entry else None
            found[name] = {
                "job_id": last.job_id,
                "key": key,
                "file_name": last.file_name,
                "status": status,
                "at": last.at,
            }
        return found
