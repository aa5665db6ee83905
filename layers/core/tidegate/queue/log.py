"""The execution log of requests, and their statistics."""

from __future__ import annotations

import itertools
import math
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from aws_lambda_powertools import Logger
from botocore.exceptions import BotoCoreError, ClientError

from tidegate.aws import keys
from tidegate.aws.table import Table, Write, put, update
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed
from tidegate.errors import DomainError
from tidegate.queue.model import COMPLETED, FAILED, STATES, Request

# --- request log
# The execution log of a request: when each attempt began, how long each step took, and why it failed.

logger = Logger(service="tidegate", child=True)

# As long as failed requests.
_KEPT = timedelta(days=30)
_numbers = itertools.count()
_LONGEST_STACK = 20_000
_LONGEST_DETAIL = 1000


@dataclass(frozen=True, slots=True)
class RequestLogLine:
    at: str
    attempt: int
    event: str
    detail: str = ""
    seconds: float | None = None
    code: str | None = None
    # For operators only: it has file names and lines of the server's code.
    stack: str | None = None

    def shown(self, *, with_stack: bool) -> dict[str, Any]:
        hidden = () if with_stack else ("stack",)
        return {name: value for name, value in asdict(self).items() if value not in (None, "") and name not in hidden}


class RequestLog:
    def __init__(self, table: Table, clock: Clock) -> None:
        self._table = table
        self._clock = clock

    def write(
        self,
        project_id: str,
        request_id: str,
        attempt: int,
        event: str,
        detail: str = "",
        *,
        since: datetime | None = None,
        error: BaseException | None = None,
    ) -> None:
        """Adds a line. Only logs a failure, because work must not fail if a line cannot be written."""
        now = self._clock()
        code = error.code if isinstance(error, DomainError) else type(error).__name__ if error else None
        stack = "".join(traceback.format_exception(error))[-_LONGEST_STACK:] if error else None
        seconds = round((now - since).total_seconds(), 3) if since else None
        line = RequestLogLine(iso(now), attempt, event, detail[:_LONGEST_DETAIL], seconds, code, stack)
        # The number keeps lines of the same millisecond in the order in which this process wrote them.
        line_id = f"{next(_numbers):09d}-{new_id('log', now)}"
        item = keys.request_log_line(project_id, request_id, line.at, line_id) | _item(line)
        try:
            self._table.write(put(item | {"expires_at": int((now + _KEPT).timestamp())}))
        except (ClientError, BotoCoreError, DomainError):
            logger.warning("a line of the execution log was not written", request_id=request_id, event=event)

    def list(self, project_id: str, request_id: str, limit: int, cursor: str | None) -> Listed[RequestLogLine]:
        """Oldest first."""
        page = self._table.page(keys.request_log(project_id, request_id), limit=limit, cursor=cursor)
        return Listed([_line(item) for item in page.items], page.cursor)


def _item(line: RequestLogLine) -> dict[str, Any]:
    """The seconds are stored as text, because DynamoDB's numbers are not floats."""
    fields = {name: value for name, value in asdict(line).items() if value not in (None, "")}
    return fields | ({"seconds": repr(line.seconds)} if line.seconds is not None else {})


def _line(item: Mapping[str, Any]) -> RequestLogLine:
    names = ("at", "attempt", "event", "detail", "code", "stack")
    seconds = item.get("seconds")
    fields: dict[str, Any] = {name: item[name] for name in names if name in item}
    return RequestLogLine(**fields, seconds=float(seconds) if seconds is not None else None)


# --- stats
# Statistics of requests: counts, success rate and durations. Kept as counters, so no request is read for them.

# Durations are counted in classes, each wider than the one before by this factor; a percentile is its class's mean.
_CLASS_GROWTH = 1.15


@dataclass(frozen=True, slots=True)
class RequestFigures:
    count: int
    by_status: dict[str, int] = field(default_factory=dict)
    success_rate: float | None = None
    mean_s: float | None = None
    p95_s: float | None = None
    mean_cpu_s: float | None = None
    peak_memory_mb: int | None = None
    bytes: int | None = None


def counts_of(request: Request | None) -> dict[str, int]:
    """A request's part of the counts of its type: its status and, if it completed or failed, its duration by class."""
    if request is None:
        return {}
    counts = {request.status: 1}
    if request.status in (COMPLETED, FAILED) and request.start_time and request.finish_time:
        milliseconds = request.worked_until(datetime.fromisoformat(request.finish_time))
        duration = round(math.log(max(1, milliseconds), _CLASS_GROWTH))
        counts |= {f"n{duration}": 1, f"ms{duration}": milliseconds}
    if request.status in (COMPLETED, FAILED) and request.peak_mb:
        memory = round(math.log(request.peak_mb, _CLASS_GROWTH))
        counts |= {f"k{memory}": 1, f"mb{memory}": request.peak_mb}
        counts |= {"cpu": request.cpu_ms, "bytes": request.moved_bytes}
    return counts


def change_of(old: Request | None, new: Request) -> dict[str, int]:
    """The change of the counts when a request is submitted (`old` is None) or changes its state."""
    before, after = counts_of(old), counts_of(new)
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in before.keys() | after.keys()}
    return {name: change for name, change in changes.items() if change}


def stats_by_type(counted: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, RequestFigures]:
    """The statistics of each type, from (type, counts) pairs. A type may occur any number of times."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, counts in counted:
        sums[kind].update(counts)
    return {kind: stats for kind, counts in sorted(sums.items()) if (stats := _stats(counts)).count}


def _stats(counts: Counter[str]) -> RequestFigures:
    # Negative if a request from before there were counts left a status to which it was never added.
    by_status = {status: counts[status] for status in sorted(STATES) if counts[status] > 0}
    ended = by_status.get(COMPLETED, 0) + by_status.get(FAILED, 0)
    classes, memories = _classes(counts, "n"), _classes(counts, "k")
    measured = sum(counts[f"k{number}"] for number in memories)
    timed = sum(counts[f"n{number}"] for number in classes)
    milliseconds = sum(counts[f"ms{number}"] for number in classes)
    return RequestFigures(
        count=sum(by_status.values()),
        by_status=by_status,
        success_rate=round(by_status.get(COMPLETED, 0) / ended, 4) if ended else None,
        mean_s=round(milliseconds / timed / 1000, 3) if timed else None,
        p95_s=_percentile(counts, classes, 0.95 * timed) if timed else None,
        mean_cpu_s=round(counts["cpu"] / measured / 1000, 3) if measured else None,
        peak_memory_mb=round(counts[f"mb{memories[-1]}"] / counts[f"k{memories[-1]}"]) if measured else None,
        bytes=counts["bytes"] if measured else None,
    )


def _classes(counts: Counter[str], kind: str) -> list[int]:
    return sorted(
        int(name[1:]) for name, count in counts.items() if name[0] == kind and name[1:].isdigit() and count > 0
    )


def _percentile(counts: Counter[str], classes: list[int], wanted: float) -> float:
    """Nearest rank: the mean of the class that has the value with this rank."""
    seen = 0
    for number in classes:
        seen += counts[f"n{number}"]
        if seen >= wanted:
            break
    return round(counts[f"ms{number}"] / counts[f"n{number}"] / 1000, 3)


def percentile(values: list[float], share: float) -> float:
    """Nearest rank: a value that really occurred."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


# --- stats store
# Counts of a project's requests, by type and by the hour of their creation.
#
# They are written in the same transaction as the requests that they count.

# Longer than any ended request is kept.
_KEPT_SECONDS = 35 * 86400
_NOT_COUNTS = frozenset({"pk", "sk", "expires_at"})


def stats_writes(old: Request | None, new: Request) -> list[Write]:
    changes = change_of(old, new)
    if not changes:
        return []
    expires_at = int(datetime.fromisoformat(new.created_at).timestamp()) + _KEPT_SECONDS
    key = keys.request_stats(new.project_id, hour_of(new.created_at), new.type, new.request_id)
    return [update(key, {"expires_at": expires_at}, adds=changes, condition="")]


def hour_of(moment: str) -> str:
    """The hour of an ISO 8601 time in UTC, as `2026-11-16T21`."""
    return moment[:13]


def counts_since(table: Table, project_id: str, moment: str) -> Iterator[tuple[str, dict[str, int]]]:
    """(type, counts) of the requests that were created in the hour of this moment or later."""
    bounds = (hour_of(moment), "~")
    for item in table.query_all(keys.requests_stats(project_id), sk_between=bounds):
        counts = {name: int(value) for name, value in item.items() if name not in _NOT_COUNTS}
        yield keys.type_of_stats(item["sk"]), counts
