"""Everything at a glance: a bounded number of reads, however much the table holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate.common.ids import Clock
from tidegate.common.listing import Listed
from tidegate.distribution.lookup import Lookup
from tidegate.distribution.model import ENDED, PENDING, SUCCESS
from tidegate.queue.model import COMPLETED, FAILED, Request
from tidegate.queue.store import RequestStore
from tidegate.web.console.summary import SPAN, Ended, TypeSummary, by_type

# The newest of each kind that are read; a busier hour is summed up from these.
READ = 200
SHOWN = 20
# A window's targets are counted for this many open windows; each is a read.
COUNTED = 6

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Glance:
    jobs: Sequence[Record]
    requests: Sequence[Request]
    stats: Sequence[TypeSummary]
    complete: bool


class OverviewReader:
    def __init__(self, jobs: Lookup, requests: RequestStore, clock: Clock) -> None:
        self._jobs = jobs
        self._requests = requests
        self._clock = clock

    def of(self, project_id: str) -> Glance:
        now = self._clock()
        jobs = self._jobs.jobs(project_id, READ, None)
        requests = self._requests.list(project_id, READ, None)
        ended = [*filter(None, map(_ended_job, jobs.items)), *filter(None, map(_ended_request, requests.items))]
        return Glance(
            jobs=self._counted(project_id, jobs.items[:SHOWN]),
            requests=requests.items[:SHOWN],
            stats=by_type(ended, now),
            complete=_reaches_back(jobs, "create_time", now) and _reaches_back(requests, "created_at", now),
        )

    def _counted(self, project_id: str, jobs: Sequence[Record]) -> list[Record]:
        """Those that still collect are read one by one: a list does not know how many wait in a window."""
        still_open = [job["key"] for job in jobs if job["status"] == PENDING][:COUNTED]
        return [self._jobs.job(project_id, job["key"]) if job["key"] in still_open else job for job in jobs]


def _ended_job(job: Record) -> Ended | None:
    if job["status"] not in ENDED or not job.get("finish_time"):
        return None
    return Ended("job", job["status"] == SUCCESS, _moment(job["create_time"]), _moment(job["finish_time"]))


def _ended_request(request: Request) -> Ended | None:
    if request.status not in (COMPLETED, FAILED) or not request.finish_time:
        return None
    began = _moment(request.start_time or request.created_at)
    return Ended(request.type, request.status == COMPLETED, began, _moment(request.finish_time))


def _reaches_back(page: Listed[Any], field: str, now: datetime) -> bool:
    if page.next_cursor is None or not page.items:
        return True
    oldest = page.items[-1]
    return now - _moment(oldest[field] if isinstance(oldest, dict) else getattr(oldest, field)) >= SPAN


def _moment(iso: str) -> datetime:
    return datetime.fromisoformat(iso)
