"""Batches for callers: businesses, new batches, changes, dry runs, logs and results of items."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from tidegate.aws import keys
from tidegate.aws.table import current_claim, unknown_cursor
from tidegate.batches.items import RESULTS_LINK_SECONDS, first_items, folder_of, position_of
from tidegate.batches.listing import check_grant
from tidegate.batches.model import (
    ACTIVE,
    ASYNC,
    CREATED,
    ENDED,
    FINISHED,
    LONGEST_SYNC_ITEM_TIMEOUT,
    MOST_RUNNERS,
    MOST_WORKERS,
    SYNC,
    UNSTARTED_KEPT_SECONDS,
    UTF8,
    Batch,
    BatchItems,
    BatchLogLine,
    BatchOptions,
    BatchProgress,
    Business,
    NewBatch,
    NewBusiness,
    RowSource,
    batch_view,
    hash_auth_code,
    in_order,
)
from tidegate.batches.rows import format_of
from tidegate.batches.workers import ItemCaller
from tidegate.common.ids import iso, named_id, new_id
from tidegate.common.sequences import Listed, slices
from tidegate.errors import BusinessRefused, Conflict, InUse, Invalid, RecordNotFound, WrongAuthCode, WrongState
from tidegate.files.model import READY
from tidegate.http.model import Limits
from tidegate.projects.audit import SYSTEM, act, named_at
from tidegate.projects.model import Quotas
from tidegate.queue.model import PAUSED, WAITING, Request, ceiling
from tidegate.records import declared

if TYPE_CHECKING:
    from tidegate.batches import Batches

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
    """Raises Invalid if `item_timeout` or `concurrency` do not fit the other options."""
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
    if not new.has_source and isinstance(new.job_data, list):
        total = len(new.job_data) if total is None else total
        if total > len(new.job_data):
            raise invalid("total", f"is {total}, but job_data has only {len(new.job_data)} entries")
    if total is None and not new.has_source:
        raise invalid("total", "the number of items is missing: give total, a list as job_data, or a source")
    if total is not None and new.start_index > total:
        raise invalid("start_index", f"is {new.start_index}, but the batch has only {total} items")
    return total


def refuse_large(job_data: Any) -> None:
    """Raises Invalid if the data have more than LONGEST_DATA bytes as JSON."""
    if len(json.dumps(job_data)) > LONGEST_DATA:
        raise invalid(
            "job_data",
            f"has more than {LONGEST_DATA:,} bytes as JSON: upload the items as a file and give it as source",
        )


def invalid(field: str, message: str) -> Invalid:
    """Returns the error for one field of the request body."""
    return Invalid(message, errors=[{"loc": ["body", field], "msg": message}])


# --- businesses
# The services that process the items of batches.

ASK_LIMITS = Limits(connect=5, read=10, total=10, max_bytes=64 * 1024)


def add_business(
    b: Batches, project_id: str, new: NewBusiness, auth_code: str | None = None, who: str = SYSTEM
) -> Business:
    """Registers a business. Raises QuotaExceeded if the project has as many businesses as it may have."""
    now = b.clock()
    business = _business(project_id, new_id("biz", now), new, auth_code, iso(now))
    b.check_urls(project_id, new.urls)
    line = act(project_id, business.biz_id, now, who, "biz.create", named_at(new.name, new.process_url))
    b.businesses.add(business, line, b.quotas(project_id).businesses)
    return business


def replace_business(
    b: Batches, project_id: str, biz_id: str, new: NewBusiness, auth_code: str | None = None, who: str = SYSTEM
) -> Business:
    """Replaces the fields of a business. Running batches use its new URLs and rate from their next slice on."""
    business = _business(project_id, biz_id, new, auth_code, get_business(b, project_id, biz_id).created_at)
    b.check_urls(project_id, new.urls)
    line = act(project_id, biz_id, b.clock(), who, "biz.change", named_at(new.name, new.process_url))
    b.businesses.replace(business, line)
    return business


def get_business(b: Batches, project_id: str, biz_id: str) -> Business:
    business = b.businesses.get(project_id, biz_id)
    if business is None:
        raise RecordNotFound(f"this project has no business with the id {biz_id[:200]}")
    return business


def delete_business(b: Batches, project_id: str, biz_id: str, *, who: str = SYSTEM) -> None:
    """Deletes a business.

    Raises InUse if the business has batches, also ended ones, or if a schedule creates batches for it.
    """
    business = get_business(b, project_id, biz_id)
    schedules = b.table.query_all(keys.BATCH_SCHEDULES.list(project_id), index="gsi1")
    if named := next((item for item in schedules if item.get("biz_id") == biz_id), None):
        raise InUse(f"the schedule {named['schedule_id']} creates batches of the business: delete it first")
    if not b.businesses.counts_batches(project_id, biz_id):
        older = b.table.query_all(keys.batches_list(project_id), index="gsi1", where="#biz_id = :biz_id", biz_id=biz_id)
        if any(True for _ in older):
            raise InUse("batches use the business: delete them first")
    line = act(project_id, biz_id, b.clock(), who, "biz.delete", named_at(business.name, business.process_url))
    b.businesses.delete(project_id, biz_id, line)


def _business(project_id: str, biz_id: str, new: NewBusiness, auth_code: str | None, created_at: str) -> Business:
    return Business(
        biz_id=biz_id,
        project_id=project_id,
        created_at=created_at,
        auth_code_sha256=hash_auth_code(auth_code) if auth_code else None,
        **asdict(new),
    )


def authorize(b: Batches, batch: Batch, auth_code: str | None) -> Business:
    """Returns the business of the batch. Raises WrongAuthCode if the auth_code is wrong."""
    business = get_business(b, batch.project_id, batch.biz_id)
    if not business.accepts(auth_code):
        raise WrongAuthCode("this is not the auth_code that the business was registered with: send that one")
    return business


def ask(b: Batches, url: str, message_id: str, batch: Batch, **more: Any) -> None:
    """Asks the business whether a batch may be created, or may run. Raises an error if the business does not agree.

    The business agrees with a 2xx answer, except an answer such as `{"result": "error", "msg": …}`.
    """
    project = b.project(batch.project_id)
    names = ("batch_id", "biz_id", "name", "total", "rate", "start_index")
    body = json.dumps({name: getattr(batch, name) for name in names} | more, separators=(",", ":")).encode()
    reply = b.http.send(
        "POST",
        url,
        headers={"content-type": "application/json", **b.sign(project, message_id, b.clock(), body, url=url)},
        body=body,
        allow_private=project.allow_private_urls,
        limits=ASK_LIMITS,
        redirects=0,
        project_id=batch.project_id,
    )
    reply.raise_for_status(b.clock())
    try:
        answer = reply.json()
    except ValueError:
        return
    if isinstance(answer, dict) and answer.get("result", "ok") != "ok":
        raise BusinessRefused(
            str(answer.get("msg") or answer.get("message") or "the business refused without a reason")[:500]
        )


# --- batches
# Batches for callers: create, show, list, change, redrive; their data and the outcomes of their items.

# The API answers within 29 s, and compensation has other work.
_DELETE_SECONDS, _DELETED_AT_ONCE = 10.0, 1000
_MAY_BE_UNSET = frozenset(field.name for field in fields(Batch) if field.default is None)


def check(b: Batches, project_id: str, new: NewBatch) -> None:
    """Raises the errors that `create` would raise, without asking the business or storing anything."""
    get_business(b, project_id, new.biz_id)
    _build(b, project_id, new, "")


def create(b: Batches, business: Business, new: NewBatch, *, who: str = SYSTEM, batch_id: str | None = None) -> Batch:
    """Stores a new batch, after asking the business. If a batch with this `batch_id` exists, returns that batch.

    Each runner takes a slot of the channel, so the batch gets at most as many runners as the project may hold slots.
    Raises QuotaExceeded if the project has as many batches as it may have, or as many batches that were never started.
    """
    project_id, quotas = business.project_id, b.quotas(business.project_id)
    if new.runners > 1:
        new = replace(new, runners=min(new.runners, _most_runners(b, quotas)))
    batch = _build(b, project_id, new, batch_id or new_id("bat", b.clock()))
    if business.before_create_url:
        ask(b, business.before_create_url, f"{batch.batch_id}.create", batch, job_data=new.job_data)
    line = act(project_id, batch.batch_id, b.clock(), who, "batch.create", new.name, states=(None, CREATED))
    try:
        b.store.add(batch, new.job_data, line, quotas)
    except Conflict:
        if batch_id is None:
            raise
        return get(b, project_id, batch_id)
    return batch


def _most_runners(b: Batches, quotas: Quotas) -> int:
    """Returns the most runners that a batch of the project may have. Each runner takes a slot of a channel."""
    known = b.queue.capacities | {channel.name: channel.capacity for channel in b.queue.channel_store.all()}
    slots = (ceiling(known.get(name, 1), (quotas.share or {}).get(name)) for name in b.channel_names)
    return max(1, min(max(slots, default=1), quotas.running or MOST_RUNNERS))


def delete_unstarted(b: Batches, project_id: str, batch_id: str) -> bool:
    """Deletes the batch if nobody has started it. Returns whether the batch was deleted.

    Compensation calls this 30 days after the batch was created.
    """
    batch = b.store.get(project_id, batch_id)
    if batch is None or batch.status != CREATED:
        return False
    why = f"not started within {UNSTARTED_KEPT_SECONDS // 86400} days"
    return _delete(b, batch, SYSTEM, "batch.expire", why)


def delete_ended(b: Batches, project_id: str, batch_id: str) -> bool:
    """Deletes an ended batch whose retention is over. Returns whether the batch was deleted. Called by compensation."""
    batch, days = b.store.get(project_id, batch_id), b.settings.batch_retention_days
    if batch is None or batch.status not in ENDED or not batch.finish_time or not days:
        return False
    until = datetime.fromisoformat(batch.finish_time).timestamp() + days * 86400
    if until > b.clock().timestamp():
        # The operator has raised it since the batch ended.
        b.store.keep_longer(batch, until)
        return False
    return _delete(b, batch, SYSTEM, "batch.expire", f"{batch.status} more than {days} days ago")


def delete(b: Batches, project_id: str, batch_id: str, *, who: str = SYSTEM) -> None:
    """Deletes a batch that does not run, with its results, log lines and objects."""
    batch = get(b, project_id, batch_id)
    if batch.status not in {CREATED, *ENDED}:
        raise WrongState(f"cannot delete: the batch is {batch.status}; stop it first, and wait until it is stopped")
    if not _delete(b, batch, who, "batch.delete", batch.name):
        raise WrongState("the batch changed meanwhile: read it and try again")


def _delete(b: Batches, batch: Batch, who: str, action: str, why: str) -> bool:
    now = b.clock()
    line = act(batch.project_id, batch.batch_id, now, who, action, why, states=(batch.status, None))
    if not b.store.delete(batch, line, now.timestamp()):
        # The answer to the write may have been lost, and the SDK repeated it.
        return b.store.get(batch.project_id, batch.batch_id) is None
    finish_delete(b, batch.project_id, batch.batch_id)
    return True


def finish_delete(b: Batches, project_id: str, batch_id: str) -> bool:
    """Deletes the objects, log lines and results of a deleted batch, for some seconds. Returns True.

    Compensation calls it again until the last record of the batch is deleted, too.
    """
    until, folder = time.monotonic() + _DELETE_SECONDS, folder_of(project_id, batch_id)
    while found := list(islice(b.objects.keys(folder), _DELETED_AT_ONCE)):
        b.bucket.delete(*found)
        if time.monotonic() > until:
            return True
    while not b.store.delete_rows(project_id, batch_id, _DELETED_AT_ONCE):
        if time.monotonic() > until:
            return True
    b.store.forget(project_id, batch_id)
    return True


def _build(b: Batches, project_id: str, new: NewBatch, batch_id: str) -> Batch:
    batch = Batch(
        batch_id=batch_id,
        project_id=project_id,
        status=CREATED,
        created_at=iso(b.clock()),
        source=_source(b, project_id, new),
        **{each.name: getattr(new, each.name) for each in fields(BatchItems)} | {"total": total_of(new)},
    )
    check_new(new)
    b.check_urls(project_id, {"progress_url": new.progress_url})
    return batch


def _source(b: Batches, project_id: str, new: NewBatch) -> RowSource | None:
    if place := new.s3_prefix or new.s3_inventory:
        check_grant(b, project_id, place, prefix=new.s3_prefix is not None)
        return RowSource(s3_prefix=new.s3_prefix, s3_inventory=new.s3_inventory)
    if new.file_id is None:
        return None
    file = b.library.get(project_id, new.file_id)
    if file.state != READY or file.signature is None:
        raise WrongState(f"the file {new.file_id} is {file.state}: wait until its state is ready")
    row_format = new.format or format_of(file.file_name)
    if row_format is None:
        raise invalid("source", f"give the format, csv or ndjson: the name {file.file_name} does not show it")
    encoding, delimiter = new.encoding or UTF8, new.delimiter or ","
    source = RowSource(new.file_id, file.signature, row_format, encoding, delimiter, new.compression)
    return b.rows.inspect(project_id, source, new.delimiter)


def get(b: Batches, project_id: str, batch_id: str) -> Batch:
    batch = b.store.get(project_id, batch_id)
    if batch is None:
        raise RecordNotFound(f"this project has no batch with the id {batch_id[:200]}")
    return batch


def get_many(b: Batches, project_id: str, batch_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Returns the batches that exist, as callers see them, by batch_id."""
    found = b.store.get_many(project_id, batch_ids)
    details = b.store.details_of(found)
    return {batch.batch_id: _with_queue(batch, *details[batch.batch_id]) for batch in found}


def list_batches(
    b: Batches, project_id: str, status: str | None, limit: int, cursor: str | None
) -> Listed[dict[str, Any]]:
    """Returns the project's batches as callers see them, newest first; only those in `status` if given."""
    page = b.store.list(project_id, limit, cursor, **({"status": status} if status else {}))
    details = b.store.details_of(page.items)
    items = [_with_queue(batch, *details[batch.batch_id]) for batch in page.items]
    return Listed(items, page.next_cursor)


def view(b: Batches, batch: Batch) -> dict[str, Any]:
    """Returns the batch as callers see it, with its progress and the state of its request."""
    return _with_queue(batch, *b.store.details_of([batch])[batch.batch_id])


def _with_queue(batch: Batch, progress: BatchProgress, request: Request | None) -> dict[str, Any]:
    """Returns the batch as callers see it, with the state of its request. A batch that waits for a slot shows why."""
    if request is None:
        return batch_view(batch, progress)
    if request.status in (*WAITING, PAUSED):
        # No function works on the batch now: the stored values are old.
        progress = replace(progress, eta=None, rate_now=0.0)
    waiting = request.status in WAITING
    queued = {"queue_status": "queued" if waiting else request.status, "channel": request.channel}
    reason = {"last_wait_reason": request.last_wait_reason or "admission"} if waiting else {}
    return batch_view(batch, progress) | queued | reason


def update(b: Batches, project_id: str, batch_id: str, changes: Mapping[str, Any], *, who: str = SYSTEM) -> Batch:
    """Changes the rate and limits of a batch that has not finished, and its data if its state allows that."""
    batch = get(b, project_id, batch_id)
    always = {each.name for each in declared(Batch).values() if each.f.changes == "always"}
    if batch.status == FINISHED and set(changes) - always:
        raise WrongState("a finished batch cannot be changed: create a new one, or redrive its failed items")
    sets = {name: value for name, value in changes.items() if name != "job_data" and value is not None}
    removes = [name for name, value in changes.items() if name in _MAY_BE_UNSET and value is None]
    given = {name: changes[name] for name in ("concurrency", "item_timeout") if name in {*sets, *removes}}
    check_options(replace(batch, **given))
    if "job_data" in changes:
        _set_data(b, batch, changes["job_data"], who)
    if not sets and not removes:
        return get(b, project_id, batch_id)
    why = ", ".join([*(f"{name} {value}" for name, value in sets.items()), *(f"no {name}" for name in removes)])
    line = act(project_id, batch_id, b.clock(), who, "batch.change", why)
    return b.store.patch(batch, sets, removes, line)


def set_data(
    b: Batches, project_id: str, batch_id: str, job_data: Any, auth_code: str | None, *, who: str = SYSTEM
) -> Batch:
    """Changes `job_data` on behalf of the business. Raises WrongAuthCode if the auth_code is wrong."""
    batch = get(b, project_id, batch_id)
    authorize(b, batch, auth_code)
    _set_data(b, batch, job_data, who)
    return get(b, project_id, batch_id)


def _set_data(b: Batches, batch: Batch, job_data: Any, who: str) -> None:
    if not batch.takes_data:
        raise WrongState(
            f"the data of a batch that is {batch.status} cannot change at a rate of {batch.rate:g}: stop it first"
        )
    refuse_large(job_data)
    if isinstance(job_data, list) and batch.source is None and (batch.total or 0) > len(job_data):
        raise invalid("job_data", f"has {len(job_data)} entries, but the batch has {batch.total} items")
    line = act(batch.project_id, batch.batch_id, b.clock(), who, "batch.data")
    b.store.set_job_data(batch, job_data, line)


def outcomes(
    b: Batches, project_id: str, batch_id: str, state: str | None, limit: int, cursor: str | None
) -> Listed[dict[str, Any]]:
    """Returns items that failed, were abandoned or recovered, in the order of their indexes."""
    batch = get(b, project_id, batch_id)
    if cursor is not None and not cursor.isdecimal():
        raise unknown_cursor()
    after = int(cursor) if cursor else None
    found, last = b.outcomes.page(batch, _parts(b, batch), state, limit, after)
    return Listed(found, None if last is None else str(last))


def results(b: Batches, project_id: str, batch_id: str) -> dict[str, Any]:
    """Returns a presigned link to a JSONL file of all items that failed, were abandoned or recovered."""
    batch = get(b, project_id, batch_id)
    url, name = b.outcomes.link(batch, _parts(b, batch))
    return {"url": url, "file_name": name, "expires_in": RESULTS_LINK_SECONDS}


def report(b: Batches, project_id: str, batch_id: str, form: str) -> dict[str, Any]:
    """Returns a presigned link to a file of all items that are done.

    Raises NotReady while the file is being put together.
    """
    batch = get(b, project_id, batch_id)
    if not batch.report:
        raise WrongState("the batch records no report: create batches with `report: true` to have one")
    if batch.status not in ENDED:
        raise WrongState(
            f"the batch is {batch.status}: the report of all items is made when it has stopped or finished"
        )
    parts = [record.progress.report_parts for record in b.store.runners(batch)]
    url, name = b.outcomes.report(batch, parts, form)
    return {"url": url, "file_name": name, "expires_in": RESULTS_LINK_SECONDS}


def redrive(b: Batches, project_id: str, batch_id: str, states: Sequence[str], *, who: str = SYSTEM) -> Batch:
    """Creates a batch of the items that failed in this one, with the same options. Does not start the new batch."""
    batch = get(b, project_id, batch_id)
    if batch.status in ACTIVE:
        raise WrongState(
            f"the batch is {batch.status}: its failed items can be redriven when it has stopped or finished"
        )
    now = b.clock()
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
    total = b.outcomes.copy_items(batch, _parts(b, batch), states, made)
    if total == 0:
        raise WrongState(f"no item of the batch is {' or '.join(states)}: there is nothing to redrive")
    why = f"redrive of {batch_id}: {total} items"
    line = act(project_id, made.batch_id, now, who, "batch.redrive", why, states=(None, CREATED))
    made = replace(made, total=total)
    b.store.add(made, None, line, b.quotas(project_id))
    return made


def _parts(b: Batches, batch: Batch) -> Sequence[int]:
    return [record.progress.outcome_parts for record in b.store.runners(batch)]


def add_result(
    b: Batches,
    project_id: str,
    batch_id: str,
    index: int,
    result: Mapping[str, Any],
    auth_code: str | None,
    attempt: int | None = None,
) -> None:
    """Stores the result of one item of an asynchronous batch. Raises WrongState, with the reason, if it is refused."""
    batch = get(b, project_id, batch_id)
    authorize(b, batch, auth_code)
    if batch.ack != ASYNC:
        raise WrongState(
            'this batch takes the answers of process_url as results: only a batch with ack: "async" takes them here'
        )
    place = position_of(b, batch, index)
    if place is None:
        raise RecordNotFound(f"the batch has no item {index}")
    if batch.status != FINISHED:
        b.results.add(batch, index, place, result, attempt, b.clock().timestamp())
    elif not b.results.repeats(batch, index, result, attempt):
        raise WrongState("the batch has finished: results are no longer accepted")


MOST_ITEMS = 10
# The API answers within 29 s.
_SECONDS = 20.0


def dry_run(b: Batches, batch: Batch, count: int) -> list[dict[str, Any]]:
    """Calls the first items one after another and returns the answers. Counts, logs and retries nothing."""
    work = ItemCaller(b, batch, b.project(batch.project_id), get_business(b, batch.project_id, batch.biz_id))
    entries = [{"index": index, "attempt": 1} | fields for index, fields in first_items(b, batch, count)]
    until = time.monotonic() + _SECONDS
    answers: list[dict[str, Any]] = []
    connection = work.connect(_SECONDS / 2)
    try:
        for call in slices(entries, batch.items_per_call):
            if time.monotonic() > until - _SECONDS / 2:
                break
            answers += [parsed.answer.view() for parsed in work.dry_call(connection, call)]
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


MOST_LOGS_EXPORTED = 50_000


def add_logs(b: Batches, project_id: str, batch_id: str, lines: Sequence[Mapping[str, Any]]) -> int:
    """Stores log lines of the caller, with the present time. Returns their number.

    A repeat with the same Idempotency-Key stores the same lines again: they have the same ids.
    """
    get(b, project_id, batch_id)
    claim = current_claim()
    now = datetime.fromisoformat(claim.began) if claim else b.clock()
    seed = claim.seed if claim else uuid.uuid4().hex
    ids = (named_id("log", now, seed, str(number)) for number in range(len(lines)))
    made = in_order([BatchLogLine(log_id, iso(now), **line) for log_id, line in zip(ids, lines, strict=True)])
    b.store.add_logs(project_id, batch_id, made, now.timestamp())
    return len(made)


def list_logs(
    b: Batches, project_id: str, batch_id: str, *, index: int | None, limit: int, cursor: str | None
) -> Listed[BatchLogLine]:
    """Returns log lines of a batch, newest first; only those of one item if `index` is given."""
    get(b, project_id, batch_id)
    return b.store.logs(project_id, batch_id, index=index, limit=limit, cursor=cursor)


def log_rows(b: Batches, project_id: str, batch_id: str) -> Sequence[dict[str, Any]]:
    """Returns the newest log lines, oldest first, as rows of an export.

    If older lines are left out, the first row says so.
    """
    get(b, project_id, batch_id)
    lines = list(islice(b.store.newest_logs(project_id, batch_id), MOST_LOGS_EXPORTED + 1))
    if len(lines) > MOST_LOGS_EXPORTED:
        oldest = lines[MOST_LOGS_EXPORTED]
        message = f"older lines are left out: an export holds the newest {MOST_LOGS_EXPORTED}"
        lines[MOST_LOGS_EXPORTED] = BatchLogLine(oldest.log_id, oldest.time, message, level="warning")
    lines.reverse()
    return [{name: getattr(line, name) for name in ("time", "index", "level", "message")} for line in lines]
