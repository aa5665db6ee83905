"""Figures of the last hour by type."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tidegate.web.console.routes import POINTS, Ended, by_type

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def ended(kind: str, *, ago: float, took: float = 1, succeeded: bool = True) -> Ended:
    end = NOW - timedelta(seconds=ago)
    return Ended(kind, succeeded, end - timedelta(seconds=took), end)


def test_types_are_summarised_separately_busiest_first() -> None:
    records = [ended("scan", ago=1)] + [ended("export", ago=1, took=t, succeeded=t < 4) for t in (1, 2, 3, 4)]

    export, scan = by_type(records, NOW)

    assert (export.type, export.count, export.success_rate, export.mean_s, export.p95_s) == ("export", 4, 0.75, 2.5, 4)
    assert (scan.type, scan.success_rate) == ("scan", 1.0)


def test_only_the_last_hour_counts() -> None:
    assert by_type([ended("scan", ago=3601), ended("scan", ago=-1)], NOW) == []


def test_points_are_ordered_from_oldest_to_newest_interval() -> None:
    (summary,) = by_type([ended("scan", ago=0), ended("scan", ago=3599, succeeded=False)], NOW)

    assert len(summary.points) == POINTS
    assert (summary.points[0].count, summary.points[0].failed) == (1, 1)
    assert (summary.points[-1].count, summary.points[-1].failed) == (1, 0)
    assert sum(point.count for point in summary.points) == 2
