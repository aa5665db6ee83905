"""The kinds of records that can be watched: how to read each kind, and which statuses are final."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from tidegate_client.client import Client
from tidegate_client.errors import Invalid, NotFound

Record = Mapping[str, Any]
Reader = Callable[[Client, str], Record]

SUCCEEDED = frozenset({"success", "completed", "finished"})
ENDED = SUCCEEDED | {"failed", "timeout", "cancelled", "superseded", "stopped", "expired"}
# A record may have several of these fields: a Task also has a job_id. The first one is the record's own id.
ID_FIELDS = ("task_id", "batch_id", "job_id", "request_id")

READERS: dict[str, Reader] = {
    "download": lambda client, task_id: cast(Record, client.downloads.get(task_id)),
    "job": lambda client, job_id: cast(Record, client.jobs.get(job_id)),
    "export": lambda client, task_id: cast(Record, client.exports.get(task_id)),
    "request": lambda client, request_id: cast(Record, client.requests.get(request_id)),
    "batch": lambda client, batch_id: cast(Record, client.batches.get(batch_id)),
}
_SHAPES = (
    (re.compile(r"AsyncDownloadTask:|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}$"), "download"),
    (re.compile(r"AsyncDownloadJob:"), "job"),
    (re.compile(r"(exp|export|task)-"), "export"),
    (re.compile(r"(bat|batch)-"), "batch"),
    (re.compile(r"req-"), "request"),
)


@dataclass(frozen=True)
class Change:
    """A watched record as it was at one moment."""

    record_id: str
    record: Record

    @property
    def status(self) -> str:
        return str(self.record.get("status", ""))

    @property
    def ended(self) -> bool:
        return self.status.lower() in ENDED

    @property
    def succeeded(self) -> bool:
        return self.status.lower() in SUCCEEDED


def reader_of(record_id: str) -> Reader | None:
    """Returns the function that reads this record; None if the form of the id does not show the kind."""
    return next((READERS[kind] for kind in _kinds_by_shape(record_id)), None)


def _kinds_by_shape(record_id: str) -> list[str]:
    return [kind for shape, kind in _SHAPES if shape.match(record_id)]


def find(client: Client, record_id: str) -> tuple[Reader, Record]:
    """Returns the function that reads a record, and the record.

    If the form of the id does not show the kind of record, tries every kind."""
    likely = _kinds_by_shape(record_id)
    for kind in (*likely, *(other for other in READERS if other not in likely)):
        try:
            return READERS[kind], READERS[kind](client, record_id)
        except (NotFound, Invalid):
            continue
    raise NotFound(404, "not_found", f"there is no Task, Job, export, request or batch with the id {record_id}")


def own_id(record: Record) -> str:
    """Returns the id of the record itself. A Task also has its Job's id, and an export also has its request's id."""
    return next((str(record[field]) for field in ID_FIELDS if record.get(field)), "")


def matches(record: Record, record_id: str) -> bool:
    """Returns whether this record has the given id: as its own id, as its key, or as the UUID at the end of its id."""
    own = own_id(record)
    return record_id in (own, record.get("key")) or own.endswith(f":{record_id}")
