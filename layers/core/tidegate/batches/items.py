"""The items of a batch: the fields that the business gets with each of them, and their indexes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any, Protocol

from tidegate.batches.run.share import Share

Fields = dict[str, Any]


class Items(Protocol):
    def fields(self, position: int, /) -> Fields:
        """Returns `job_data` and the other fields that are sent with the item at this position."""

    def index(self, position: int, /) -> int:
        """Returns the index by which the business knows the item."""

    def position(self, index: int, /) -> int | None:
        """Returns the position of the item with this index; -1 if there is no such item; None if another runner has
        it, or if its row is not indexed yet."""


class DataItems:
    """Items from the batch's own data: each has one entry of a list, or all have the same object."""

    def __init__(self, data: Callable[[], Any]) -> None:
        self._data = data

    def fields(self, position: int) -> Fields:
        data = self._data()
        if isinstance(data, list):
            return {"job_data": data[position]}
        return {} if data is None else {"job_data": data}

    def index(self, position: int) -> int:
        return position

    def position(self, index: int) -> int:
        return index


class RowsWithData:
    """Rows of a file, each with the batch's own data, if any, as `batch_data`."""

    def __init__(self, row: Callable[[int], Any], data: Callable[[], Any]) -> None:
        self._row = row
        self._data = data

    def fields(self, position: int) -> Fields:
        data = self._data()
        return {"job_data": self._row(position)} | ({} if data is None else {"batch_data": data})

    def index(self, position: int) -> int:
        return position

    def position(self, index: int) -> int:
        return index


class RedrivenItems:
    """Items that failed in another batch, with the index and the data that they had there."""

    def __init__(self, row: Callable[[int], Any], known: Callable[[], tuple[int, bool]], batch_id: str) -> None:
        """`known` returns (number of items indexed so far, whether these are all)."""
        self._row = row
        self._known = known
        self._batch_id = batch_id

    def fields(self, position: int) -> Fields:
        row = self._row(position)
        names = ("job_data", "batch_data")
        return {name: row[name] for name in names if name in row} | {"redrive_of": self._batch_id}

    def index(self, position: int) -> int:
        return int(self._row(position)["index"])

    def position(self, index: int) -> int | None:
        count, complete = self._known()
        found = bisect_left(range(count), index, key=self.index)
        if found == count and not complete:
            return None
        return found if found < count and self.index(found) == index else -1


class SharedItems:
    """The items of one runner, by its own positions."""

    def __init__(self, items: Items, share: Share) -> None:
        self._items = items
        self._share = share

    def fields(self, position: int) -> Fields:
        return self._items.fields(self._share.index(position))

    def index(self, position: int) -> int:
        return self._items.index(self._share.index(position))

    def position(self, index: int) -> int | None:
        place = self._items.position(index)
        if place is None:
            return None
        if place < 0:
            # The first runner deletes results of items that do not exist.
            return -1 if self._share.runner == 0 else None
        return self._share.below(place) if self._share.owns(place) else None
