"""The agents' API: transfers to fetch, and results."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tidegate.aws.s3 import Bucket
from tidegate.common.ids import Clock, iso
from tidegate.distribution.fleet import Fleet
from tidegate.distribution.inbox import AgentInboxStore, InboxEntry
from tidegate.distribution.model import (
    ANY_PROCESS,
    CANCELLED,
    DONE,
    IN_PROGRESS,
    AgentProcess,
    FetchedJob,
    FleetAgent,
    Target,
    TargetReport,
    job_key,
)
from tidegate.distribution.store import JobStore, TargetStore
from tidegate.errors import RecordNotFound
from tidegate.files.library import ContentStore
from tidegate.files.model import content_disposition
from tidegate.files.reading import blocks_object, pieces_object

# --- agents
# The agents' API: transfers to fetch, and results.

# Every answer has new links, so an agent's link is renewed long before it expires.
LINK_SECONDS = 900
_POLL_SECONDS = 1.0
_OFFERED_TOGETHER = 100
# The agent has the same limits: it knows that a list of this length may be incomplete.
_STAGED_TOGETHER = 1000
_WITHDRAWN_TOGETHER = 50
# In percent. Progress is for people: smaller steps are not worth a write.
_PROGRESS_STEP = 10


@dataclass(frozen=True, slots=True)
class OfferedTransfer:
    """`swarm`: the host's seat in the swarm, with URLs and ages as of this answer."""

    transfer_id: str
    entry: InboxEntry
    url: str
    expires_at: str
    swarm: dict[str, Any] | None = None


def offered_id(transfer_id: str, life: int | None) -> str:
    """The id by which a host knows a transfer. It differs for a host that has replaced another one under the same id:
    what was offered to its predecessor, as in a copied journal, is not its own to report."""
    return f"{transfer_id}~{life}" if life else transfer_id


@dataclass(frozen=True, slots=True)
class Result:
    transfer_id: str
    container_id: str
    report: TargetReport


class Agents:
    def __init__(
        self,
        inbox: AgentInboxStore,
        objects: Bucket,
        fleet: Fleet,
        contents: ContentStore,
        jobs: JobStore,
        targets: TargetStore,
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inbox = inbox
        self._objects = objects
        self._fleet = fleet
        self._contents = contents
        self._jobs = jobs
        self._targets = targets
        self._clock = clock
        self._sleep = sleep

    def inbox(
        self,
        project_id: str,
        agent_id: str,
        wait: int = 0,
        *,
        can: Collection[str] = ("stage", "release"),
        process: AgentProcess = ANY_PROCESS,
    ) -> tuple[FleetAgent | None, list[OfferedTransfer]]:
        """The host's record, and what it is to fetch. Polls for up to `wait` seconds while there is nothing.

        Transfers that the host has staged are listed while they are wanted. An older agent, which cannot stage files
        (`can`), would activate them on arrival, so it gets them only after `activate_at`, and those of releases
        never."""
        polls = 1 + int(wait / _POLL_SECONDS)
        agent = self._fleet.admit(project_id, agent_id, process)
        for poll in range(polls):
            if poll:
                self._sleep(_POLL_SECONDS)
            offered = self._open_entries(project_id, agent_id, can)
            if poll and offered:
                # The host may have been deleted while it waited.
                self._fleet.admit(project_id, agent_id, process)
            self._fleet.polled(project_id, agent_id, self._newest_job(offered), process.life)
            if any(not entry.state.staged_at for entry in offered) or (offered and poll == polls - 1):
                objects = self._contents.objects_of(project_id, (entry.signature for entry in offered))
                return agent, [self._offer(entry, objects[entry.signature], process.life) for entry in offered]
        return agent, []

    def _open_entries(self, project_id: str, agent_id: str, can: Collection[str]) -> list[InboxEntry]:
        """The entries to offer. Skips expired ones and removes some: after a long absence there may be thousands.

        Staged entries have a limit of their own and do not displace those to be fetched."""
        now = self._clock()
        found: list[InboxEntry] = []
        staged: list[InboxEntry] = []
        expired: list[InboxEntry] = []
        for entry in self._inbox.inbox(project_id, agent_id):
            if entry.until <= now.timestamp():
                if len(expired) < _WITHDRAWN_TOGETHER:
                    expired.append(entry)
            elif ("stage" not in can and (entry.activate_at or "") > iso(now)) or (
                entry.release and "release" not in can
            ):
                continue
            elif not entry.state.staged_at:
                found.append(entry)
            elif len(staged) < _STAGED_TOGETHER:
                staged.append(entry)
            if len(found) == _OFFERED_TOGETHER:
                break
        for entry in expired:
            self._inbox.withdraw(project_id, entry.transfer_id, [entry.target])
        return [*found, *staged]

    def _newest_job(self, offered: Sequence[InboxEntry]) -> FetchedJob | None:
        """The Job with the highest sequence: staged transfers of older windows come last in the list."""
        of_jobs = [(entry.sequence or 0, entry.job_id, entry) for entry in offered if entry.job_id is not None]
        if not of_jobs:
            return None
        _, job_id, entry = max(of_jobs, key=lambda one: one[0])
        return FetchedJob(job_id, entry.file_name, entry.transfer_id, entry.target.container_id, iso(self._clock()))

    def _offer(self, entry: InboxEntry, key: str, life: int | None) -> OfferedTransfer:
        url = self._objects.presign_get(key, LINK_SECONDS, disposition=content_disposition(entry.file_name))
        until, name = iso(self._clock() + timedelta(seconds=LINK_SECONDS)), offered_id(entry.transfer_id, life)
        return OfferedTransfer(name, entry, url, until, self._swarm(entry))

    def _swarm(self, entry: InboxEntry) -> dict[str, Any] | None:
        """The swarm terms with ages by the server's clock, because hosts' clocks may be wrong."""
        if not entry.swarm:
            return None
        now = self._clock().timestamp()
        terms = dict(entry.swarm)
        age = max(0.0, now - terms.pop("dispatched_at"))
        url = self._objects.presign_get(pieces_object(entry.project_id, entry.signature), LINK_SECONDS)
        if terms.get("blocks_sha256"):
            blocks = blocks_object(entry.project_id, entry.signature)
            terms["blocks_url"] = self._objects.presign_get(blocks, LINK_SECONDS)
        return terms | {"age": round(age, 3), "lasts": round(entry.until - now, 3), "pieces_url": url}

    def report(
        self, project_id: str, agent_id: str, results: Sequence[Result], process: AgentProcess = ANY_PROCESS
    ) -> None:
        """Stores the results. RecordNotFound, before anything is written, if one is not for this agent's transfer.

        AgentRemoved from a host that was deleted or replaced: its successor has the transfer now."""
        places = [(_own_id(result.transfer_id), Target(agent_id, result.container_id)) for result in results]
        entries = self._inbox.read(project_id, places)
        # After the read: these transfers were offered while this host had the id.
        self._fleet.admit(project_id, agent_id, process)
        for result in results:
            if process.life is not None and result.transfer_id != offered_id(_own_id(result.transfer_id), process.life):
                raise RecordNotFound(
                    f"the transfer {result.transfer_id} was offered to a host that had the id {agent_id} before: leave "
                    "it out of the report"
                )
        if unknown := next((place for place in places if place not in entries), None):
            raise RecordNotFound(
                f"the agent {agent_id} has no transfer {unknown[0]}, or it has expired: leave it out of the report"
            )
        # The last result of a transfer counts: a host that repeats one in a report does not cost a write for each.
        for place, result in dict(zip(places, results, strict=True)).items():
            if _is_news(entries[place], result.report):
                self._inbox.report(entries[place], result.report)
                if result.report.code == DONE and entries[place].withdrawn:
                    self._note_arrival(entries[place])

    def _note_arrival(self, entry: InboxEntry) -> None:
        """The host has put the file in place after its Job was cancelled. A Job that has not ended yet reads the report
        when it does."""
        if entry.job_id is None:
            return
        job = self._jobs.get(entry.project_id, job_key(entry.job_id))
        if job is not None and job.ended and job.rest == CANCELLED:
            self._targets.note_arrivals(job, [entry.target], self._clock())


def _own_id(offered: str) -> str:
    return offered.partition("~")[0]


def _is_news(entry: InboxEntry, report: TargetReport) -> bool:
    """Whether a report is worth a write."""
    before = entry.state
    if before.ended:
        return False
    if report.code != IN_PROGRESS or before.code is None or (report.staged_at and not before.staged_at):
        return True
    return (report.progress or 0) - (before.progress or 0) >= _PROGRESS_STEP
