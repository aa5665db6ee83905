"""Runs daily at 02:00.

Archives and deletes records past their retention, then deletes what crashed steps left behind.
"""

from __future__ import annotations

from typing import Any

from aws_lambda_powertools import Metrics
from aws_lambda_powertools.metrics import MetricUnit

from tidegate.app import app
from tidegate.queue.retention import clean, foreign_store, sweep

_RESERVE_MS = 60_000
# However many records are past their retention, the sweep gets this much of the 900 s.
_SWEEP_MS = 300_000


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    if app().freeze.now().frozen:
        return {"removed": 0, "objects": 0, "uploads": 0, "orphans": 0}
    stopped = True
    try:
        done = _cleaned(context)
        stopped = "stopped" in done
    finally:
        # Also after a failure: one failed invocation a day does not set off the alarm on failed invocations.
        metrics = Metrics(service="clean_up")
        metrics.add_metric("CleanUpStopped", MetricUnit.Count, 1 if stopped else 0)
        metrics.flush_metrics()
    return done


def _cleaned(context: Any) -> dict[str, Any]:
    removed = objects = 0
    # Nothing is deleted for a table that does not belong to the bucket.
    more = foreign_store(app().queue) is None
    while more and context.get_remaining_time_in_millis() > _RESERVE_MS + _SWEEP_MS:
        cleaned = clean(app().queue)
        removed, objects, more = removed + cleaned.removed, objects + cleaned.objects, cleaned.more
    swept = sweep(app().queue, lambda: context.get_remaining_time_in_millis() > _RESERVE_MS)
    done = {"removed": removed, "objects": objects, "uploads": swept.uploads, "orphans": swept.orphans}
    return done | ({"stopped": swept.stopped.run_id} if swept.stopped else {})
