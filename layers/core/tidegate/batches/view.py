"""A batch as callers, callbacks and businesses see it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tidegate.batches.model import OPTIONS, Batch
from tidegate.batches.progress import Progress


def for_business(batch: Batch) -> dict[str, Any]:
    """Returns what the business gets when it is asked for its consent."""
    names = ("batch_id", "biz_id", "name", "total", "rate", "start_index")
    return {name: getattr(batch, name) for name in names}


def shown(batch: Batch, progress: Progress) -> dict[str, Any]:
    names = ("status", "stop_reason", "request_id", "redrive_of", *OPTIONS)
    source = {"source": asdict(batch.source)} if batch.source else {}
    times = {"create_time": batch.created_at, "start_time": batch.start_time, "finish_time": batch.finish_time}
    windows = [{"start": clock_text(start), "end": clock_text(end)} for start, end in batch.pause_windows]
    fields = for_business(batch) | {name: getattr(batch, name) for name in names} | times | source
    fields["pause_windows"] = windows or None
    return {name: value for name, value in fields.items() if value is not None} | {"progress": progress.shown(batch)}


def clock_text(seconds: int) -> str:
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}"
