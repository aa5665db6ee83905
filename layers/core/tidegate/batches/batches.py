"""Batches for callers: businesses, new batches, changes, dry runs, logs and results of items."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import islice
from typing import Any

from tidegate.aws import keys
from tidegate.aws.table import ConditionFailed, Table, Write, check, unknown_cursor, update
from tidegate.batches.items import (
    RESULTS_LINK_SECONDS,
    DataItems,
    Fields,
    Items,
    Outcomes,
    RedrivenItems,
    RowsWithData,
    SharedItems,
    redriven_items,
)
from tidegate.batches.model import (
    ACTIVE,
    ASYNC,
    CREATED,
    FINISHED,
    LONGEST_SYNC_ITEM_TIMEOUT,
    MOST_WORKERS,
    RUNNING,
    STOPPED,
    SYNC,
    UNSTARTED_KEPT_SECONDS,
    UTF8,
    Batch,
    BatchItems,
    BatchOptions,
    Business,
    Decision,
    Extent,
    LogLine,
    NewBatch,
    NewBusiness,
    Progress,
    RowSource,
    hash_auth_code,
    in_order,
)
from tidegate.batches.rows import RowFiles, Rows, format_of
from tidegate.batches.run_state import progress_from
from tidegate.batches.store import BatchStore, BusinessStore
from tidegate.batches.workers import BusinessCalls, ItemCaller, ParsedAnswer, read_answer
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.sequences import Listed, slices
from tidegate.errors import Conflict, Invalid, LeaseLost, RecordNotFound, WrongAuthCode, WrongState
from tidegate.files.library import Library
from tidegate.files.model import READY
from tidegate.http.client import SafeHttp
from tidegate.projects.audit import SYSTEM, act, named_at
from tidegate.projects.model import Project, Quotas
from tidegate.projects.secrets import Signer
from tidegate.queue.model import WAITING, Request
from tidegate.records import view_of

# --- view
# A batch as callers, callbacks and businesses see it.

BUSINESS_DOWN = "business_down"


def for_business(batch: Batch) -> dict[str, Any]:
    """Returns what the business gets when it is asked for its consent."""
    names = ("batch_id", "biz_id", "name", "total", "rate", "start_index")
    return {name: getattr(batch, name) for name in names}


def shown(batch: Batch, progress: Progress) -> dict[str, Any]:
    view = view_of(batch) | {"progress": progress.shown(batch)}
    if batch.status == RUNNING and progress.business_is_down:
        view["waiting"] = BUSINESS_DOWN
    return {name: value for name, value in view.items() if value != []}


# --- new batch
# Checks of a new batch.

LONGEST_DATA = 300_000


def check_new(new: NewBatch) -> None:
    """Raises Invalid if fields contradict each other."""
    refuse_large(new.job_data)
    if new.progress_url and not (new.progress_every_items or new.progress_every_percent):
        raise invalid(
            "progress_url", "give progress_every_items or progress_every_percent too: they set how often it is called"
        )
    check_options(new)


def check_options(new: BatchOptions) -> None:
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


# --- registry
# The registry of businesses.


class Registry:
    def __init__(
        self,
        store: BusinessStore,
        check_urls: Callable[[str, Mapping[str, str | None]], None],
        quotas: Callable[[str], Quotas],
        clock: Clock,
    ) -> None:
        self._store = store
        self._quotas = quotas
        self.check_urls = check_urls
        self._clock = clock

    def add(self, project_id: str, new: NewBusiness, auth_code: str | None = None, who: str = SYSTEM) -> Business:
        now = self._clock()
        business = _business(project_id, new_id("biz", now), new, auth_code, iso(now))
        self.check_urls(project_id, new.urls)
        line = act(project_id, business.biz_id, now, who, "biz.create", named_at(new.name, new.process_url))
        self._store.add(business, line, self._quotas(project_id).businesses)
        return business

    def replace(
        self, project_id: str, biz_id: str, new: NewBusiness, auth_code: str | None = None, who: str = SYSTEM
    ) -> Business:
        """Running batches use the new URLs and rate from their next slice on."""
        business = _business(project_id, biz_id, new, auth_code, self.get(project_id, biz_id).created_at)
        self.check_urls(project_id, new.urls)
        line = act(project_id, biz_id, self._clock(), who, "biz.change", named_at(new.name, new.process_url))
        self._store.replace(business, line)
        return business

    def get(self, project_id: str, biz_id: str) -> Business:
        business = self._store.get(project_id, biz_id)
        if business is None:
            raise RecordNotFound(f"this project has no business with the id {biz_id[:200]}")
        return business

    def list(self, project_id: str, limit: int, cursor: str | None) -> Listed[Business]:
        return self._store.list(project_id, limit, cursor)


def _business(project_id: str, biz_id: str, new: NewBusiness, auth_code: str | None, created_at: str) -> Business:
    return Business(
        biz_id=biz_id,
        project_id=project_id,
        created_at=created_at,
        auth_code_sha256=hash_auth_code(auth_code) if auth_code else None,
        **asdict(new),
    )


# --- results
# Results that the business sends in separate calls, for batches with `ack: "async"`.
#
# Each call of an item is decided by one conditional write of the item's record: by the API, with a result of the
# business, or by the runner, if the call failed, was answered at once or timed out. Whoever is second is refused: a
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
        # Below which position a runner may have called its items: it only rises, so a known value can be used again.
        self._reach: dict[tuple[str, int], int] = {}

    def add(
        self, batch: Batch, index: int, place: int, answer: Mapping[str, Any], attempt: int | None, now: float
    ) -> None:
        """Stores the result of an item, which is number `place` of the batch. WrongState says why it is refused.

        The same result again is accepted: its first answer may have been lost."""
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
        """Returns whether this very result was accepted before."""
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
        """A runner of an older version, which may still call items after an update, does not store its reach."""
        record = self._table.get(keys.batch_progress(batch.project_id, batch.batch_id, runner), consistent=True)
        return record is not None and int(record["fence"]) > 0

    def _refuse_late(self, batch: Batch, index: int, place: int, now: float) -> None:
        """While the batch is stopped, no runner decides that a result is too late."""
        runner = batch.share(0).owner(place)
        position = batch.share(runner).below(place)
        item = self._table.get(keys.batch_progress(batch.project_id, batch.batch_id, runner), consistent=True)
        for one in progress_from(item).carried.open_items if item else ():
            if one.index == position and one.awaiting and one.at < now:
                raise WrongState(f"the result of item {index} comes too late: its item_timeout has passed")

    def reach(self, batch: Batch, runner: int, position: int) -> None:
        """Stores, before the calls, that items below this position may be called: only then are results accepted."""
        key = keys.batch_called(batch.project_id, batch.batch_id, runner)
        condition = "attribute_not_exists(#pk) OR #reach < :position"
        self._table.try_write(update(key, {"reach": position}, condition=condition, position=position))

    def read(
        self, batch: Batch, items: Items, first: int, since: float | None
    ) -> Iterator[tuple[Decision, ParsedAnswer | None]]:
        """Yields what is stored about the calls of this runner's items, from index `first` on: all of it, or what was
        stored after `since`. With a decision comes the answer as the business sent it, or None for one of a runner."""
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
        """Stores how these calls ended. Returns for each what counts: a result that was stored before comes instead."""
        counted: list[tuple[Decision, ParsedAnswer | None]] = []
        waiting = list(decisions)
        while waiting:
            part, waiting = waiting[:_MOST_WRITES], waiting[_MOST_WRITES:]
            met = self._transact(batch, runner, fence, [_decide(batch, one, items, now) for one in part])
            if met is None:
                counted += [(one, None) for one in part if one.attempt]
                continue
            # Nothing was written: the others are tried again without those that were decided before.
            counted += [_decision(part[place].index, item) for place, item in met.items() if not item.get("ended")]
            waiting = [one for place, one in enumerate(part) if place not in met] + waiting
        return counted

    def open(
        self, batch: Batch, runner: int, fence: int, calls: Sequence[Decision], items: Items, now: float
    ) -> list[Decision]:
        """Opens these items for the result of a further call. Returns those that are open now."""
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
        """Performs the writes, and returns None; or writes nothing, and returns the items that kept some from it."""
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
    answer = one.answer.shown() if one.answer else {}
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


# --- batches
# Batches for callers: create, show, list, change, redrive; their data and the outcomes of their items.

_MAY_BE_UNSET = frozenset(field.name for field in fields(Batch) if field.default is None)


class Batches:
    def __init__(
        self,
        store: BatchStore,
        registry: Registry,
        calls: BusinessCalls,
        files: Library,
        rows: RowFiles,
        outcomes: Outcomes,
        results: ItemResults,
        place_of: Callable[[Batch, int], int | None],
        quotas: Callable[[str], Quotas],
        most_runners: Callable[[str], int],
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._calls = calls
        self._files = files
        self._rows = rows
        self._outcomes = outcomes
        self._results = results
        self._place_of = place_of
        self._quotas = quotas
        self._most_runners = most_runners
        self._clock = clock

    def check(self, project_id: str, new: NewBatch) -> None:
        """Raises as `create` would, without asking the business or storing anything."""
        self._build(project_id, new, "")

    def create(self, project_id: str, new: NewBatch, *, who: str = SYSTEM, batch_id: str | None = None) -> Batch:
        """Stores a new batch, after asking the business. With a `batch_id` that exists, returns that batch.

        Each runner takes a slot of the channel, so the batch gets at most as many as the project may hold slots.
        QuotaExceeded if as many batches of the project wait for their first start as its quota allows.
        """
        if new.runners > 1:
            new = replace(new, runners=min(new.runners, self._most_runners(project_id)))
        batch = self._build(project_id, new, batch_id or new_id("bat", self._clock()))
        business = self._registry.get(project_id, new.biz_id)
        if business.before_create_url:
            payload = for_business(batch) | {"job_data": new.job_data}
            self._calls.ask(project_id, business.before_create_url, f"{batch.batch_id}.create", payload)
        line = act(project_id, batch.batch_id, self._clock(), who, "batch.create", new.name, states=(None, CREATED))
        try:
            self._store.add(batch, new.job_data, line, self._quotas(project_id).unstarted_batches)
        except Conflict:
            if batch_id is None:
                raise
            return self.get(project_id, batch_id)
        return batch

    def delete_unstarted(self, project_id: str, batch_id: str) -> bool:
        """Called by compensation 30 days after a batch was created. True if it was deleted: nobody has started it."""
        batch = self._store.get(project_id, batch_id)
        if batch is None or batch.status != CREATED:
            return False
        why = f"not started within {UNSTARTED_KEPT_SECONDS // 86400} days"
        line = act(project_id, batch_id, self._clock(), SYSTEM, "batch.expire", why, states=(CREATED, None))
        return self._store.delete_unstarted(batch, line)

    def _build(self, project_id: str, new: NewBatch, batch_id: str) -> Batch:
        self._registry.get(project_id, new.biz_id)
        batch = Batch(
            batch_id=batch_id,
            project_id=project_id,
            status=CREATED,
            created_at=iso(self._clock()),
            source=self._source(project_id, new),
            **{each.name: getattr(new, each.name) for each in fields(BatchItems)} | {"total": total_of(new)},
        )
        check_new(new)
        self._registry.check_urls(project_id, {"progress_url": new.progress_url})
        return batch

    def _source(self, project_id: str, new: NewBatch) -> RowSource | None:
        if new.file_id is None:
            return None
        file = self._files.get(project_id, new.file_id)
        if file.state != READY or file.signature is None:
            raise WrongState(f"the file {new.file_id} is {file.state}: wait until its state is ready")
        row_format = new.format or format_of(file.file_name)
        if row_format is None:
            raise invalid("source", f"give the format, csv or ndjson: the name {file.file_name} does not show it")
        encoding, delimiter = new.encoding or UTF8, new.delimiter or ","
        source = RowSource(new.file_id, file.signature, row_format, encoding, delimiter, new.compression)
        return self._rows.inspect(project_id, source, new.delimiter)

    def get(self, project_id: str, batch_id: str) -> Batch:
        batch = self._store.get(project_id, batch_id)
        if batch is None:
            raise RecordNotFound(f"this project has no batch with the id {batch_id[:200]}")
        return batch

    def get_many(self, project_id: str, batch_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Returns the batches that exist, as callers see them, by batch_id."""
        found = self._store.get_many(project_id, batch_ids)
        details = self._store.details_of(found)
        return {batch.batch_id: self._with_queue(batch, *details[batch.batch_id]) for batch in found}

    def list(self, project_id: str, status: str | None, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        page = self._store.list(project_id, limit, cursor, **({"status": status} if status else {}))
        details = self._store.details_of(page.items)
        items = [self._with_queue(batch, *details[batch.batch_id]) for batch in page.items]
        return Listed(items, page.next_cursor)

    def shown(self, batch: Batch) -> dict[str, Any]:
        return self._with_queue(batch, *self._store.details_of([batch])[batch.batch_id])

    @staticmethod
    def _with_queue(batch: Batch, progress: Progress, request: Request | None) -> dict[str, Any]:
        """Adds the state of its request: a started batch may still wait for a slot, and shows why."""
        if request is None:
            return shown(batch, progress)
        waiting = request.status in WAITING
        queued = {"queue_status": "queued" if waiting else request.status, "channel": request.channel}
        reason = {"last_wait_reason": request.last_wait_reason or "admission"} if waiting else {}
        return shown(batch, progress) | queued | reason

    def update(self, project_id: str, batch_id: str, changes: Mapping[str, Any], *, who: str = SYSTEM) -> Batch:
        """Changes the rate and limits of a batch that has not finished, and its data if its state allows that."""
        batch = self.get(project_id, batch_id)
        if batch.status == FINISHED and set(changes) - {"note"}:
            raise WrongState("a finished batch cannot be changed: create a new one, or redrive its failed items")
        sets = {name: value for name, value in changes.items() if name != "job_data" and value is not None}
        removes = [name for name, value in changes.items() if name in _MAY_BE_UNSET and value is None]
        given = {name: changes[name] for name in ("concurrency", "item_timeout") if name in {*sets, *removes}}
        check_options(replace(batch, **given))
        if "job_data" in changes:
            self._set_data(batch, changes["job_data"], who)
        if not sets and not removes:
            return self.get(project_id, batch_id)
        why = ", ".join([*(f"{name} {value}" for name, value in sets.items()), *(f"no {name}" for name in removes)])
        line = act(project_id, batch_id, self._clock(), who, "batch.change", why)
        return self._store.patch(batch, sets, removes, line)

    def set_data(
        self, project_id: str, batch_id: str, job_data: Any, auth_code: str | None, *, who: str = SYSTEM
    ) -> Batch:
        """Changes the data on behalf of the business."""
        batch = self.get(project_id, batch_id)
        self.authorize(batch, auth_code)
        self._set_data(batch, job_data, who)
        return self.get(project_id, batch_id)

    def _set_data(self, batch: Batch, job_data: Any, who: str) -> None:
        if not batch.takes_data:
            raise WrongState(
                f"the data of a batch that is {batch.status} cannot change at a rate of {batch.rate:g}: stop it first"
            )
        refuse_large(job_data)
        if isinstance(job_data, list) and batch.source is None and (batch.total or 0) > len(job_data):
            raise invalid("job_data", f"has {len(job_data)} entries, but the batch has {batch.total} items")
        line = act(batch.project_id, batch.batch_id, self._clock(), who, "batch.data")
        self._store.set_job_data(batch, job_data, line)

    def authorize(self, batch: Batch, auth_code: str | None) -> None:
        if not self._registry.get(batch.project_id, batch.biz_id).accepts(auth_code):
            raise WrongAuthCode("this is not the auth_code that the business was registered with: send that one")

    def outcomes(
        self, project_id: str, batch_id: str, state: str | None, limit: int, cursor: str | None
    ) -> Listed[dict[str, Any]]:
        """Returns items that failed, were abandoned or recovered, by index."""
        batch = self.get(project_id, batch_id)
        if cursor is not None and not cursor.isdecimal():
            raise unknown_cursor()
        after = int(cursor) if cursor else None
        found, last = self._outcomes.page(batch, self._parts(batch), state, limit, after)
        return Listed(found, None if last is None else str(last))

    def results(self, project_id: str, batch_id: str) -> dict[str, Any]:
        """Returns a presigned link to one JSONL file of all these items."""
        batch = self.get(project_id, batch_id)
        url, name = self._outcomes.link(batch, self._parts(batch))
        return {"url": url, "file_name": name, "expires_in": RESULTS_LINK_SECONDS}

    def redrive(self, project_id: str, batch_id: str, states: Sequence[str], *, who: str = SYSTEM) -> Batch:
        """Creates a batch of the items that failed in this one, with the same options. Does not start it."""
        batch = self.get(project_id, batch_id)
        if batch.status in ACTIVE:
            raise WrongState(
                f"the batch is {batch.status}: its failed items can be redriven when it has stopped or finished"
            )
        now = self._clock()
        made = Batch(
            batch_id=new_id("bat", now),
            project_id=project_id,
            biz_id=batch.biz_id,
            name=f"{batch.name} (redrive)"[:200],
            total=None,
            status=CREATED,
            created_at=iso(now),
            redrive_of=batch.redrive_of or batch.batch_id,
            **batch.options,
        )
        total = self._outcomes.copy_items(batch, self._parts(batch), states, made)
        if total == 0:
            raise WrongState(f"no item of the batch is {' or '.join(states)}: there is nothing to redrive")
        why = f"redrive of {batch_id}: {total} items"
        line = act(project_id, made.batch_id, now, who, "batch.redrive", why, states=(None, CREATED))
        made = replace(made, total=total)
        self._store.add(made, None, line, self._quotas(project_id).unstarted_batches)
        return made

    def _parts(self, batch: Batch) -> Sequence[int]:
        return [record.progress.outcome_parts for record in self._store.runners(batch)]

    def add_result(
        self,
        project_id: str,
        batch_id: str,
        index: int,
        result: Mapping[str, Any],
        auth_code: str | None,
        attempt: int | None = None,
    ) -> None:
        """Stores the result of one item of an asynchronous batch: it counts. WrongState says why it is refused."""
        batch = self.get(project_id, batch_id)
        self.authorize(batch, auth_code)
        if batch.ack != ASYNC:
            raise WrongState(
                'this batch takes the answers of process_url as results: only a batch with ack: "async" takes them here'
            )
        place = self._place_of(batch, index)
        if place is None:
            raise RecordNotFound(f"the batch has no item {index}")
        if batch.status != FINISHED:
            self._results.add(batch, index, place, result, attempt, self._clock().timestamp())
        elif not self._results.repeats(batch, index, result, attempt):
            raise WrongState("the batch has finished: results are no longer accepted")


# --- preparations
# Looks up what a run needs besides the batch itself: the business, the items and their number.

# The runner indexes rows that it will call within this time, unless an indexer has done it.
_AHEAD_SECONDS = 60
MOST_ROWS = 10**15


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

    def place(self, batch: Batch, index: int) -> int | None:
        """Returns which of the items of the batch has this index, counted from 0; None if there is no such item."""
        if not batch.redrive_of:
            return index if batch.start_index <= index and (batch.total is None or index < batch.total) else None
        self.extent(batch, batch.total or 0, wait=True)
        found = self._all_items(batch).position(index)
        return found if found is not None and found >= 0 else None

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

    def check_rows(self, batch: Batch) -> None:
        """Indexes the first rows, or all of a file that needs no indexers: what cannot be read is refused before the
        first call. Invalid says where."""
        rows = self.rows(batch)
        if rows is not None:
            rows.ensure_indexed(batch.start_index + 1 if rows.indexers else MOST_ROWS)

    def indexers(self, batch: Batch) -> int:
        """Returns how many functions index its rows besides the runners."""
        rows = self.rows(batch)
        return rows.indexers if rows else 0

    def index_rows(self, batch: Batch, indexer: int, may_continue: Callable[[], bool]) -> bool:
        """Indexes the ranges of one of these functions. False if it had to stop before the last one."""
        rows = self.rows(batch)
        return rows is None or rows.index.index_ranges(indexer + 1, rows.indexers, may_continue)


# --- dry run
# Sends the first items to the business and returns its answers, without counting them.

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


# --- logs
# Log lines of a batch: added by its business, listed, exported.

MOST_LOGS_EXPORTED = 50_000


class BatchLogs:
    def __init__(self, batches: Batches, store: BatchStore, clock: Clock) -> None:
        self._batches = batches
        self._store = store
        self._clock = clock

    def add(self, project_id: str, batch_id: str, lines: Sequence[Mapping[str, Any]]) -> int:
        self._batches.get(project_id, batch_id)
        now = self._clock()
        made = in_order([LogLine(new_id("log", now), iso(now), **line) for line in lines])
        self._store.add_logs(project_id, batch_id, made, now.timestamp())
        return len(made)

    def list(
        self, project_id: str, batch_id: str, *, index: int | None, limit: int, cursor: str | None
    ) -> Listed[LogLine]:
        self._batches.get(project_id, batch_id)
        return self._store.logs(project_id, batch_id, index=index, limit=limit, cursor=cursor)

    def rows(self, project_id: str, batch_id: str) -> Sequence[dict[str, Any]]:
        """Returns the newest lines, in order of time, as rows of an export. A first row says if others are left out."""
        self._batches.get(project_id, batch_id)
        lines = list(islice(self._store.newest_logs(project_id, batch_id), MOST_LOGS_EXPORTED + 1))
        if len(lines) > MOST_LOGS_EXPORTED:
            oldest = lines[MOST_LOGS_EXPORTED]
            message = f"older lines are left out: an export holds the newest {MOST_LOGS_EXPORTED}"
            lines[MOST_LOGS_EXPORTED] = LogLine(oldest.log_id, oldest.time, message, level="warning")
        lines.reverse()
        return [{name: getattr(line, name) for name in ("time", "index", "level", "message")} for line in lines]
