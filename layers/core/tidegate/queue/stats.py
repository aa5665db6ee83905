"""Figures over requests that ended: how many, how well, how long."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from tidegate.queue.model import COMPLETED, FAILED, Request


@dataclass(frozen=True, slots=True)
class TypeStats:
    count: int
    by_status: dict[str, int] = field(default_factory=dict)
    success_rate: float | None = None
    mean_s: float | None = None
    p95_s: float | None = None


def percentile(values: list[float], share: float) -> float:
    """Nearest rank: a value that really occurred."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def stats_by_type(requests: Iterable[Request]) -> dict[str, TypeStats]:
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, list[float]] = defaultdict(list)
    for request in requests:
        statuses[request.type][request.status] += 1
        if request.status in (COMPLETED, FAILED) and request.start_time and request.finish_time:
            took = datetime.fromisoformat(request.finish_time) - datetime.fromisoformat(request.start_time)
            seconds[request.type].append(took.total_seconds())
    return {kind: _stats(counted, seconds[kind]) for kind, counted in sorted(statuses.items())}


def _stats(counted: Counter[str], seconds: list[float]) -> TypeStats:
    ended = counted[COMPLETED] + counted[FAILED]
    return TypeStats(
        count=counted.total(),
        by_status=dict(counted),
        success_rate=round(counted[COMPLETED] / ended, 4) if ended else None,
        mean_s=round(sum(seconds) / len(seconds), 3) if seconds else None,
        p95_s=round(percentile(seconds, 0.95), 3) if seconds else None,
    )
