"""Windows: equal intervals of time. All requests for one file within a window share a Job."""

from __future__ import annotations

from datetime import UTC, datetime


def bucket_of(moment: datetime, window_seconds: int) -> int:
    return int(moment.timestamp()) // window_seconds


def window_end(bucket: int, window_seconds: int) -> datetime:
    """The first moment after the window."""
    return datetime.fromtimestamp((bucket + 1) * window_seconds, UTC)
