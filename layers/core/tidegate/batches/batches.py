"""Batches as callers see them: made, shown, listed, changed; their data and their logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tidegate.aws.serialization import unknown_cursor
from tidegate.batches.model import (
    ACTIVE,
    ASYNC,
    CREATED,
    FINISHED,
    OPTIONS,
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
from tidegate.batches.view import about, shown
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import Conflict, RecordNotFound, WrongAuthCode, WrongState
from tidegate.files.library import Library
from tidegate.files.model import READY
from tidegate.projects.audit import SYSTEM, act
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
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._calls = calls
        self._files = files
        self._outcomes = outcomes
        self._results = results
        self._clock = clock

    def check(self, project_id: str, new: NewBatch) -> None:
        """Raises as `create` would, but does not ask the business and stores nothing."""
        self._made(project_id, new, "")

    def create(self, project_id: str, new: NewBatch, *, who: str = SYSTEM, batch_id: str | None = None) -> Batch:
        """The business is asked first; what it refuses is never stored. With an id: the batch of that id, if it is
        there already."""
        batch = self._made(project_id, new, batch_id or new_id("bat", self._clock()))
        business = self._registry.get(project_id, new.biz_id)
        if business.before_create_url:
            what = about(batch) | {"job_data": new.job_data}
            self._calls.ask(project_id, business.before_create_url, f"{batch.batch_id}.create", what)
        line = act(project_id, batch.batch_id, self._clock(), who, "batch.create", new.name, states=(None, CREATED))
        try:
            self._store.add(batch, new.job_data, line)
        except Conflict:
            if batch_id is None:
                raise
            return self.get(project_id, batch_id)
        return batch

    def _made(self, project_id: str, new: NewBatch, batch_id: str) -> Batch:
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
        self._registry.check_url(project_id, new.progress_url, "progress_url")
        return batch

    def _source(self, project_id: str, new: NewBatch) -> RowSource | None:
        if new.file_id is None:
            return None
        file = self._files.get(project_id, new.file_id)
        if file.state != READY or file.signature is None:
            raise WrongState("the file of the items is not whole yet: wait until its state is ready")
        form = new.format or format_of(file.file_name)
        if form is None:
            raise invalid("source", "name the format, csv or ndjson: the file's name does not tell it")
        return RowSource(new.file_id, file.signature, form)

    def get(self, project_id: str, batch_id: str) -> Batch:
        batch = self._store.get(project_id, batch_id)
        if batch is None:
            raise RecordNotFound("no such batch")
        return batch

    def get_many(self, project_id: str, batch_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """By batch_id, as callers see them: those that are there."""
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
        """A started batch without a slot says so, and why it waits."""
        if request is None:
            return shown(batch, progress)
        waits = request.status in WAITING
        queued = {"queue_status": "queued" if waits else request.status, "channel": request.channel}
        reason = {"last_wait_reason": request.last_wait_reason or "admission"} if waits else {}
        return shown(batch, progress) | queued | reason

    def update(self, project_id: str, batch_id: str, changes: Mapping[str, Any], *, who: str = SYSTEM) -> Batch:
        """The rate and the limits on failures until it has finished, its data as its state allows."""
        batch = self.get(project_id, batch_id)
        if batch.status == FINISHED:
            raise WrongState("a finished batch does not change: make a new one, or redrive its failed items")
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
        """From the business: only while the batch waits for it, or between the items of a serial one."""
        batch = self.get(project_id, batch_id)
        self.authorize(batch, auth_code)
        self._set_data(batch, job_data, who)
        return self.get(project_id, batch_id)

    def _set_data(self, batch: Batch, job_data: Any, who: str) -> None:
        if not batch.takes_data:
            raise WrongState(
                f"the data of a batch that is {batch.status} with a rate of {batch.rate:g} does not change"
            )
        refuse_large(job_data)
        if isinstance(job_data, list) and batch.source is None and (batch.total or 0) > len(job_data):
            raise invalid("job_data", f"the batch has {batch.total} items")
        line = act(batch.project_id, batch.batch_id, self._clock(), who, "batch.data")
        self._store.set_job_data(batch, job_data, line)

    def authorize(self, batch: Batch, auth_code: str | None) -> None:
        if not self._registry.get(batch.project_id, batch.biz_id).accepts(auth_code):
            raise WrongAuthCode("the business gave another auth_code when it was registered")

    def outcomes(
        self, project_id: str, batch_id: str, state: str | None, limit: int, cursor: str | None
    ) -> Listed[dict[str, Any]]:
        """Items that did not simply succeed, by index."""
        batch = self.get(project_id, batch_id)
        if cursor is not None and not cursor.isdecimal():
            raise unknown_cursor()
        after = int(cursor) if cursor else None
        found, last = self._outcomes.page(batch, self._parts(batch), state, limit, after)
        return Listed(found, None if last is None else str(last))

    def results(self, project_id: str, batch_id: str) -> dict[str, Any]:
        """All of them as one JSONL file, behind a presigned link."""
        batch = self.get(project_id, batch_id)
        url, name = self._outcomes.link(batch, self._parts(batch))
        return {"url": url, "file_name": name, "expires_in": RESULTS_LINK_SECONDS}

    def redrive(self, project_id: str, batch_id: str, states: Sequence[str], *, who: str = SYSTEM) -> Batch:
        """A new batch of the items that failed in this one, with the same rules; it is not started."""
        batch = self.get(project_id, batch_id)
        if batch.status in ACTIVE:
            raise WrongState(
                f"the batch is {batch.status}; its failed items can be redriven once it stopped or finished"
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
            raise WrongState(f"no item of the batch is {' or '.join(states)}")
        why = f"redrive of {batch_id}: {total} items"
        line = act(project_id, made.batch_id, now, who, "batch.redrive", why, states=(None, CREATED))
        made = replace(made, total=total)
        self._store.add(made, None, line)
        return made

    def _parts(self, batch: Batch) -> Sequence[int]:
        return [record.progress.outcome_parts for record in self._store.runners(batch)]

    def add_result(
        self, project_id: str, batch_id: str, index: int, said: Mapping[str, Any], auth_code: str | None
    ) -> bool:
        """The outcome of one item with `ack: "async"`. False if one is there already, or the batch has finished."""
        batch = self.get(project_id, batch_id)
        self.authorize(batch, auth_code)
        if batch.ack != ASYNC:
            raise WrongState('the results of this batch are the answers of process_url; make it with ack: "async"')
        if batch.redrive_of is None and batch.total is not None and index >= batch.total:
            raise RecordNotFound(f"the batch has {batch.total} items; there is no item {index}")
        if batch.status == FINISHED:
            return False
        return self._results.add(batch, index, dict(said), self._clock().timestamp())
