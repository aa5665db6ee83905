"""Statistics of requests: counts, success rate and durations. Kept as counters, so no request is read for them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tidegate.queue.model import COMPLETED, FAILED, STATES, Request

# Durations are counted in classes, each wider than the one before by this factor; a percentile is its class's mean.
_CLASS_GROWTH = 1.15


@dataclass(frozen=True, slots=True)
class TypeStats:
    count: int
    by_status: dict[str, int] = field(default_factory=dict)
    success_rate: float | None = None
    mean_s: float | None = None
    p95_s: float | None = None


def counts_of(request: Request | None) -> dict[str, int]:
    """A request's part of the counts of its type: its status and, if it completed or failed, its duration by class."""
    if request is None:
        return {}
    counts = {request.status: 1}
    if request.status in (COMPLETED, FAILED) and request.start_time and request.finish_time:
        took = datetime.fromisoformat(request.finish_time) - datetime.fromisoformat(request.start_time)
        milliseconds = max(0, round(took.total_seconds() * 1000))
        duration = round(math.log(max(1, milliseconds), _CLASS_GROWTH))
        counts |= {f"n{duration}": 1, f"ms{duration}": milliseconds}
    return counts


def change_of(old: Request | None, new: Request) -> dict[str, int]:
    """The change of the counts when a request is submitted (`old` is None) or changes its state."""
    before, after = counts_of(old), counts_of(new)
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in before.keys() | after.keys()}
    return {name: change for name, change in changes.items() if change}


def stats_by_type(counted: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, TypeStats]:
    """The statistics of each type, from (type, counts) pairs. A type may occur any number of times."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, counts in counted:
        sums[kind].update(counts)
    return {kind: stats for kind, counts in sorted(sums.items()) if (stats := _stats(counts)).count}


def _stats(counts: Counter[str]) -> TypeStats:
    # Negative if a request from before there were counts left a status to which it was never added.
    by_status = {status: counts[status] for status in sorted(STATES) if counts[status] > 0}
    ended = by_status.get(COMPLETED, 0) + by_status.get(FAILED, 0)
    classes = sorted(int(name[1:]) for name, count in counts.items() if name[1:].isdigit() and count > 0)
    timed = sum(counts[f"n{number}"] for number in classes)
    milliseconds = sum(counts[f"ms{number}"] for number in classes)
    return TypeStats(
        count=sum(by_status.values()),
        by_status=by_status,
        success_rate=round(by_status.get(COMPLETED, 0) / ended, 4) if ended else None,
        mean_s=round(milliseconds / timed / 1000, 3) if timed else None,
        p95_s=_percentile(counts, classes, 0.95 * timed) if timed else None,
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
