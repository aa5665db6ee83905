"""Sends the first items to the business and returns its answers, without counting them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tidegate.batches.model import Batch
from tidegate.batches.preparations import Preparations
from tidegate.common.slices import slices

MOST_ITEMS = 10
# The API answers within 29 s.
_SECONDS = 20.0


class DryRun:
    def __init__(self, prepare: Preparations, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._prepare = prepare
        self._monotonic = monotonic

    def run(self, batch: Batch, count: int) -> list[dict[str, Any]]:
        """Calls the first items one after another and returns the answers. Counts, logs and retries nothing."""
        work = self._prepare.work(batch)
        entries = [{"index": index, "attempt": 1} | fields for index, fields in self._prepare.first_items(batch, count)]
        until = self._monotonic() + _SECONDS
        answers: list[dict[str, Any]] = []
        connection = work.connect(_SECONDS / 2)
        try:
            for call in slices(entries, batch.items_per_call):
                if self._monotonic() > until - _SECONDS / 2:
                    break
                answers += [parsed.answer.shown() for parsed in work.dry_call(connection, call)]
        finally:
            connection.close()
        late = {
            "result": "error",
            "msg": f"not called: the items before it took the {_SECONDS:g} s that a dry run may take",
        }
        answers += [late] * (len(entries) - len(answers))
        return [
            {"index": item["index"], "answer": answer} | ({"job_data": item["job_data"]} if "job_data" in item else {})
            for item, answer in zip(entries, answers, strict=True)
        ]
