"""Checks of a new batch."""

from __future__ import annotations

import json
from typing import Any

from tidegate.batches.model import LONGEST_SYNC_ITEM_TIMEOUT, MOST_WORKERS, SYNC, NewBatch
from tidegate.errors import Invalid

LONGEST_DATA = 300_000


def check_new(new: NewBatch) -> None:
    """Raises Invalid if fields contradict each other."""
    refuse_large(new.job_data)
    if new.progress_url and not (new.progress_every_items or new.progress_every_percent):
        raise invalid(
            "progress_url", "give progress_every_items or progress_every_percent too: they set how often it is called"
        )
    if new.ack == SYNC and new.item_timeout > LONGEST_SYNC_ITEM_TIMEOUT:
        message = (
            f'a synchronous answer may take {LONGEST_SYNC_ITEM_TIMEOUT} s at most; use ack: "async" for longer ones'
        )
        raise invalid("item_timeout", message)
    if new.concurrency is not None and not new.runners <= new.concurrency <= new.runners * MOST_WORKERS:
        message = f"must be from {new.runners} to {new.runners * MOST_WORKERS} with runners: {new.runners}"
        raise invalid("concurrency", message)


def total_of(new: NewBatch) -> int | None:
    """Returns the number of items; None if the rows of a file must be counted first."""
    total = new.total
    if new.file_id is None and isinstance(new.job_data, list):
        total = len(new.job_data) if total is None else total
        if total > len(new.job_data):
            raise invalid("total", f"is {total}, but job_data has only {len(new.job_data)} entries")
    if total is None and new.file_id is None:
        raise invalid("total", "the number of items is missing: give total, a list as job_data, or a file as source")
    if total is not None and new.start_index > total:
        raise invalid("start_index", f"is {new.start_index}, but the batch has only {total} items")
    return total


def refuse_large(job_data: Any) -> None:
    if len(json.dumps(job_data)) > LONGEST_DATA:
        raise invalid(
            "job_data",
            f"has more than {LONGEST_DATA:,} bytes as JSON: upload the items as a file and give it as source",
        )


def invalid(field: str, message: str) -> Invalid:
    return Invalid(message, errors=[{"loc": ["body", field], "msg": message}])
