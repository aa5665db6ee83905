"""The items of a batch: the fields that the business gets, and the outcomes that are kept in S3."""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from tidegate.batches.model import ABANDONED, ACTIVE, FAILED, RECOVERED, Batch, Outcome, Share
from tidegate.batches.rows import RowBucket
from tidegate.errors import WrongState

# --- items
# The items of a batch: the fields that the business gets with each of them, and their indexes.

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


# --- outcomes
# Items that failed, were abandoned or recovered, in S3: index, data, attempts and the last answer of each.
#
# Outcomes are written in numbered parts, each before the progress that counts it. If a runner dies in between, the next
# holder of the lease writes a part with the same number and a higher fencing token. So of several parts with one number
# the highest token is valid, and parts beyond the number in the progress are not.

# The number of valid parts of each runner.
Parts = Sequence[int]
STATES = (FAILED, ABANDONED, RECOVERED)
RESULTS_LINK_SECONDS = 3600
# Up to this many parts are merged by an API call while the batch runs; the runner merges them at the end.
_MOST_PARTS_A_CALL = 2000
_READERS = 16


class Outcomes:
    def __init__(self, objects: RowBucket) -> None:
        self._objects = objects

    def write_part(
        self, batch: Batch, runner: int, part: int, fence: int, outcomes: Sequence[Outcome], items: Items
    ) -> None:
        # By index, so that each block of rows is read only once.
        ordered = sorted(outcomes, key=lambda outcome: outcome.index)
        lines = (json.dumps(_line(outcome, items), separators=(",", ":")) for outcome in ordered)
        self._objects.put(
            f"{_parts(batch, runner)}{part:09d}-{fence:09d}.jsonl", "".join(f"{line}\n" for line in lines).encode()
        )

    def page(
        self, batch: Batch, parts: Parts, state: str | None, limit: int, after: int | None
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Returns up to `limit` items by index, and the index to continue after; None after the last page."""
        found: list[dict[str, Any]] = []
        for line in self._lines(batch, parts):
            if after is not None and line["index"] <= after:
                continue
            if state is not None and line["state"] != state:
                continue
            if len(found) == limit:
                return found, int(found[-1]["index"])
            found.append(line)
        return found, None

    def copy_items(self, batch: Batch, parts: Parts, states: Sequence[str], made: Batch) -> int:
        """Writes the items in these states as the items of the batch `made`. Returns their number."""
        count = 0

        def lines() -> Iterator[bytes]:
            nonlocal count
            for line in self._lines(batch, parts):
                if line["state"] in states:
                    count += 1
                    yield json.dumps(line, separators=(",", ":")).encode() + b"\n"

        self._objects.stream(redriven_items(made), lines(), "application/jsonl")
        return count

    def merge(self, batch: Batch, parts: Parts) -> str:
        """Writes all outcomes by index to one JSONL object, unless there is one for these parts. Returns its key."""
        key = _merged(batch, parts)
        if self._objects.size(key) is None:
            lines = (json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in self._gather(batch, parts))
            self._objects.stream(key, lines, "application/jsonl")
        return key

    def link(self, batch: Batch, parts: Parts) -> tuple[str, str]:
        """Returns (presigned URL of the merged outcomes, file name)."""
        self._refuse_too_many(batch, parts)
        name = f"{batch.batch_id}-results.jsonl"
        return self._objects.link(self.merge(batch, parts), RESULTS_LINK_SECONDS, name), name

    def _refuse_too_many(self, batch: Batch, parts: Parts) -> None:
        """An active batch merges its outcomes itself when it ends; an ended one may have been unable to."""
        if batch.status not in ACTIVE or sum(parts) <= _MOST_PARTS_A_CALL:
            return
        if self._objects.size(_merged(batch, parts)) is None:
            raise WrongState(
                f"the batch is {batch.status} and has {sum(parts)} parts of outcomes, more than a call can merge; "
                "they are merged when it stops or finishes"
            )

    def _lines(self, batch: Batch, parts: Parts) -> Iterable[dict[str, Any]]:
        """Returns the outcomes by index, from the merged object if there is one."""
        self._refuse_too_many(batch, parts)
        key = _merged(batch, parts)
        if sum(parts) > _MOST_PARTS_A_CALL:
            self.merge(batch, parts)
        elif self._objects.size(key) is None:
            return self._gather(batch, parts)
        return (json.loads(line) for line in self._objects.lines(key))

    def _gather(self, batch: Batch, parts: Parts) -> list[dict[str, Any]]:
        """Returns the last outcome of each item: an item that failed may have succeeded in a later run."""
        with ThreadPoolExecutor(_READERS, thread_name_prefix="outcomes") as pool:
            texts = pool.map(self._objects.get, self._valid_parts(batch, parts))
            last = {line["index"]: line for text in texts for line in map(json.loads, (text or b"").splitlines())}
        return [last[index] for index in sorted(last)]

    def _valid_parts(self, batch: Batch, parts: Parts) -> list[str]:
        return [key for runner, count in enumerate(parts) if count for key in self._parts_of(batch, runner, count)]

    def _parts_of(self, batch: Batch, runner: int, count: int) -> list[str]:
        prefix = _parts(batch, runner)
        chosen: dict[int, str] = {}
        for key in self._objects.keys(prefix):
            # Keys are listed in order, so the highest fencing token of a part comes last.
            chosen[int(key.removeprefix(prefix).partition("-")[0])] = key
        return [chosen[part] for part in sorted(chosen) if part <= count]


def _line(outcome: Outcome, items: Items) -> dict[str, Any]:
    fields = items.fields(outcome.index)
    data = {name: fields[name] for name in ("job_data", "batch_data") if name in fields}
    index = items.index(outcome.index)
    line = {"index": index, "state": outcome.state, "attempts": outcome.attempts, "answer": outcome.answer.shown()}
    return line | data


def _folder(batch: Batch) -> str:
    return f"batches/{batch.project_id}/{batch.batch_id}/"


def _parts(batch: Batch, runner: int) -> str:
    return f"{_folder(batch)}outcomes-{runner:02d}/" if runner else f"{_folder(batch)}outcomes/"


def _merged(batch: Batch, parts: Parts) -> str:
    return f"{_folder(batch)}results-{sum(parts):09d}.jsonl"


def redriven_items(batch: Batch) -> str:
    """Returns the key of the object with the items of a batch that a redrive created."""
    return f"{_folder(batch)}items.ndjson"
