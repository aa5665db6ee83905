"""What belongs to each item: the fields that the business gets besides its index."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.batches.run.share import Share

Fields = dict[str, Any]


class Items(Protocol):
    def fields(self, position: int, /) -> Fields:
        """`job_data` and whatever else is sent with the item at this position."""

    def name(self, position: int, /) -> int:
        """The index by which the business knows the item."""

    def position(self, index: int, /) -> int | None:
        """Where the item of this index is; -1 if there is none, None if another runner has it."""


class DataItems:
    """Items of the batch's own data: one entry of a list each, or the same object for all of them."""

    def __init__(self, data: Callable[[], Any]) -> None:
        self._data = data

    def fields(self, position: int) -> Fields:
        data = self._data()
        if isinstance(data, list):
            return {"job_data": data[position]}
        return {} if data is None else {"job_data": data}

    def name(self, position: int) -> int:
        return position

    def position(self, index: int) -> int:
        return index


class RowsWithData:
    """Rows of a file; the batch's own data, if it has any, go with each of them as `batch_data`."""

    def __init__(self, row: Callable[[int], Any], data: Callable[[], Any]) -> None:
        self._row = row
        self._data = data

    def fields(self, position: int) -> Fields:
        data = self._data()
        return {"job_data": self._row(position)} | ({} if data is None else {"batch_data": data})

    def name(self, position: int) -> int:
        return position

    def position(self, index: int) -> int:
        return index


class RedrivenItems:
    """Items that failed in another batch: the business sees the index and the data that they had there."""

    def __init__(self, row: Callable[[int], Any], count: Callable[[], int], batch_id: str) -> None:
        """`count`: how many of them are known."""
        self._row = row
        self._count = count
        self._batch_id = batch_id

    def fields(self, position: int) -> Fields:
        kept = self._row(position)
        names = ("job_data", "batch_data")
        return {name: kept[name] for name in names if name in kept} | {"redrive_of": self._batch_id}

    def name(self, position: int) -> int:
        return int(self._row(position)["index"])

    def position(self, index: int) -> int:
        count = self._count()
        found = bisect_left(range(count), index, key=self.name)
        return found if found < count and self.name(found) == index else -1


class SharedItems:
    """Those of one runner, by its own positions."""

    def __init__(self, items: Items, share: Share) -> None:
        self._items = items
        self._share = share

    def fields(self, position: int) -> Fields:
        return self._items.fields(self._share.index(position))

    def name(self, position: int) -> int:
        return self._items.name(self._share.index(position))

    def position(self, index: int) -> int | None:
        place = self._items.position(index)
        if place is None or place < 0:
            # Of no item: the first runner clears it away.
            return -1 if self._share.runner == 0 else None
        return self._share.below(place) if self._share.owns(place) else None
