"""Figures over requests: how many, how well, how long. Kept as counts, so that no record is read to tell them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from tidegate.queue.model import COMPLETED, FAILED, STATES, Request

# Durations are counted in classes, each this much longer than the one before: a percentile is the mean of its class.
_CLASS_GROWTH = 1.15


@dataclass(frozen=True, slots=True)
class TypeStats:
    count: int
    by_status: dict[str, int] = field(default_factory=dict)
    success_rate: float | None = None
    mean_s: float | None = None
    p95_s: float | None = None


def counts_of(request: Request | None) -> dict[str, int]:
    """What a request adds to the counts of its type: its status and, if it ran to an end, its milliseconds by class."""
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
    """What the counts change by when a request comes, or moves from one state to another."""
    before, after = counts_of(old), counts_of(new)
    changes = {name: after.get(name, 0) - before.get(name, 0) for name in before.keys() | after.keys()}
    return {name: change for name, change in changes.items() if change}


def stats_by_type(counted: Iterable[tuple[str, Mapping[str, int]]]) -> dict[str, TypeStats]:
    """From (type, counts), any number of them for each type."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for kind, counts in counted:
        sums[kind].update(counts)
    return {kind: stats for kind, counts in sorted(sums.items()) if (stats := _stats(counts)).count}


def _stats(counts: Counter[str]) -> TypeStats:
    # A request that came before there were counts takes one from a status to which it never added.
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
    """Nearest rank: the mean of the class in which that many are reached."""
    seen = 0
    for number in classes:
        seen += counts[f"n{number}"]
        if seen >= wanted:
            break
    return round(counts[f"ms{number}"] / counts[f"n{number}"] / 1000, 3)


def percentile(values: list[float], share: float) -> float:
    """Nearest rank: a value that really occurred."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
