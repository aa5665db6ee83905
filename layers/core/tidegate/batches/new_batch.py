"""What a new batch must be like."""

from __future__ import annotations

import json
from typing import Any

from tidegate.batches.model import LONGEST_SYNC_ITEM_TIMEOUT, MOST_WORKERS, SYNC, NewBatch
from tidegate.errors import Invalid

LONGEST_DATA = 300_000


def check_new(new: NewBatch) -> None:
    """Invalid if its fields contradict each other."""
    refuse_large(new.job_data)
    if new.progress_url and not (new.progress_every_items or new.progress_every_percent):
        raise invalid("progress_url", "say how often: progress_every_items or progress_every_percent")
    if new.ack == SYNC and new.item_timeout > LONGEST_SYNC_ITEM_TIMEOUT:
        told = f'a synchronous answer is waited for {LONGEST_SYNC_ITEM_TIMEOUT} s at most; use ack: "async"'
        raise invalid("item_timeout", told)
    if new.concurrency is not None and not new.runners <= new.concurrency <= new.runners * MOST_WORKERS:
        told = f"with {new.runners} runners from {new.runners} to {new.runners * MOST_WORKERS} calls at once"
        raise invalid("concurrency", told)


def total_of(new: NewBatch) -> int | None:
    total = new.total
    if new.file_id is None and isinstance(new.job_data, list):
        total = len(new.job_data) if total is None else total
        if total > len(new.job_data):
            raise invalid("total", f"job_data lists {len(new.job_data)} items")
    if total is None and new.file_id is None:
        raise invalid("total", "how many items? Give total, a list as job_data, or a file as source")
    if total is not None and new.start_index > total:
        raise invalid("start_index", "lies behind the last item")
    return total


def refuse_large(job_data: Any) -> None:
    if len(json.dumps(job_data)) > LONGEST_DATA:
        raise invalid("job_data", f"holds more than {LONGEST_DATA} bytes; put the items into a file of the library")


def invalid(field: str, message: str) -> Invalid:
    return Invalid(message, errors=[{"loc": ["body", field], "msg": message}])
