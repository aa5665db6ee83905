"""The agents' inboxes: what each host is to fetch."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Item, Table, delete, put_new, update
from tidegate.distribution.model import (
    IN_PROGRESS,
    OUTAGE_SECONDS,
    UNREPORTED,
    Figures,
    SwarmFigures,
    Target,
    TargetReport,
    TargetState,
    cut,
    shard_of,
)
from tidegate.records import F, item_of, record_from

# --- inbox
# Entries of an agent's inbox. The id of a transfer contains the place of its entries, so no lookup is needed.

_OF_JOB = re.compile(r"tr-([0-9a-f]{32})-(\d{1,5})-(\d{1,5})")
# Earlier versions had no time in it.
_OF_STAGING = re.compile(r"st-([0-9a-f]{64})(?:-\d{1,20})?")


def transfer_token(job_key: str, number: int, shard_count: int) -> str:
    return f"tr-{job_key}-{number}-{shard_count}"


def staging_id(signature: str, now: float) -> str:
    """A new id for each staging: agents repeat the result of a transfer id that they have finished before."""
    return f"st-{signature}-{int(now * 1000)}"


class InShard(NamedTuple):
    job_key: str
    shard: int


class InStaging(NamedTuple):
    signature: str


def place_of(transfer_id: str, target: Target) -> InShard | InStaging | None:
    """Where the entry of a transfer is stored; None for an id in an unknown format."""
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
    # From then on (Unix time) it is no longer offered.
    until: float
    job_id: Annotated[str | None, F("id of the Job: one file, one window, all its targets")] = None
    sequence: Annotated[
        int | None, F("increases with every transfer for one path; a host refuses a lower one than it has seen")
    ] = None
    mode: Annotated[str | None, F("permissions of the file on the host, in octal")] = None
    # The host's seat in the Job's swarm, as `swarm.plan.terms` returns it.
    swarm: Annotated[Mapping[str, Any] | None, F(stored=False, shown=False)] = None
    spread_s: Annotated[
        int, F("wait a random time up to this many seconds before reporting, because the Job has many hosts")
    ] = 0
    limit_rate: Annotated[int | None, F("bytes per second, over all transfers of this Job on the host")] = None
    activate_at: Annotated[
        str | None, F("download the file now, and put it in place at this time by the host's clock")
    ] = None
    release: Annotated[str | None, F("the release that the content is for: keep it, and do not put it in place")] = None
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
    place = place_of(transfer_id, target)
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

    def place(self, entries: Sequence[InboxEntry]) -> None:
        """Stores entries without a condition: every writer writes the same, and omits targets that have reported.

        An entry keeps its target's report until a poll reads it, which an outage may delay."""
        self._table.batch_put(_item(entry, int(entry.until) + self._ttl + OUTAGE_SECONDS) for entry in entries)

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
        """The entries of these (transfer id, target) pairs, also those no longer in an inbox."""
        found_keys = (_key(project_id, transfer_id, target) for transfer_id, target in set(wanted))
        found = self._table.batch_get([key for key in found_keys if key is not None], consistent=True)
        entries = [_entry(item) for item in found]
        return {(entry.transfer_id, entry.target): entry for entry in entries}

    def report(self, entry: InboxEntry, report: TargetReport) -> None:
        """Stores a report. A report on a target that has ended changes nothing."""
        key = _key(entry.project_id, entry.transfer_id, entry.target)
        if key is None:
            return
        sets: dict[str, Any] = {"code": report.code, "message": cut(report.message), "progress": report.progress}
        if report.figures:
            sets |= dict(zip(_FIGURES, report.figures, strict=True))
        if report.staged_at:
            sets["staged_at"] = report.staged_at
        if report.swarm is not None:
            sets["swarm_figures"] = item_of(report.swarm)
        self._change(key, entry.transfer_id, sets, () if report.code == IN_PROGRESS else _OUT_OF_INBOX)

    def _change(self, key: dict[str, str], transfer_id: str, sets: dict[str, Any], removes: Sequence[str]) -> None:
        """Changes the entry of this transfer, unless it has ended or another staging has replaced it."""
        unended = "#transfer_id = :transfer AND (attribute_not_exists(#code) OR #code = :running)"
        change = update(key, sets, removes=removes, condition=unended, transfer=transfer_id, running=IN_PROGRESS)
        self._table.try_write(change)

    def stage(self, entry: InboxEntry) -> InboxEntry:
        """Stores the entry for the source host, unless it has one for this content. Returns the stored one."""
        try:
            self._table.write(put_new(_item(entry, int(entry.until) + self._ttl)))
        except ConditionFailed as met:
            return _entry(met.item) if met.item else entry
        return entry

    def forget_staging(self, entry: InboxEntry, *, staged_before: float) -> None:
        """Deletes the entry, so that the next Job has the file fetched again. An entry valid for longer is kept."""
        key = keys.staging(entry.project_id, entry.target.agent_id, entry.signature)
        self._table.try_write(delete(key, "#until <= :before", before=int(staged_before)))
