"""Businesses, batches, their items and recurring batches."""

from __future__ import annotations

from tidegate_client.model import Model

# Data that callers store with a batch: any JSON.
Json = dict[str, object] | list[object] | str | float | bool | None


class BatchProgress(Model):
    processed: int
    total: int | None
    percent: float | None
    errors: int
    succeeded: int
    failed: int
    abandoned: int
    failed_calls: int
    retrying: int
    awaiting: int
    rate_now: float
    offset: int | None
    eta: str | None


class Batch(Model):
    batch_id: str
    biz_id: str
    name: str
    status: str
    progress: BatchProgress
    stop_reason: str | None
    redrive_of: str | None


class BatchSchedule(Model):
    """A recurring batch; times are UTC. `batch`, what it creates each time, is not in lists."""

    schedule_id: str
    schedule: str
    status: str
    revision: int
    biz_id: str
    name: str
    next_run: str | None
    last_batch_id: str | None
    last_error: str | None
    created_at: str
    created_by: str
    batch: dict[str, object] | None


class BatchRun(Model):
    """One run of a recurring batch: `started`, or `skipped` with the reason. `batch`: the batch as it is now."""

    due: str
    state: str
    batch_id: str | None
    reason: str | None
    batch: Batch | None


class BatchItem(Model):
    index: int
    state: str
    attempts: int
    answer: dict[str, object]
    job_data: Json
    batch_data: Json


class DryRunItem(Model):
    """One item of a dry run. `answer` is the answer of the business, or why there is none."""

    index: int
    answer: dict[str, object]
    job_data: Json


class Business(Model):
    biz_id: str
    name: str
    process_url: str
