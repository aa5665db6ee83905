"""The agents' inboxes: what each host is to fetch, the links for that, and the results that the host reports."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.s3 import Bucket
from tidegate.aws.table import ConditionFailed, Item, Table, delete, put_new, update
from tidegate.common.ids import Clock, iso
from tidegate.distribution.fleet import Fleet
from tidegate.distribution.model import (
    ANY_PROCESS,
    CANCELLED,
    DONE,
    IN_PROGRESS,
    OUTAGE_SECONDS,
    UNREPORTED,
    AgentProcess,
    FetchedJob,
    Figures,
    FleetAgent,
    SwarmFigures,
    Target,
    TargetReport,
    TargetState,
    job_key,
    shard_of,
    shortened,
)
from tidegate.distribution.store import JobStore, TargetStore
from tidegate.errors import RecordNotFound
from tidegate.files.library import ContentStore
from tidegate.files.model import content_disposition
from tidegate.files.reading import blocks_object, pieces_object
from tidegate.records import F, item_of, record_from

# --- inbox
# Entries of an agent's inbox. The keys of a transfer's entries follow from its id, so no lookup is needed.

_OF_JOB = re.compile(r"tr-([0-9a-f]{32})-(\d{1,5})-(\d{1,5})")
# Ids of earlier versions have no time in them.
_OF_STAGING = re.compile(r"st-([0-9a-f]{64})(?:-\d{1,20})?")


def transfer_token(job_key: str, number: int, shard_count: int) -> str:
    return f"tr-{job_key}-{number}-{shard_count}"


def staging_id(signature: str, now: float) -> str:
    """A new id for each staging. Agents repeat the result of an id that they have finished before."""
    return f"st-{signature}-{int(now * 1000)}"


class InShard(NamedTuple):
    job_key: str
    shard: int


class InStaging(NamedTuple):
    signature: str


def entry_location(transfer_id: str, target: Target) -> InShard | InStaging | None:
    """Where the entry of a transfer is stored. None if the transfer's id has an unknown format."""
    if found := _OF_JOB.fullmatch(transfer_id):
        shard_count = int(found[3])
        return InShard(found[1], shard_of(target, shard_count)) if shard_count else None
    if found := _OF_STAGING.fullmatch(transfer_id):
        return InStaging(found[1])
    return None


@dataclass(frozen=True, slots=True)
class InboxEntry:
    project_id: str
    transfer_id: Annotated[str, F("id of the transfer, for the report")]
    target: Annotated[Target, F(flat=True, shown=False)]
    file_name: Annotated[str, F("name of the file")]
    target_file_dir: Annotated[str, F("absolute path of the directory on the host")]
    target_user: Annotated[str, F("owner of the file on the host")]
    signature: Annotated[str, F("SHA-256 of the content, 64 hexadecimal digits")]
    size: Annotated[int, F("size in bytes")]
    # The Unix time from which the transfer is no longer offered.
    until: float
    job_id: Annotated[str | None, F("id of the Job: one file, one window, all its targets")] = None
    sequence: Annotated[
        int | None, F("increases with every transfer for one path; a host refuses a lower one than it has seen")
    ] = None
    mode: Annotated[str | None, F("permissions of the file on the host, in octal")] = None
    # The host's seat in the Job's swarm, as `swarm.terms` returns it.
    swarm: Annotated[Mapping[str, Any] | None, F(stored=False, shown=False)] = None
    spread_s: Annotated[
        int, F("wait a random time up to this many seconds before reporting, because the Job has many hosts")
    ] = 0
    limit_rate: Annotated[int | None, F("bytes per second, over all transfers of this Job on the host")] = None
    activate_at: Annotated[
        str | None, F("download the file now, and put it in place at this time by the host's clock")
    ] = None
    release: Annotated[str | None, F("the release that the content is for: keep it, and do not put it in place")] = None
    force: Annotated[bool | None, F("replace the file also where a release has it")] = None
    state: Annotated[TargetState, F(stored=False, shown=False)] = UNREPORTED
    # No longer listed: its Job has ended, or the target has.
    withdrawn: Annotated[bool, F(stored=False, shown=False)] = False


# --- agent inbox
# The agents' inboxes. Entries are stored by shard of their Job, for polls; an index lists those of an agent.

_OUT_OF_INBOX = ("gsi1pk", "gsi1sk")
# More entries than this are withdrawn in parallel: each takes a conditional write.
_ONE_BY_ONE, _THREADS = 50, 16
# In the order of Figures. The item's `size` is the announced size.
_FIGURES = ("moved_bytes", "speed", "start_time", "end_time")


def _key(project_id: str, transfer_id: str, target: Target) -> dict[str, str] | None:
    place = entry_location(transfer_id, target)
    if place is None:
        return None
    if isinstance(place, InShard):
        return keys.inbox_entry(project_id, place.job_key, place.shard, *target)
    return keys.staging(project_id, target.agent_id, place.signature)


def _item(entry: InboxEntry, expires_at: int) -> Item:
    key = _key(entry.project_id, entry.transfer_id, entry.target)
    if key is None:
        raise ValueError(f"{entry.transfer_id} is not the id of a transfer")
    return (
        key
        | item_of(entry)
        | {
            "until": int(entry.until),
            "swarm": json.dumps(entry.swarm, separators=(",", ":")) if entry.swarm else None,
            "spread_s": entry.spread_s or None,
            "gsi1pk": keys.inbox(entry.project_id, entry.target.agent_id),
            # Oldest first, so that of two contents for one path the newer one is fetched last.
            "gsi1sk": f"{entry.sequence or 0:020d}#{entry.transfer_id}#{entry.target.container_id}",
            "expires_at": expires_at,
        }
    )


def _entry(item: Item) -> InboxEntry:
    return record_from(
        InboxEntry,
        item,
        swarm=json.loads(item["swarm"]) if "swarm" in item else None,
        withdrawn="gsi1pk" not in item,
        state=TargetState(
            item.get("code"), item.get("message", ""), item.get("progress"), _figures(item), item.get("staged_at")
        ),
    )


def _target(item: Item) -> Target:
    return Target(item["agent_id"], item.get("container_id", ""))


def _figures(item: Item) -> Figures | None:
    found = Figures(*(item.get(name) for name in _FIGURES))
    return found if any(value is not None for value in found) else None


def _report(item: Item) -> TargetReport:
    swarm = record_from(SwarmFigures, item["swarm_figures"]) if "swarm_figures" in item else None
    figures, staged_at = _figures(item), item.get("staged_at")
    return TargetReport(item["code"], item.get("message", ""), item.get("progress"), figures, swarm, staged_at)


class AgentInboxStore:
    def __init__(self, table: Table, *, ttl: int) -> None:
        self._table = table
        self._ttl = ttl

    def add(self, entries: Sequence[InboxEntry]) -> None:
        """Stores entries without a condition. All writers write the same, and leave out targets that have reported.

        An entry keeps its target's report until a poll reads the report, which an outage may delay."""
        self._table.batch_put([_item(entry, int(entry.until) + self._ttl + OUTAGE_SECONDS) for entry in entries])

    def reports(self, project_id: str, job_key: str, shard: int) -> dict[Target, TargetReport]:
        """All reports on the targets of a shard."""
        found = self._table.query_all(keys.job_inbox_entries(project_id, job_key, shard), consistent=True)
        return {_target(item): _report(item) for item in found if "code" in item}

    def withdraw(self, project_id: str, transfer_id: str, targets: Iterable[Target]) -> None:
        """Removes unfinished entries from the inboxes. Their reports stay."""
        found = [key for target in targets if (key := _key(project_id, transfer_id, target)) is not None]

        def remove(key: dict[str, str]) -> None:
            self._change(key, transfer_id, {}, _OUT_OF_INBOX)

        if len(found) <= _ONE_BY_ONE:
            for key in found:
                remove(key)
            return
        with ThreadPoolExecutor(_THREADS) as threads:
            list(threads.map(remove, found))

    def inbox(self, project_id: str, agent_id: str) -> Iterator[InboxEntry]:
        """The agent's entries, oldest first. Pages are read as needed."""
        return map(_entry, self._table.query_all(keys.inbox(project_id, agent_id), index="gsi1"))

    def read(self, project_id: str, wanted: Iterable[tuple[str, Target]]) -> dict[tuple[str, Target], InboxEntry]:
        """The entries of these (transfer id, target) pairs, even if they are no longer in an inbox."""
        found_keys = (_key(project_id, transfer_id, target) for transfer_id, target in set(wanted))
        found = self._table.batch_get([key for key in found_keys if key is not None], consistent=True)
        entries = [_entry(item) for item in found]
        return {(entry.transfer_id, entry.target): entry for entry in entries}

    def report(self, entry: InboxEntry, report: TargetReport) -> None:
        """Stores a report. Changes nothing if the target has ended already."""
        key = _key(entry.project_id, entry.transfer_id, entry.target)
        if key is None:
            return
        sets: dict[str, Any] = {"code": report.code, "message": shortened(report.message), "progress": report.progress}
        if report.figures:
            sets |= dict(zip(_FIGURES, report.figures, strict=True))
        if report.staged_at:
            sets["staged_at"] = report.staged_at
        if report.swarm is not None:
            sets["swarm_figures"] = item_of(report.swarm)
        self._change(key, entry.transfer_id, sets, () if report.code == IN_PROGRESS else _OUT_OF_INBOX)

    def _change(self, key: dict[str, str], transfer_id: str, sets: dict[str, Any], removes: Sequence[str]) -> None:
        """Changes the entry of this transfer.

        Does nothing if the transfer has ended there, or if another staging of the file has replaced the entry."""
        unended = "#transfer_id = :transfer AND (attribute_not_exists(#code) OR #code = :running)"
        change = update(key, sets, removes=removes, condition=unended, transfer=transfer_id, running=IN_PROGRESS)
        self._table.try_write(change)

    def stage(self, entry: InboxEntry) -> InboxEntry:
        """Stores the entry, unless the source host already has one for this content. Returns the stored entry."""
        try:
            self._table.write(put_new(_item(entry, int(entry.until) + self._ttl)))
        except ConditionFailed as met:
            return _entry(met.item) if met.item else entry
        return entry

    def forget_staging(self, entry: InboxEntry, *, staged_before: float) -> None:
        """Deletes the source host's entry, so that the next Job has the file fetched again.

        Keeps an entry whose `until` is later than `staged_before`."""
        key = keys.staging(entry.project_id, entry.target.agent_id, entry.signature)
        self._table.try_write(delete(key, "#until <= :before", before=int(staged_before)))


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
    """A transfer as an agent gets it. `swarm`: the host's seat in the swarm, with URLs made for this answer."""

    transfer_id: str
    entry: InboxEntry
    url: str
    expires_at: str
    swarm: dict[str, Any] | None = None


def offered_id(transfer_id: str, life: int | None) -> str:
    """The transfer's id as this host gets it. It includes the host's `life`.

    So a host that replaced another one cannot report transfers that were offered to the former host, for example from a
    copied journal."""
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
        """The host's record (None if there is none), and the transfers that the host is to fetch.

        Polls for up to `wait` seconds while there is no transfer. Transfers that the host has staged stay in the list
        until they end.

        `can`: what this version of the agent can do. Without "stage", the agent would activate files on arrival, so it
        gets files with `activate_at` only at that time. Without "release", it never gets files of releases."""
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
        """The entries to offer. Leaves out expired entries.

        Also removes some expired entries from the inbox: not all, because after a long absence there may be thousands.
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
        """The offered Job with the highest sequence; None if no Job is offered.

        The last one in the list may be older, because staged transfers come last."""
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
        """The host's seat in the swarm, with ages by the server's clock, because hosts' clocks may be wrong.

        None if the host has no seat."""
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
        """Stores the results. If one is not for a transfer of this agent, raises RecordNotFound and stores none.

        AgentRemoved if the host was deleted or replaced: the host that replaced it has the transfer now."""
        places = [(_own_id(result.transfer_id), Target(agent_id, result.container_id)) for result in results]
        entries = self._inbox.read(project_id, places)
        # Checked after the read, so that all entries were offered while this host had the id.
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
        """Stores that the host put the file in place although its Job was cancelled.

        Does nothing if the Job has not ended yet, because the Job reads the report at its end."""
        if entry.job_id is None:
            return
        job = self._jobs.get(entry.project_id, job_key(entry.job_id))
        if job is not None and job.ended and job.rest == CANCELLED:
            self._targets.note_arrivals(job, [entry.target], self._clock())


def _own_id(offered: str) -> str:
    return offered.partition("~")[0]


def _is_news(entry: InboxEntry, report: TargetReport) -> bool:
    """Whether a report is worth a write.

    False if the target has ended, or has made little progress since its last report."""
    before = entry.state
    if before.ended:
        return False
    if report.code != IN_PROGRESS or before.code is None or (report.staged_at and not before.staged_at):
        return True
    return (report.progress or 0) - (before.progress or 0) >= _PROGRESS_STEP
