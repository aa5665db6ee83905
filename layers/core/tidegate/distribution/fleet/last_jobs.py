"""What became of the Job that a host took last: read from the Job's records, so that nothing is written for it."""

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
        """By agent id, in two batch reads for all of them. `status` is None once the Job's records have expired."""
        taken = {agent.agent_id: agent.last_job for agent in agents if agent.last_job}
        if not taken:
            return {}
        named = {name: (last.transfer_id, Target(name, last.container_id)) for name, last in taken.items()}
        entries = self._inbox.read(project_id, named.values())
        jobs = self._jobs.get_many(project_id, list({job_key(last.job_id) for last in taken.values()}))
        found: dict[str, dict[str, Any]] = {}
        for name, last in taken.items():
            key = job_key(last.job_id)
            job, entry = jobs.get(key), entries.get(named[name])
            status = outcome(job, entry.state)["status"] if job and entry else None
            found[name] = {
                "job_id": last.job_id,
                "key": key,
                "file_name": last.file_name,
                "status": status,
                "at": last.at,
            }
        return found
