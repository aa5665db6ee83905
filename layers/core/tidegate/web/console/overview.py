"""The data of the console's overview, with a bounded number of reads."""

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

# How many of the newest records of each kind are read; the figures of a busier hour are based on these.
RECORDS_READ = 200
RECORDS_SHOWN = 20
# For how many open windows the targets are counted; each needs a read.
WINDOWS_COUNTED = 6

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OverviewData:
    jobs: Sequence[Record]
    requests: Sequence[Request]
    stats: Sequence[TypeSummary]
    complete: bool


class OverviewReader:
    def __init__(self, jobs: Lookup, requests: RequestStore, clock: Clock) -> None:
        self._jobs = jobs
        self._requests = requests
        self._clock = clock

    def read(self, project_id: str) -> OverviewData:
        now = self._clock()
        jobs = self._jobs.jobs(project_id, RECORDS_READ, None)
        requests = self._requests.list(project_id, RECORDS_READ, None)
        ended = [*filter(None, map(_ended_job, jobs.items)), *filter(None, map(_ended_request, requests.items))]
        return OverviewData(
            jobs=self._with_counts(project_id, jobs.items[:RECORDS_SHOWN]),
            requests=requests.items[:RECORDS_SHOWN],
            stats=by_type(ended, now),
            complete=_covers_span(jobs, "create_time", now) and _covers_span(requests, "created_at", now),
        )

    def _with_counts(self, project_id: str, jobs: Sequence[Record]) -> list[Record]:
        """Reads Jobs with an open window one by one, because lists do not have the number of targets in a window."""
        still_open = [job["key"] for job in jobs if job["status"] == PENDING][:WINDOWS_COUNTED]
        return [self._jobs.job(project_id, job["key"]) if job["key"] in still_open else job for job in jobs]


def _ended_job(job: Record) -> Ended | None:
    if job["status"] not in ENDED or not job.get("finish_time"):
        return None
    return Ended("job", job["status"] == SUCCESS, _moment(job["create_time"]), _moment(job["finish_time"]))


def _ended_request(request: Request) -> Ended | None:
    if request.status not in (COMPLETED, FAILED) or not request.finish_time:
        return None
    started = _moment(request.start_time or request.created_at)
    return Ended(request.type, request.status == COMPLETED, started, _moment(request.finish_time))


def _covers_span(page: Listed[Any], field: str, now: datetime) -> bool:
    """Whether the records that were read cover the whole time span of the figures."""
    if page.next_cursor is None or not page.items:
        return True
    oldest = page.items[-1]
    return now - _moment(oldest[field] if isinstance(oldest, dict) else getattr(oldest, field)) >= SPAN


def _moment(iso: str) -> datetime:
    return datetime.fromisoformat(iso)
