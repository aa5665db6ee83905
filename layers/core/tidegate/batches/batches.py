"""Batches for callers: create, show, list, change, redrive; their data and the outcomes of their items."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate.aws.serialization import unknown_cursor
from tidegate.batches.model import (
    ACTIVE,
    ASYNC,
    CREATED,
    FINISHED,
    OPTIONS,
    UNSTARTED_KEPT_SECONDS,
    Batch,
    NewBatch,
    RowSource,
)
from tidegate.batches.new_batch import check_new, invalid, refuse_large, total_of
from tidegate.batches.outcomes import RESULTS_LINK_SECONDS, Outcomes
from tidegate.batches.progress import Progress
from tidegate.batches.registry import Registry
from tidegate.batches.results import ItemResults
from tidegate.batches.rows.index import format_of
from tidegate.batches.run.business_calls import BusinessCalls
from tidegate.batches.store import BatchStore
from tidegate.batches.view import for_business, shown
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import Conflict, RecordNotFound, WrongAuthCode, WrongState
from tidegate.files.library import Library
from tidegate.files.model import READY
from tidegate.projects.audit import SYSTEM, act
from tidegate.projects.model import Quotas
from tidegate.queue.model import WAITING, Request

_MAY_BE_UNSET = ("max_errors", "max_failed", "max_failed_percent")


class Batches:
    def __init__(
        self,
        store: BatchStore,
        registry: Registry,
        calls: BusinessCalls,
        files: Library,
        outcomes: Outcomes,
        results: ItemResults,
        quotas: Callable[[str], Quotas],
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._calls = calls
        self._files = files
        self._outcomes = outcomes
        self._results = results
        self._quotas = quotas
        self._clock = clock

    def check(self, project_id: str, new: NewBatch) -> None:
        """Raises as `create` would, without asking the business or storing anything."""
        self._build(project_id, new, "")

    def create(self, project_id: str, new: NewBatch, *, who: str = SYSTEM, batch_id: str | None = None) -> Batch:
        """Stores a new batch, after asking the business. With a `batch_id` that exists, returns that batch.

        QuotaExceeded if as many batches of the project wait for their first start as its quota allows.
        """
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
            biz_id=new.biz_id,
            name=new.name,
            total=total_of(new),
            status=CREATED,
            created_at=iso(self._clock()),
            start_index=new.start_index,
            source=self._source(project_id, new),
            **{name: getattr(new, name) for name in OPTIONS},
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
        return RowSource(new.file_id, file.signature, row_format)

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
        if batch.status == FINISHED:
            raise WrongState("a finished batch cannot be changed: create a new one, or redrive its failed items")
        sets = {name: value for name, value in changes.items() if name != "job_data" and value is not None}
        removes = [name for name, value in changes.items() if name in _MAY_BE_UNSET and value is None]
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
        self, project_id: str, batch_id: str, index: int, result: Mapping[str, Any], auth_code: str | None
    ) -> bool:
        """Stores the result of one item of an asynchronous batch. False if it has one, or the batch has finished."""
        batch = self.get(project_id, batch_id)
        self.authorize(batch, auth_code)
        if batch.ack != ASYNC:
            raise WrongState(
                'this batch takes the answers of process_url as results: only a batch with ack: "async" takes them here'
            )
        if batch.redrive_of is None and batch.total is not None and index >= batch.total:
            raise RecordNotFound(
                f"the batch has no item {index}: it has {batch.total} items, and their indexes start at 0"
            )
        if batch.status == FINISHED:
            return False
        return self._results.add(batch, index, dict(result), self._clock().timestamp())
