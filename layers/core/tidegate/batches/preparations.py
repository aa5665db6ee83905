"""Looks up what a run needs besides the batch itself: the business, the items and their number."""

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

# The runner indexes rows that it will call within this time, unless an indexer has done it.
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
        """Returns (index, fields) of the first `count` items. Reads a file only as far as needed."""
        start = batch.start_index
        if batch.source and not batch.redrive_of:
            rows = self._rows.first_rows(batch.project_id, batch.source, start, count)
            items: Items = RowsWithData(lambda at: rows[at - start], self._data(batch))
            count = len(rows)
        else:
            items = self._all_items(batch)
            count = min(count, (batch.total or 0) - start)
        return [(items.index(at), items.fields(at)) for at in range(start, start + count)]

    def _all_items(self, batch: Batch) -> Items:
        rows = self.rows(batch)
        if rows is None:
            return DataItems(self._data(batch))
        # With n runners, this runner's next block is n blocks ahead.
        row = partial(rows.row, ahead=batch.runners)
        if batch.redrive_of:
            return RedrivenItems(row, lambda: rows.index.indexed, batch.redrive_of)
        return RowsWithData(row, self._data(batch))

    def rows(self, batch: Batch) -> Rows | None:
        """Returns the rows, if its items are rows of a file or failed items of another batch; else None."""
        if batch.redrive_of:
            return self._rows.of_object(redriven_items(batch))
        return self._rows.rows(batch.project_id, batch.source) if batch.source else None

    def _data(self, batch: Batch) -> Callable[[], Any]:
        """Returns a function that returns the batch's data. A serial batch reads them for each item, because its
        business may change them between items."""
        if batch.serial:
            return lambda: self._batches.job_data(batch.project_id, batch.batch_id)
        data = self._batches.job_data(batch.project_id, batch.batch_id)
        return lambda: data

    def extent(self, batch: Batch, at: int, *, wait: bool = False) -> Extent:
        """Returns how many items are known. Rows of a file are counted while the batch runs, up to a given total."""
        rows = self.rows(batch)
        if rows is None:
            return Extent(batch.total or 0)
        indexed, complete = (
            rows.ensure_indexed(at + 1) if wait else rows.look_ahead(at + round(batch.rate * _AHEAD_SECONDS))
        )
        if batch.total is None:
            return Extent(indexed, complete)
        return Extent(min(indexed, batch.total), complete or indexed >= batch.total)

    def indexers(self, batch: Batch) -> int:
        """Returns how many functions index its rows besides the runners."""
        rows = self.rows(batch)
        return rows.indexers if rows else 0

    def index_rows(self, batch: Batch, indexer: int, may_continue: Callable[[], bool]) -> bool:
        """Indexes the ranges of one of these functions. False if it had to stop before the last one."""
        rows = self.rows(batch)
        return rows is None or rows.index.index_ranges(indexer + 1, rows.indexers, may_continue)
