"""What a run of a batch needs besides the batch itself: its business, its items, how many there are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tidegate.batches.items import DataItems, Fields, Items, RedrivenItems, RowsWithData, SharedItems
from tidegate.batches.model import Batch, Business
from tidegate.batches.outcomes import redriven_items
from tidegate.batches.rows.files import RowFiles, Rows
from tidegate.batches.run.item_call import ItemCaller
from tidegate.batches.run.values import Extent
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock
from tidegate.http.client import SafeHttp
from tidegate.projects.callback_secrets import Signer
from tidegate.projects.model import Project

# Rows that are called within this time are indexed by the runner itself, if nobody else has done it.
_AHEAD_SECONDS = 60


class Preparations:
    def __init__(
        self,
        batches: BatchStore,
        rows: RowFiles,
        http: SafeHttp,
        sign: Signer,
        clock: Clock,
        business_of: Callable[[str, str], Business],
        project_of: Callable[[str], Project],
    ) -> None:
        self._batches = batches
        self._rows = rows
        self._http = http
        self._sign = sign
        self._clock = clock
        self._business_of = business_of
        self._project_of = project_of

    def work(self, batch: Batch) -> ItemCaller:
        project = self._project_of(batch.project_id)
        business = self._business_of(batch.project_id, batch.biz_id)
        return ItemCaller(
            batch, business.process_url, project, self._http, self._sign, self._clock, shared_rate=business.rate
        )

    def items(self, batch: Batch, runner: int) -> Items:
        items = self._all_items(batch)
        return SharedItems(items, batch.share(runner)) if batch.runners > 1 else items

    def first_items(self, batch: Batch, count: int) -> list[tuple[int, Fields]]:
        """(index, fields) of so many items from the start on; a file is read only as far as they go."""
        start = batch.start_index
        if batch.source and not batch.redrive_of:
            rows = self._rows.first_rows(batch.project_id, batch.source, start + count)
            items: Items = RowsWithData(rows.__getitem__, self._data(batch))
            count = min(count, len(rows) - start)
        else:
            items = self._all_items(batch)
            count = min(count, (batch.total or 0) - start)
        return [(items.name(at), items.fields(at)) for at in range(start, start + count)]

    def _all_items(self, batch: Batch) -> Items:
        rows = self.rows(batch)
        if rows is None:
            return DataItems(self._data(batch))
        # Each of several runners takes every nth block.
        row = partial(rows.row, ahead=batch.runners)
        if batch.redrive_of:
            return RedrivenItems(row, lambda: rows.index.known[0], batch.redrive_of)
        return RowsWithData(row, self._data(batch))

    def rows(self, batch: Batch) -> Rows | None:
        """Where its items are rows of a file, or those that failed in another batch."""
        if batch.redrive_of:
            return self._rows.of_object(redriven_items(batch))
        return self._rows.rows(batch.project_id, batch.source) if batch.source else None

    def _data(self, batch: Batch) -> Callable[[], Any]:
        """Read for each item of a serial batch: its business may change them before it answers the item before."""
        if batch.serial:
            return lambda: self._batches.job_data(batch.project_id, batch.batch_id)
        known = self._batches.job_data(batch.project_id, batch.batch_id)
        return lambda: known

    def extent(self, batch: Batch, at: int, *, wait: bool = False) -> Extent:
        """A file is counted while its batch runs; a smaller total, if one was given, holds."""
        rows = self.rows(batch)
        if rows is None:
            return Extent(batch.total or 0)
        known, complete = rows.know(at + 1) if wait else rows.look_ahead(at + round(batch.rate * _AHEAD_SECONDS))
        if batch.total is None:
            return Extent(known, complete)
        return Extent(min(known, batch.total), complete or known >= batch.total)

    def indexers(self, batch: Batch) -> int:
        """How many functions beside the runners make the index of its rows."""
        rows = self.rows(batch)
        return rows.indexers if rows else 0

    def index_rows(self, batch: Batch, indexer: int, goes_on: Callable[[], bool]) -> bool:
        """The ranges of one of these functions. False if it was told to end before it was done."""
        rows = self.rows(batch)
        return rows is None or rows.index.make_ranges(indexer + 1, rows.indexers, goes_on)
