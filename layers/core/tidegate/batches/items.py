"""The items of a batch: what the business gets, what it answers, and the outcomes and results that are kept."""

from __future__ import annotations

import csv
import heapq
import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from io import BytesIO, StringIO
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, Protocol

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, Write, check, update
from tidegate.batches.model import (
    ABANDONED,
    ACTIVE,
    FAILED,
    RECOVERED,
    STOPPED,
    Batch,
    Decision,
    Extent,
    ItemOutcome,
    ItemResult,
    Share,
)
from tidegate.batches.rows import RowBucket, Rows
from tidegate.batches.store import progress_from
from tidegate.common.ids import iso
from tidegate.errors import LeaseLost, NotReady, WrongState

if TYPE_CHECKING:
    from tidegate.batches import Batches

# --- items
# The items of a batch: the fields that the business gets with each of them, and their indexes.

Fields = dict[str, Any]


class Items(Protocol):
    def fields(self, position: int, /) -> Fields:
        """Returns `job_data` and the other fields that are sent with the item at this position."""

    def index(self, position: int, /) -> int:
        """Returns the index by which the business knows the item."""

    def position(self, index: int, /) -> int | None:
        """Returns the position of the item with this index; -1 if there is no such item.

        None if another runner has the item, or if the row of the item is not indexed yet.
        """


class DataItems:
    """Items of a batch without rows.

    Each item gets one entry of `job_data`, or all of `job_data` if it is not a list.
    """

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
    """The items of one runner, numbered by its own positions."""

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


# --- the items of a batch
# From its data, the rows of its file, or the failed items of another batch.

# The runner indexes rows that it will call within this time, unless an indexer has done it.
_AHEAD_SECONDS = 60
MOST_ROWS = 10**15


def items_of(b: Batches, batch: Batch, runner: int) -> Items:
    """Returns the items that this runner calls."""
    items = _all_items(b, batch)
    return SharedItems(items, batch.share(runner)) if batch.runners > 1 else items


def position_of(b: Batches, batch: Batch, index: int) -> int | None:
    """Returns the position of the item with this index among all items of the batch. None if there is no such item."""
    if not batch.redrive_of:
        return index if batch.start_index <= index and (batch.total is None or index < batch.total) else None
    extent_of(b, batch, batch.total or 0, wait=True)
    found = _all_items(b, batch).position(index)
    return found if found is not None and found >= 0 else None


def first_items(b: Batches, batch: Batch, count: int) -> list[tuple[int, Fields]]:
    """Returns (index, fields) of the first `count` items. Reads a file only as far as needed."""
    start = batch.start_index
    if batch.source and batch.source.s3_url is None and not batch.redrive_of:
        rows = b.rows.first_rows(batch.project_id, batch.source, start, count)
        items: Items = RowsWithData(lambda at: rows[at - start], _data(b, batch))
        count = len(rows)
    else:
        items = _all_items(b, batch)
        count = min(count, extent_of(b, batch, start + count, wait=True).items - start)
    return [(items.index(at), items.fields(at)) for at in range(start, start + count)]


def _all_items(b: Batches, batch: Batch) -> Items:
    rows = rows_of(b, batch)
    if rows is None:
        return DataItems(_data(b, batch))
    # With n runners, this runner's next block is n blocks ahead.
    row = partial(rows.row, ahead=batch.runners)
    if batch.redrive_of:
        return RedrivenItems(row, lambda: rows.index.indexed, batch.redrive_of)
    return RowsWithData(row, _data(b, batch))


def rows_of(b: Batches, batch: Batch) -> Rows | None:
    """Returns the rows that are the items of the batch. None if the items are not rows.

    The rows come from a file, from the objects of a bucket or from the failed items of another batch.
    """
    if batch.redrive_of:
        return b.rows.of_object(redriven_items(batch))
    if batch.source is None:
        return None
    return b.rows.of_listing(listing_of(batch)) if batch.source.s3_url else b.rows.rows(batch.project_id, batch.source)


def _data(b: Batches, batch: Batch) -> Callable[[], Any]:
    """Returns a function that returns the batch's data.

    A serial batch reads its data anew for each item, because its business may change them between two items.
    """
    if batch.serial:
        return lambda: b.store.job_data(batch.project_id, batch.batch_id)
    data = b.store.job_data(batch.project_id, batch.batch_id)
    return lambda: data


def extent_of(b: Batches, batch: Batch, at: int, *, wait: bool = False) -> Extent:
    """Returns how many items are known. Rows of a file are counted while the batch runs, up to a given total."""
    rows = rows_of(b, batch)
    if rows is None:
        return Extent(batch.total or 0)
    indexed, complete = (
        rows.ensure_indexed(at + 1) if wait else rows.look_ahead(at + round(batch.rate * _AHEAD_SECONDS))
    )
    if batch.total is None:
        return Extent(indexed, complete)
    return Extent(min(indexed, batch.total), complete or indexed >= batch.total)


def check_rows(b: Batches, batch: Batch) -> int:
    """Indexes the first rows, or all rows of a small file. Raises Invalid if a row cannot be read.

    Returns how many further functions should index the remaining rows.
    """
    rows = rows_of(b, batch)
    if rows is None:
        return 0
    rows.ensure_indexed(batch.start_index + 1 if rows.indexers else MOST_ROWS)
    return rows.indexers


def index_rows(b: Batches, batch: Batch, indexer: int, may_continue: Callable[[], bool]) -> bool:
    """Indexes the ranges of the file that belong to this indexer.

    Returns False if it had to stop before the last range.
    """
    rows = rows_of(b, batch)
    return rows is None or rows.index.index_ranges(indexer + 1, rows.indexers, may_continue)


# --- answers
# What the business says about an item, in the answer to a call or in a separate result.

RESULTS = ("ok", "error", "abandon")
STOPS = (None, "stop", "finish")
MOST_LINES = 20
LONGEST_LINE = 1000
_EXPECTED = "the answer is not {result: ok | error | abandon, msg?, stop?: stop | finish, logs?}"


@dataclass(frozen=True, slots=True)
class ParsedAnswer:
    answer: ItemResult
    lines: tuple[tuple[str, str], ...] = ()


# Nearly all answers are this one, and parsing it is a quarter of a runner's work.
_OK, _PLAIN_OK = {"result": "ok"}, ParsedAnswer(ItemResult("ok"))


def read_answer(answer: object) -> ParsedAnswer:
    """Parses the answer for one item. Its `msg`, or else its first log line, is the reason shown to people."""
    if answer == _OK:
        return _PLAIN_OK
    if not isinstance(answer, dict) or answer.get("result") not in RESULTS or answer.get("stop") not in STOPS:
        return invalid_answer(_EXPECTED)
    lines = tuple(_lines(answer.get("logs")))
    is_plain = answer["result"] == "ok" and not answer.get("stop")
    reason = answer.get("msg") or (lines[0][1] if lines and not is_plain else "")
    detail = _text(reason) if reason else ""
    return ParsedAnswer(ItemResult(answer["result"], detail, stop=answer.get("stop")), lines)


def invalid_answer(why: str) -> ParsedAnswer:
    return ParsedAnswer(ItemResult("error", why))


def _lines(logs: object) -> list[tuple[str, str]]:
    """Returns (level, message) of the first log lines."""
    entries = logs if isinstance(logs, list) else [] if logs is None else [logs]
    found = []
    for entry in entries[:MOST_LINES]:
        if isinstance(entry, dict):
            level, message = str(entry.get("level") or "info")[:20], entry.get("message", entry)
        else:
            level, message = "info", entry
        found.append((_text(level), _text(message)))
    return found


def _text(value: object) -> str:
    """Returns text that can be stored: shortened, and valid UTF-8."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text[:LONGEST_LINE].encode("utf-8", "replace").decode()


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
# If there are more, each group of parts is merged first, over several calls: a long batch has hundreds of thousands.
_PARTS_A_GROUP = 250
_MERGE_SECONDS = 8.0
# Bytes of outcomes that are held at once.
_MOST_MERGED = 400 * 1024 * 1024
_READERS = 16
_REPORT_FIELDS = ("index", "state", "attempts", "time", "msg")
_CSV_HEAD = ",".join(_REPORT_FIELDS).encode() + b"\n"
_CONTENT_TYPES = {"csv": "text/csv; charset=utf-8", "jsonl": "application/jsonl"}
_COMPACT: Any = {"separators": (",", ":")}


class Outcomes:
    def __init__(self, objects: RowBucket) -> None:
        self._objects = objects

    def write_part(
        self, batch: Batch, runner: int, part: int, fence: int, outcomes: Sequence[ItemOutcome], items: Items
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
        """Returns (up to `limit` items by index, index to continue after). That index is None on the last page."""
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

    def merge(self, batch: Batch, parts: Parts, seconds: float = _MERGE_SECONDS) -> str:
        """Writes all outcomes, ordered by index, to one JSONL object, unless it exists. Returns the object's key.

        Raises NotReady if there is not enough time for all of them. The next call continues where this one ended.
        """
        key = _merged(batch, parts)
        if self._objects.size(key) is None:
            self._objects.stream(key, self._gather(batch, parts, seconds), "application/jsonl")
        return key

    def link(self, batch: Batch, parts: Parts) -> tuple[str, str]:
        """Returns (presigned URL of the merged outcomes, file name)."""
        self._refuse_too_many(batch, parts)
        name = f"{batch.batch_id}-results.jsonl"
        return self._objects.link(self.merge(batch, parts), RESULTS_LINK_SECONDS, name), name

    def write_report(
        self, batch: Batch, runner: int, part: int, fence: int, done: Sequence[ItemOutcome], items: Items
    ) -> None:
        """Stores one part of the report.

        Parts of the report are numbered, and become valid, in the same way as parts of outcomes.
        """
        lines = (_report_line(outcome, items.index(outcome.index)) for outcome in done)
        self._objects.put(f"{_report(batch, runner)}{part:09d}-{fence:09d}.jsonl", "".join(lines).encode())

    def report(self, batch: Batch, parts: Parts, form: str) -> tuple[str, str]:
        """Returns (presigned URL, file name) of a file with a line for each item that is done.

        Raises NotReady if there is not enough time to make the file. The next call continues where this one ended.
        """
        name = f"{batch.batch_id}-report.{form}"
        # Named by the groups, too: an upload that another version began, without them, has other bytes in its parts.
        key = f"{_folder(batch)}report-{sum(parts):09d}-{_PARTS_A_GROUP}.{form}"
        if self._objects.size(key) is None:
            head = _CSV_HEAD if form == "csv" else b""
            rows = _as_csv if form == "csv" else lambda text: text
            found = self._grouped(batch, parts, "report", _report, self._read, _MERGE_SECONDS)
            self._objects.assemble(key, found, head, rows, _CONTENT_TYPES[form])
        return self._objects.link(key, RESULTS_LINK_SECONDS, name), name

    def _refuse_too_many(self, batch: Batch, parts: Parts) -> None:
        """Raises WrongState for an active batch with more parts than a call can merge.

        The parts of such a batch are merged when it ends.
        """
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
            return map(json.loads, self._gather(batch, parts))
        return (json.loads(line) for line in self._objects.lines(key))

    def _gather(self, batch: Batch, parts: Parts, seconds: float = _MERGE_SECONDS) -> Iterator[bytes]:
        """Returns the lines of all outcomes, by index. Raises NotReady if there is not enough time for all of them."""
        return self._last(self._grouped(batch, parts, "outcome", _parts, self._last, seconds))

    def _grouped(
        self,
        batch: Batch,
        parts: Parts,
        kind: str,
        folder_of: Callable[[Batch, int], str],
        join: Callable[[Sequence[tuple[str, int]]], Iterable[bytes]],
        seconds: float,
    ) -> list[tuple[str, int]]:
        """Returns (key, size) of objects that together hold all of these parts.

        If there are very many parts, each full group of them is first joined to one object. The parts of a full group
        no longer change. Raises NotReady if there is not enough time for all groups. The next call continues where this
        one ended.
        """
        found, until, made = list[tuple[str, int]](), time.monotonic() + seconds, 0
        for runner, count in enumerate(parts):
            source, target = folder_of(batch, runner), f"{_folder(batch)}{kind}-groups-{runner:02d}/"
            groups = count // _PARTS_A_GROUP if sum(parts) > _MOST_PARTS_A_CALL else 0
            sizes = dict(self._objects.sized(target)) if groups else {}
            for number in range(groups):
                key = f"{target}{number:06d}-{_PARTS_A_GROUP}.jsonl"
                if key not in sizes:
                    if made and time.monotonic() > until:
                        raise NotReady(f"the {kind}s are being put together: ask again", retry_after=1)
                    first = number * _PARTS_A_GROUP
                    data = b"".join(join(self._between(source, first, first + _PARTS_A_GROUP)))
                    self._objects.put(key, data)
                    sizes[key], made = len(data), made + 1
                found.append((key, sizes[key]))
            found += self._between(source, groups * _PARTS_A_GROUP, count)
        return found

    def _last(self, found: Sequence[tuple[str, int]]) -> Iterator[bytes]:
        """Yields the last line of each item, by index, because an item that failed may have succeeded in a later run.

        `found` has (key, size) of the objects. Their content stays in memory as bytes, because parsed lines would take
        several times as much memory.
        """
        if (size := sum(size for _, size in found)) > _MOST_MERGED:
            raise WrongState(
                f"the outcomes have {size:,} bytes, and {_MOST_MERGED:,} can be put together at most: a batch that is "
                "created with `report: true` has a report of any number of items"
            )
        # The lines of each object are in order.
        for _, of_item in groupby(heapq.merge(*map(BytesIO, self._read(found)), key=_index), _index):
            *_, line = of_item
            yield line

    def _read(self, found: Sequence[tuple[str, int]]) -> list[bytes]:
        with ThreadPoolExecutor(_READERS, thread_name_prefix="outcomes") as pool:
            return [text or b"" for text in pool.map(self._objects.get, [key for key, _ in found])]

    def _between(self, folder: str, low: int, high: int) -> list[tuple[str, int]]:
        """Returns (key, size) of the valid parts in a folder with numbers above `low`, up to `high`."""
        # The tilde sorts after any fencing token.
        listed = self._objects.sized(folder, after=f"{folder}{low:09d}~") if high > low else ()
        # Keys are listed in order, so the highest fencing token of a part comes last.
        return list({_number(one[0]): one for one in takewhile(lambda one: _number(one[0]) <= high, listed)}.values())


def _line(outcome: ItemOutcome, items: Items) -> dict[str, Any]:
    fields = items.fields(outcome.index)
    data = {name: fields[name] for name in ("job_data", "batch_data") if name in fields}
    index = items.index(outcome.index)
    line = {"index": index, "state": outcome.state, "attempts": outcome.attempts, "answer": outcome.answer.view()}
    return line | data


def _index(line: bytes) -> int:
    """Returns the index of the item in a line.

    This is five times as fast as parsing the line, and there may be millions of lines.
    """
    return int(line[len(b'{"index":') : line.index(b",")])


def _report_line(outcome: ItemOutcome, index: int) -> str:
    time = iso(datetime.fromtimestamp(outcome.at, UTC))
    line = {"index": index, "state": outcome.state, "attempts": outcome.attempts, "time": time}
    return json.dumps(line | ({"msg": outcome.answer.detail} if outcome.answer.detail else {}), **_COMPACT) + "\n"


def _as_csv(text: bytes) -> bytes:
    from tidegate.sheets.values import guard

    rows = StringIO()
    writer = csv.writer(rows, lineterminator="\n")
    for line in map(json.loads, text.splitlines()):
        # The business wrote `msg`, and somebody opens the file in a spreadsheet.
        writer.writerow([guard(str(line.get(name, ""))) for name in _REPORT_FIELDS])
    return rows.getvalue().encode()


def folder_of(project_id: str, batch_id: str) -> str:
    """Returns the prefix of the keys of all objects of a batch."""
    return f"batches/{project_id}/{batch_id}/"


def _folder(batch: Batch) -> str:
    return folder_of(batch.project_id, batch.batch_id)


def _parts(batch: Batch, runner: int) -> str:
    return f"{_folder(batch)}outcomes-{runner:02d}/" if runner else f"{_folder(batch)}outcomes/"


def _report(batch: Batch, runner: int) -> str:
    return f"{_folder(batch)}report-{runner:02d}/"


def _number(key: str) -> int:
    return int(key.rpartition("/")[2].partition("-")[0])


def _merged(batch: Batch, parts: Parts) -> str:
    return f"{_folder(batch)}results-{sum(parts):09d}.jsonl"


def listing_of(batch: Batch) -> str:
    """Returns the folder of the listing of a batch whose items are objects of a bucket."""
    return f"{_folder(batch)}listing/"


def redriven_items(batch: Batch) -> str:
    """For a batch that was created by a redrive: returns the key of the object that holds its items."""
    return f"{_folder(batch)}items.ndjson"


# --- results
# Results that the business sends in separate calls, for batches with `ack: "async"`.
#
# Each call of an item is decided by one conditional write of the item's record: by the API, with a result of the
# business, or by the runner, if the call failed, was answered at once or timed out. The second write is refused: a
# result that was accepted counts, even if the runner reads it late or dies. The record of a first call does not exist
# until it is decided; before each further call, the runner opens it again. Records are deleted only by their expiry: as
# long as they exist, a second result is refused.

_KEPT_SECONDS = 30 * 24 * 3600
# A transaction has at most 100 writes, and one of them checks the fencing token.
_MOST_WRITES = 99
_MOST_REMEMBERED = 10_000
_UNDECIDED = "attribute_not_exists(#pk) OR #open = :yes"


class ItemResults:
    def __init__(self, table: Table) -> None:
        self._table = table
        # The position below which a runner may have called its items. It only rises, so a known value can be reused.
        self._reach: dict[tuple[str, int], int] = {}

    def add(
        self, batch: Batch, index: int, place: int, answer: Mapping[str, Any], attempt: int | None, now: float
    ) -> None:
        """Stores the result of an item. `place`: the position of the item in the batch.

        Raises WrongState, with the reason, if the result is refused. The same result is accepted again, because the
        answer to the first call may have been lost.
        """
        self._refuse_uncalled(batch, index, place)
        if batch.status == STOPPED:
            self._refuse_late(batch, index, place, now)
        key, text = keys.batch_result(batch.project_id, batch.batch_id, index), json.dumps(answer)
        named = " AND #attempt = :attempt" if attempt is not None else ""
        condition = f"(#open = :yes{named})"
        if attempt in (None, 1):
            condition = f"attribute_not_exists(#pk) OR {condition}"
        values: dict[str, Any] = {"yes": True} | ({"attempt": attempt} if attempt is not None else {})
        sets = {"index": index, "text": text, "stored_at": now, "expires_at": int(now) + _KEPT_SECONDS}
        try:
            self._table.write(update(key, sets, removes=["open"], condition=condition, **values))
        except ConditionFailed as error:
            if not _is_same(error.item, text, attempt):
                raise WrongState(_refusal(index, error.item, attempt)) from error

    def repeats(self, batch: Batch, index: int, answer: Mapping[str, Any], attempt: int | None) -> bool:
        """Returns whether exactly this result was accepted before."""
        item = self._table.get(keys.batch_result(batch.project_id, batch.batch_id, index), consistent=True)
        return _is_same(item, json.dumps(answer), attempt)

    def _refuse_uncalled(self, batch: Batch, index: int, place: int) -> None:
        runner = batch.share(0).owner(place)
        position, known = batch.share(runner).below(place), (batch.batch_id, runner)
        if position < self._reach.get(known, 0):
            return
        item = self._table.get(keys.batch_called(batch.project_id, batch.batch_id, runner), consistent=True)
        if item is None and self._has_run(batch, runner):
            return
        reach = int(item["reach"]) if item else 0
        if len(self._reach) >= _MOST_REMEMBERED:
            self._reach.clear()
        self._reach[known] = reach
        if position >= reach:
            raise WrongState(f"item {index} was not called yet: send its result after process_url was called with it")

    def _has_run(self, batch: Batch, runner: int) -> bool:
        """Whether the runner has begun. A runner that has begun and stored no reach is of an older version."""
        record = self._table.get(keys.batch_progress(batch.project_id, batch.batch_id, runner), consistent=True)
        return record is not None and int(record["fence"]) > 0

    def _refuse_late(self, batch: Batch, index: int, place: int, now: float) -> None:
        """Raises WrongState if a result of a stopped batch comes after the item's time-out.

        No runner checks the time-outs of a stopped batch.
        """
        runner = batch.share(0).owner(place)
        position = batch.share(runner).below(place)
        item = self._table.get(keys.batch_progress(batch.project_id, batch.batch_id, runner), consistent=True)
        for one in progress_from(item).carried.open_items if item else ():
            if one.index == position and one.awaiting and one.at < now:
                raise WrongState(f"the result of item {index} comes too late: its item_timeout has passed")

    def store_reach(self, batch: Batch, runner: int, position: int) -> None:
        """Stores that items below this position may be called from now on. Results of all other items are refused."""
        key = keys.batch_called(batch.project_id, batch.batch_id, runner)
        condition = "attribute_not_exists(#pk) OR #reach < :position"
        self._table.try_write(update(key, {"reach": position}, condition=condition, position=position))

    def read(
        self, batch: Batch, items: Items, first: int, since: float | None
    ) -> Iterator[tuple[Decision, ParsedAnswer | None]]:
        """Yields (decision, answer) for the stored records of this runner's items, from index `first` on.

        With `since`, yields only what was stored after that time. The answer is as the business sent it. It is None if
        a runner stored the record, or if there is no answer yet.
        """
        options: dict[str, Any] = {"sk_between": keys.batch_results_from(first), "consistent": True}
        if since is not None:
            options |= {"where": "attribute_not_exists(#stored_at) OR #stored_at > :since", "since": since}
        for item in self._table.query_all(keys.batch_results(batch.project_id, batch.batch_id), **options):
            position = items.position(int(item["index"]))
            if position is not None and not item.get("ended"):
                yield _decision(position, item)

    def read_some(
        self, batch: Batch, items: Items, positions: Sequence[int]
    ) -> Iterator[tuple[Decision, ParsedAnswer | None]]:
        """Yields what is stored about the calls of the items at these positions."""
        wanted = [keys.batch_result(batch.project_id, batch.batch_id, items.index(position)) for position in positions]
        for item in self._table.batch_get(wanted, consistent=True) if wanted else ():
            position = items.position(int(item["index"]))
            if position is not None and not item.get("ended"):
                yield _decision(position, item)

    def decide(
        self, batch: Batch, runner: int, fence: int, decisions: Iterable[Decision], items: Items, now: float
    ) -> list[tuple[Decision, ParsedAnswer | None]]:
        """Stores how these calls ended. Returns what counts for each call: the result that was stored first."""
        counted: list[tuple[Decision, ParsedAnswer | None]] = []
        waiting = list(decisions)
        while waiting:
            part, waiting = waiting[:_MOST_WRITES], waiting[_MOST_WRITES:]
            met = self._transact(batch, runner, fence, [_decide(batch, one, items, now) for one in part])
            if met is None:
                counted += [(one, None) for one in part if one.attempt]
                continue
            # Nothing was written: try again without the calls that were decided before.
            counted += [_decision(part[place].index, item) for place, item in met.items() if not item.get("ended")]
            waiting = [one for place, one in enumerate(part) if place not in met] + waiting
        return counted

    def open(
        self, batch: Batch, runner: int, fence: int, calls: Sequence[Decision], items: Items, now: float
    ) -> list[Decision]:
        """Opens these items for the result of a further call. Returns the calls whose items are open now."""
        opened: list[Decision] = []
        waiting = list(calls)
        while waiting:
            part, waiting = waiting[:_MOST_WRITES], waiting[_MOST_WRITES:]
            met = self._transact(batch, runner, fence, [_open(batch, one, items, now) for one in part])
            if met is None:
                opened += part
                continue
            opened += [part[place] for place, item in met.items() if _is_open(item, part[place].number)]
            waiting = [one for place, one in enumerate(part) if place not in met] + waiting
        return opened

    def _transact(self, batch: Batch, runner: int, fence: int, writes: list[Write]) -> Mapping[int, Any] | None:
        """Performs all writes and returns None.

        If conditions fail, performs no write and returns the items that failed, by the number of their write. Raises
        LeaseLost if another function has taken over the runner.
        """
        holder = keys.batch_progress(batch.project_id, batch.batch_id, runner)
        try:
            self._table.transact([*writes, check(holder, "#fence = :fence", fence=fence)], returns_met=True)
        except ConditionFailed as error:
            if len(writes) in error.failed:
                raise LeaseLost("another runner has taken over the batch") from error
            return {place: error.met.get(place, {"open": False}) for place in error.failed}
        return None


def _decide(batch: Batch, one: Decision, items: Items, now: float) -> Write:
    index = items.index(one.index)
    answer = one.answer.view() if one.answer else {}
    sets = {"index": index, "number": one.number, "attempt": one.attempt, "by_runner": True, "text": json.dumps(answer)}
    sets |= {"stored_at": now, "expires_at": int(now) + _KEPT_SECONDS, "ended": None if one.attempt else True}
    key = keys.batch_result(batch.project_id, batch.batch_id, index)
    return update(key, sets, removes=["open"], condition=_UNDECIDED, yes=True)


def _open(batch: Batch, one: Decision, items: Items, now: float) -> Write:
    index = items.index(one.index)
    sets = {"index": index, "number": one.number, "attempt": one.attempt, "open": True, "stored_at": now}
    return update(
        keys.batch_result(batch.project_id, batch.batch_id, index),
        sets | {"expires_at": int(now) + _KEPT_SECONDS},
        removes=["text", "by_runner"],
        # The record of a first call may be without a number.
        condition="attribute_not_exists(#number) OR #number < :number",
        number=one.number,
    )


def _decision(position: int, item: Mapping[str, Any]) -> tuple[Decision, ParsedAnswer | None]:
    attempt, number = int(item.get("attempt", 1)), int(item.get("number", 1))
    if item.get("open") or "text" not in item:
        return Decision(position, number, attempt), None
    parsed = read_answer(json.loads(item["text"]))
    return Decision(position, number, attempt, parsed.answer), None if item.get("by_runner") else parsed


def _is_open(item: Mapping[str, Any], number: int) -> bool:
    return bool(item.get("open")) and item.get("number") == number


def _is_same(item: Mapping[str, Any] | None, text: str, attempt: int | None) -> bool:
    if not item or item.get("text") != text or item.get("by_runner"):
        return False
    return attempt is None or attempt == item.get("attempt", 1)


def _refusal(index: int, item: Mapping[str, Any] | None, attempt: int | None) -> str:
    """Returns why a result is refused, from what is stored about the item."""
    if item is None:
        return f"item {index} was not called with attempt {attempt} yet: send the attempt of the call that this is for"
    called = item.get("attempt", 1)
    if attempt is not None and attempt > called:
        return f"item {index} was not called with attempt {attempt} yet: its last one is attempt {called}"
    if attempt is not None and attempt < called:
        return f"attempt {attempt} of item {index} is outdated: it has been called again, with attempt {called}"
    if item.get("ended"):
        return "the batch has finished without this item: results are no longer accepted"
    if not item.get("by_runner"):
        return f"item {index} already has a result for attempt {called}: the first one counts"
    said = json.loads(item["text"])
    if said.get("result") == "error":
        why = said.get("msg") or "no reason given"
        return f"the result of item {index} comes too late: attempt {called} has failed: {why}"
    return f"item {index} already has a result for attempt {called}: process_url answered with it"
