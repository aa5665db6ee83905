"""Batches as callers see them: made, shown, listed, changed; their data and their logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from tidegate.batches.business_calls import BusinessCalls
from tidegate.batches.model import ACTIVE, CREATED, FINISHED, Batch, LogLine, Progress, RowSource
from tidegate.batches.registry import Registry
from tidegate.batches.row_index import format_of
from tidegate.batches.sliding_window import WindowState
from tidegate.batches.store import BatchStore
from tidegate.common.ids import Clock, iso, new_id
from tidegate.common.listing import Listed
from tidegate.errors import Invalid, RecordNotFound, WrongAuthCode, WrongState
from tidegate.files.library import Library
from tidegate.files.model import READY
from tidegate.projects.audit import SYSTEM, act
from tidegate.queue.model import WAITING
from tidegate.queue.queue import RequestQueue

LONGEST_DATA = 300_000
MOST_LOGS_EXPORTED = 50_000


@dataclass(frozen=True, slots=True)
class NewBatch:
    """What a caller says of a batch."""

    biz_id: str
    name: str
    rate: float
    total: int | None = None
    concurrency: int | None = None
    start_index: int = 0
    job_data: Any = None
    max_errors: int | None = None
    retries: int = 5
    retry_delay: float = 3.0
    priority: int = 5
    file_id: str | None = None
    format: str | None = None


class Batches:
    def __init__(
        self,
        store: BatchStore,
        registry: Registry,
        calls: BusinessCalls,
        files: Library,
        requests: RequestQueue,
        clock: Clock,
    ) -> None:
        self._store = store
        self._registry = registry
        self._calls = calls
        self._files = files
        self._requests = requests
        self._clock = clock

    def create(self, project_id: str, new: NewBatch, *, who: str = SYSTEM) -> Batch:
        """The business is asked first; what it refuses is never stored."""
        business = self._registry.get(project_id, new.biz_id)
        now = self._clock()
        batch = Batch(
            batch_id=new_id("bat", now),
            project_id=project_id,
            biz_id=new.biz_id,
            name=new.name,
            total=_total(new),
            rate=new.rate,
            status=CREATED,
            created_at=iso(now),
            start_index=new.start_index,
            concurrency=new.concurrency,
            max_errors=new.max_errors,
            retries=new.retries,
            retry_delay=new.retry_delay,
            priority=new.priority,
            source=self._source(project_id, new),
        )
        _refuse_large(new.job_data)
        if business.before_create_url:
            what = about(batch) | {"job_data": new.job_data}
            self._calls.ask(project_id, business.before_create_url, f"{batch.batch_id}.create", what)
        line = act(project_id, batch.batch_id, now, who, "batch.create", new.name, states=(None, CREATED))
        self._store.add(batch, Progress(WindowState(new.start_index)), new.job_data, line)
        return batch

    def _source(self, project_id: str, new: NewBatch) -> RowSource | None:
        if new.file_id is None:
            return None
        file = self._files.get(project_id, new.file_id)
        if file.state != READY or file.signature is None:
            raise WrongState("the file of the items is not whole yet")
        form = new.format or format_of(file.file_name)
        if form is None:
            raise _invalid("source", "name the format, csv or ndjson: the file's name does not tell it")
        return RowSource(new.file_id, file.signature, form)

    def get(self, project_id: str, batch_id: str) -> Batch:
        batch = self._store.get(project_id, batch_id)
        if batch is None:
            raise RecordNotFound("no such batch")
        return batch

    def list(self, project_id: str, status: str | None, limit: int, cursor: str | None) -> Listed[dict[str, Any]]:
        page = self._store.list(project_id, limit, cursor, **({"status": status} if status else {}))
        progress = self._store.progress_of(page.items)
        items = [shown(batch, progress[batch.batch_id]) | self._waiting(batch) for batch in page.items]
        return Listed(items, page.next_cursor)

    def shown(self, batch: Batch) -> dict[str, Any]:
        progress, _ = self._store.progress(batch.project_id, batch.batch_id)
        return shown(batch, progress) | self._waiting(batch)

    def _waiting(self, batch: Batch) -> dict[str, Any]:
        """A started batch without a slot says so, and why it waits."""
        if batch.status not in ACTIVE or batch.request_id is None:
            return {}
        request = self._requests.get(batch.project_id, batch.request_id)
        waits = request.status in WAITING
        queued = {"queue_status": "queued" if waits else request.status, "channel": request.channel}
        return queued | ({"last_wait_reason": request.last_wait_reason or "admission"} if waits else {})

    def update(self, project_id: str, batch_id: str, changes: Mapping[str, Any], *, who: str = SYSTEM) -> Batch:
        """The rate and max_errors until it has finished, its data as its state allows."""
        batch = self.get(project_id, batch_id)
        if batch.status == FINISHED:
            raise WrongState("a finished batch does not change")
        sets = {name: value for name, value in changes.items() if name != "job_data" and value is not None}
        removes = [name for name, value in changes.items() if name == "max_errors" and value is None]
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
        _refuse_large(job_data)
        if isinstance(job_data, list) and batch.source is None and (batch.total or 0) > len(job_data):
            raise _invalid("job_data", f"the batch has {batch.total} items")
        line = act(batch.project_id, batch.batch_id, self._clock(), who, "batch.data")
        self._store.set_job_data(batch, job_data, line)

    def authorize(self, batch: Batch, auth_code: str | None) -> None:
        if not self._registry.get(batch.project_id, batch.biz_id).accepts(auth_code):
            raise WrongAuthCode("the business gave another auth_code when it was registered")

    def add_logs(self, project_id: str, batch_id: str, lines: Sequence[Mapping[str, Any]]) -> int:
        self.get(project_id, batch_id)
        now = self._clock()
        made = [LogLine(new_id("log", now), iso(now), **line) for line in lines]
        self._store.add_logs(project_id, batch_id, made, now.timestamp())
        return len(made)

    def logs(
        self, project_id: str, batch_id: str, *, index: int | None, limit: int, cursor: str | None
    ) -> Listed[LogLine]:
        self.get(project_id, batch_id)
        return self._store.logs(project_id, batch_id, index=index, limit=limit, cursor=cursor)

    def log_rows(self, project_id: str, batch_id: str) -> Sequence[dict[str, Any]]:
        """By time, then id: the rows of an export."""
        self.get(project_id, batch_id)
        lines = islice(self._store.all_logs(project_id, batch_id), MOST_LOGS_EXPORTED)
        return [{name: asdict(line)[name] for name in ("time", "index", "level", "message")} for line in lines]


def about(batch: Batch) -> dict[str, Any]:
    """What a business is told when it is asked."""
    names = ("batch_id", "biz_id", "name", "total", "rate", "start_index")
    return {name: getattr(batch, name) for name in names}


def shown(batch: Batch, progress: Progress) -> dict[str, Any]:
    names = ("status", "stop_reason", "concurrency", "max_errors", "retries", "retry_delay", "request_id")
    source = {"source": asdict(batch.source)} if batch.source else {}
    times = {"create_time": batch.created_at, "start_time": batch.start_time, "finish_time": batch.finish_time}
    fields = about(batch) | {name: getattr(batch, name) for name in names} | times | source
    return {name: value for name, value in fields.items() if value is not None} | {
        "progress": progress.shown(batch.total)
    }


def _total(new: NewBatch) -> int | None:
    total = new.total
    if new.file_id is None and isinstance(new.job_data, list):
        total = len(new.job_data) if total is None else total
        if total > len(new.job_data):
            raise _invalid("total", f"job_data lists {len(new.job_data)} items")
    if total is None and new.file_id is None:
        raise _invalid("total", "how many items? Give total, a list as job_data, or a file as source")
    if total is not None and new.start_index > total:
        raise _invalid("start_index", "lies behind the last item")
    return total


def _refuse_large(job_data: Any) -> None:
    if len(json.dumps(job_data)) > LONGEST_DATA:
        raise _invalid("job_data", f"holds more than {LONGEST_DATA} bytes; put the items into a file of the library")


def _invalid(field: str, message: str) -> Invalid:
    return Invalid(message, errors=[{"loc": ["body", field], "msg": message}])
