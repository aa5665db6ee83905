"""The agents' side: what one has to fetch, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tidegate.aws.s3 import Bucket
from tidegate.common.ids import Clock, iso
from tidegate.distribution.fleet.hosts import Fleet
from tidegate.distribution.fleet.inbox import InboxEntry
from tidegate.distribution.fleet.model import LastJob
from tidegate.distribution.store.agent_inbox import AgentInboxStore
from tidegate.distribution.targets import IN_PROGRESS, Target, TargetReport
from tidegate.errors import RecordNotFound
from tidegate.files.contents import ContentStore
from tidegate.files.model import content_disposition
from tidegate.files.pieces import blocks_object, pieces_object

# A link is made anew for every answer, so one that an agent holds is renewed long before it expires.
LINK_SECONDS = 900
_LOOK_EVERY = 1.0
_OFFERED_TOGETHER = 100
# The agent knows these limits: a list that reaches one of them may be cut short.
_STAGED_TOGETHER = 1000
_TIDIED_TOGETHER = 50
# Progress is for people: smaller steps are not worth a write.
_PROGRESS_STEP = 10


@dataclass(frozen=True, slots=True)
class OfferedTransfer:
    """`swarm` is the entry's place in its swarm, with what changes from one look to the next."""

    entry: InboxEntry
    url: str
    expires_at: str
    swarm: dict[str, Any] | None = None


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
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._inbox = inbox
        self._objects = objects
        self._fleet = fleet
        self._contents = contents
        self._clock = clock
        self._sleep = sleep

    def inbox(self, project_id: str, agent_id: str, wait: int = 0, *, can_stage: bool = True) -> list[OfferedTransfer]:
        """Answers at once if there is something to fetch, else looks again until `wait` seconds have passed.

        What the host has staged is listed too, as long as it is wanted. An agent that cannot stage files (`can_stage`)
        would put one in place as it arrives, so it is offered the file when its time has come."""
        looks = 1 + int(wait / _LOOK_EVERY)
        for look in range(looks):
            if look:
                self._sleep(_LOOK_EVERY)
            offered = self._open_entries(project_id, agent_id, can_stage)
            self._fleet.polled(project_id, agent_id, self._newest_job(offered))
            if any(not entry.state.staged_at for entry in offered) or (offered and look == looks - 1):
                objects = self._contents.objects_of(project_id, (entry.signature for entry in offered))
                return [self._offer(entry, objects[entry.signature]) for entry in offered]
        return []

    def _open_entries(self, project_id: str, agent_id: str, can_stage: bool) -> list[InboxEntry]:
        """Reads on past entries whose time is over, and takes some of them out of the inbox: a host that was away for
        long would read thousands of them at every look. Staged ones take no place of those that are to be fetched."""
        now = self._clock()
        found: list[InboxEntry] = []
        staged: list[InboxEntry] = []
        over: list[InboxEntry] = []
        for entry in self._inbox.inbox(project_id, agent_id):
            if entry.until <= now.timestamp():
                if len(over) < _TIDIED_TOGETHER:
                    over.append(entry)
            elif not can_stage and (entry.activate_at or "") > iso(now):
                continue
            elif not entry.state.staged_at:
                found.append(entry)
            elif len(staged) < _STAGED_TOGETHER:
                staged.append(entry)
            if len(found) == _OFFERED_TOGETHER:
                break
        for entry in over:
            self._inbox.withdraw(project_id, entry.transfer_id, [entry.target])
        return [*found, *staged]

    def _newest_job(self, offered: Sequence[InboxEntry]) -> LastJob | None:
        """By sequence, which rises with every window: staged transfers of older windows come last in the list."""
        of_jobs = [(entry.sequence or 0, entry.job_id, entry) for entry in offered if entry.job_id is not None]
        if not of_jobs:
            return None
        _, job_id, entry = max(of_jobs, key=lambda one: one[0])
        return LastJob(job_id, entry.file_name, entry.transfer_id, entry.target.container_id, iso(self._clock()))

    def _offer(self, entry: InboxEntry, key: str) -> OfferedTransfer:
        url = self._objects.presign_get(key, LINK_SECONDS, disposition=content_disposition(entry.file_name))
        return OfferedTransfer(entry, url, iso(self._clock() + timedelta(seconds=LINK_SECONDS)), self._swarm(entry))

    def _swarm(self, entry: InboxEntry) -> dict[str, Any] | None:
        """Ages and times by the server's clock alone: hosts' clocks may be wrong."""
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

    def report(self, project_id: str, agent_id: str, results: Sequence[Result]) -> None:
        """All of them or none: a transfer that is not this agent's own is refused before anything is written."""
        named = [(result.transfer_id, Target(agent_id, result.container_id)) for result in results]
        entries = self._inbox.read(project_id, named)
        if any(name not in entries for name in named):
            raise RecordNotFound("no such transfer of this agent")
        for name, result in zip(named, results, strict=True):
            if _is_news(entries[name], result.report):
                self._inbox.report(entries[name], result.report)


def _is_news(entry: InboxEntry, report: TargetReport) -> bool:
    before = entry.state
    if before.ended:
        return False
    if report.code != IN_PROGRESS or before.code is None or (report.staged_at and not before.staged_at):
        return True
    return (report.progress or 0) - (before.progress or 0) >= _PROGRESS_STEP
