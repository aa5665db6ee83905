"""Figures of the last hour by type of work, from the records that ended in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidegate.queue.stats import percentile

SPAN = timedelta(hours=1)
POINTS = 30


@dataclass(frozen=True, slots=True)
class Ended:
    type: str
    succeeded: bool
    started: datetime
    ended: datetime

    @property
    def seconds(self) -> float:
        return max(0.0, (self.ended - self.started).total_seconds())


@dataclass(frozen=True, slots=True)
class Point:
    """One interval of the hour: how many records ended in it, and how many of them failed."""

    count: int
    failed: int


@dataclass(frozen=True, slots=True)
class TypeSummary:
    type: str
    count: int
    success_rate: float
    mean_s: float
    p95_s: float
    points: tuple[Point, ...]


def by_type(records: Iterable[Ended], now: datetime) -> list[TypeSummary]:
    """A summary of each type, the busiest type first."""
    found: dict[str, list[Ended]] = {}
    for record in records:
        if now - SPAN < record.ended <= now:
            found.setdefault(record.type, []).append(record)
    summaries = [_summary(name, ended, now) for name, ended in found.items()]
    return sorted(summaries, key=lambda summary: (-summary.count, summary.type))


def _summary(name: str, ended: Sequence[Ended], now: datetime) -> TypeSummary:
    seconds = [record.seconds for record in ended]
    return TypeSummary(
        type=name,
        count=len(ended),
        success_rate=sum(record.succeeded for record in ended) / len(ended),
        mean_s=round(sum(seconds) / len(seconds), 3),
        p95_s=round(percentile(seconds, 0.95), 3),
        points=_points(ended, now),
    )


def _points(ended: Sequence[Ended], now: datetime) -> tuple[Point, ...]:
    counts, failures = [0] * POINTS, [0] * POINTS
    for record in ended:
        place = POINTS - 1 - min(POINTS - 1, int((now - record.ended) / (SPAN / POINTS)))
        counts[place] += 1
        failures[place] += not record.succeeded
    return tuple(Point(count, failed) for count, failed in zip(counts, failures, strict=True))
