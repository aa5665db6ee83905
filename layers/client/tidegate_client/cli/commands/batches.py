"""The commands batch, batch schedule and biz."""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

from tidegate_client.cli.commands.exports import follow_export
from tidegate_client.cli.context import (
    Context,
    Exit,
    Group,
    Subparsers,
    add_timeout,
    add_timezone,
    add_watch,
    given,
    given_of,
)
from tidegate_client.cli.views import follow
from tidegate_client.errors import Conflict, UsageError
from tidegate_client.models import BatchOptions, BusinessOptions
from tidegate_client.resources.batches import Batches, Businesses

_WHEN = "'rate(6 hours)' or 'cron(0 2 * * ? *)'"


def register(subparsers: Subparsers) -> None:
    biz = Group(
        subparsers, "biz", "businesses whose callbacks process batches", lambda client: client.businesses, "biz_id"
    )
    create = biz.command("create", _create_business, "register a business")
    create.add_argument("name")
    create.add_argument("process_url", help="called for each item")
    for option in ("--before-create-url", "--before-run-url", "--process-stop-url", "--auth-code"):
        create.add_argument(option)
    create.add_argument("--rate", type=float, help="items a second for all its batches together")
    biz.pages("list", Businesses.list, ("biz_id", "name", "process_url"), "list businesses")
    biz.call("delete", Businesses.delete, "delete a business that no batch and no schedule uses")

    batch = Group(
        subparsers,
        "batch",
        "many items through the callback of a business, at a rate",
        lambda client: client.batches,
        "batch_id",
    )
    create = batch.command("create", _create, "create a batch; it runs after `batch start`, or with --start")
    _add_batch_options(create)
    create.add_argument("--start", action="store_true", help="start it at once")
    add_watch(create, "with --start: show its progress until it ends")

    start = _with_id(batch.command("start", _start, "start a batch, or resume it where it stopped"))
    add_watch(start)
    batch.call("stop", Batches.stop, "stop a batch; `batch start` resumes it")
    batch.call("show", Batches.get, "show a batch")
    batch.call("delete", Batches.delete, "delete a batch that does not run, with its results and log lines")
    add_timeout(_with_id(batch.command("watch", _watch, "show its progress until it ends")))
    _with_id(batch.command("rate", _rate, "change its rate while it runs")).add_argument("rate", type=float)
    update = _with_id(batch.command("update", _update, "change a batch; what is possible depends on its status"))
    update.add_argument("--rate", type=float, help="items a second")
    update.add_argument("--max-errors", type=int, metavar="N", help="stop after N failed calls")
    update.add_argument("--job-data", type=_json, metavar="JSON", help="sent to the business with each item")
    _add_pace_options(update)
    _add_failure_options(update)
    batch.pages(
        "items",
        Batches.items,
        ("index", "state", "attempts", "answer", "job_data"),
        "list items that failed, were abandoned or needed retries",
        "batch_id",
        state={"choices": ("failed", "abandoned", "recovered")},
    )
    results = _with_id(batch.command("results", _results, "print a link to all these items as JSONL"))
    results.add_argument(
        "--all", action="store_true", help="print a link to the outcome of every item; the batch needs --report"
    )
    results.add_argument(
        "--format", choices=("jsonl", "csv"), default="jsonl", help="the format of --all (default: jsonl)"
    )
    redrive = _with_id(batch.command("redrive", _redrive, "create a new batch of the failed items only"))
    redrive.add_argument("--state", action="append", choices=("failed", "abandoned"), help="default: failed")
    redrive.add_argument("--start", action="store_true", help="start it at once")
    dry_run = _with_id(
        batch.command("dry-run", _dry_run, "send the first items to the business as a test; nothing is counted")
    )
    dry_run.add_argument("--items", type=int, default=1, metavar="N", help="1 to 10; default: 1")
    batch.pages(
        "logs",
        Batches.logs,
        ("time", "index", "level", "message"),
        "list what the business logged, newest first",
        "batch_id",
        index={"type": int, "help": "only lines of this item"},
    )
    export = _with_id(batch.command("export-logs", _export_logs, "download all log lines as a CSV file"))
    export.add_argument("-o", "--output", type=Path, help="default: the file name of the export, in this folder")
    add_timeout(export)
    columns = ("batch_id", "name", "status", "progress.processed", "progress.total", "progress.failed", "stop_reason")
    batch.pages("list", Batches.list, columns, "list batches, newest first", status={})
    _register_schedules(batch.group("schedule", "batches that run on a schedule", "schedule_id"))


def _register_schedules(schedule: Group) -> None:
    create = schedule.command("create", _repeat, "create and start a batch on a schedule")
    create.add_argument("schedule", metavar="WHEN", help=_WHEN)
    add_timezone(create)
    _add_batch_options(create)
    columns = ("schedule_id", "name", "schedule", "timezone", "status", "next_run", "last_batch_id", "last_error")
    schedule.pages("list", Batches.schedules, columns, "list recurring batches")
    schedule.call("show", Batches.schedule, "show a recurring batch and what it creates")
    pause, resume = partial(Batches.update_schedule, paused=True), partial(Batches.update_schedule, paused=False)
    schedule.call("pause", pause, "stop a recurring batch; missed runs are not repeated later")
    schedule.call("resume", resume, "run it on its schedule again")
    schedule.call("delete", Batches.delete_schedule, "delete a recurring batch; the batches that it created stay")
    of_runs = ("due", "state", "batch_id", "reason")
    schedule.pages("runs", Batches.runs, of_runs, "its history, newest first", "schedule_id")
    change = schedule.command("change", _change, "change when it runs, or the batch that it creates; the rest stays")
    change.add_argument("schedule_id")
    change.add_argument("schedule", metavar="WHEN", nargs="?", help=_WHEN)
    add_timezone(change)
    change.add_argument("--revision", type=int, metavar="N", help="refuse if it was changed since this revision")
    _add_batch_options(change, required=False)


def _add_batch_options(create: argparse.ArgumentParser, *, required: bool = True) -> None:
    create.add_argument("--biz", required=required, metavar="BIZ_ID", dest="biz_id")
    create.add_argument("--name", required=required)
    create.add_argument("--total", type=int, help="number of items")
    create.add_argument("--rate", type=float, required=required, help="items a second")
    _add_pace_options(create)
    create.add_argument("--start-index", type=int, metavar="N", help="index of the first item (default 0)")
    create.add_argument("--job-data", type=_json, metavar="JSON", help="sent to the business with each item")
    create.add_argument("--max-errors", type=int, metavar="N", help="stop after N failed calls")
    create.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    create.add_argument(
        "--rows", metavar="FILE_ID", help="a CSV or NDJSON file of the library whose rows are the items"
    )
    create.add_argument(
        "--s3-prefix", metavar="S3_URL", help="the objects with this prefix are the items: s3://bucket/prefix"
    )
    create.add_argument(
        "--s3-inventory", metavar="S3_URL", help="the objects of an S3 inventory are the items: s3://…/manifest.json"
    )
    create.add_argument("--rows-format", choices=("csv", "ndjson"))
    create.add_argument("--rows-encoding", metavar="NAME", help="such as gb18030 (default: utf-8)")
    create.add_argument("--rows-delimiter", metavar="CHARACTER", help="one of , ; | and tab (default: a comma)")
    _add_failure_options(create)
    create.add_argument(
        "--ack", choices=("sync", "async"), help="async: the business sends the result later, in a call of its own"
    )
    create.add_argument("--items-per-call", type=int, metavar="N", help="items in one call, 1 to 100")
    create.add_argument("--runners", type=int, metavar="N", help="functions that share the items and the rate, 1 to 32")
    create.add_argument(
        "--report", action="store_true", default=None, help="record every item, for `batch results --all`"
    )
    create.add_argument("--concurrency-key", metavar="KEY", help="batches with the same key run one at a time")


def _add_pace_options(parser: argparse.ArgumentParser) -> None:
    """Adds those options of a new batch that can also be changed while the batch runs."""
    parser.add_argument("--concurrency", type=int, metavar="N", help="calls to the business at a time")
    parser.add_argument("--retries", type=int, metavar="N", help="retries of an item (default 5)")
    parser.add_argument("--retry-delay", type=float, metavar="SECONDS", help="pause before a retry (default 3)")
    parser.add_argument(
        "--backoff", type=_json, metavar="JSON", help='growing pauses, such as {"base": 2, "factor": 2, "max": 600}'
    )
    parser.add_argument("--item-timeout", type=int, metavar="SECONDS", help="time-out of a call, 1 to 900")


def _add_failure_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-item-failure",
        choices=("stop", "skip"),
        help="what to do when an item has no retries left (default: stop)",
    )
    parser.add_argument("--max-failed", type=int, metavar="N", help="stop when more items than this have failed")
    parser.add_argument(
        "--max-failed-percent", type=float, help="stop when more than this percentage of the items have failed"
    )
    parser.add_argument("--note", metavar="TEXT", help="a remark for people, at most 500 characters; '' removes it")


def _batch_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments of `batches.create` from the options of `_add_batch_options`."""
    return {"biz_id": args.biz_id, "name": args.name, "rate": _whole(args.rate), **_options(args)}


def _options(args: argparse.Namespace) -> dict[str, Any]:
    source = dict(given(args, "s3_prefix", "s3_inventory"))
    if args.rows:
        delimiter = "\t" if args.rows_delimiter in ("tab", "\\t") else args.rows_delimiter
        how = {"format": args.rows_format, "encoding": args.rows_encoding, "delimiter": delimiter}
        source |= {"file_id": args.rows} | {name: value for name, value in how.items() if value}
    return given_of(args, BatchOptions) | ({"source": source} if source else {})


def _with_id(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("batch_id")
    return parser


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


def _whole(rate: float) -> float:
    return int(rate) if rate.is_integer() else rate


def _create_business(context: Context, args: argparse.Namespace) -> None:
    options = given_of(args, BusinessOptions)
    context.output.record(context.client.businesses.create(args.name, args.process_url, **options))


def _create(context: Context, args: argparse.Namespace) -> Exit | None:
    if args.watch and not args.start:
        raise UsageError("--watch shows a batch that runs: give --start too")
    made = context.client.batches.create(**_batch_of(args))
    if args.start:
        made = context.client.batches.start(made["batch_id"])
    if args.watch:
        context.output.note(f"batch {made['batch_id']}")
        return follow(context, [made["batch_id"]])
    context.output.record(made)
    # At the end, because the record fills a screen.
    context.suggest(f"watch {made['batch_id']}" if args.start else f"batch start {made['batch_id']} --watch")
    return None


def _dry_run(context: Context, args: argparse.Namespace) -> None:
    items = context.client.batches.dry_run(args.batch_id, items=args.items)
    context.output.table(items, ("index", "answer"))


def _start(context: Context, args: argparse.Namespace) -> Exit | None:
    started = context.client.batches.start(args.batch_id)
    if args.watch:
        return follow(context, [args.batch_id])
    context.output.record(started)
    return None


def _watch(context: Context, args: argparse.Namespace) -> Exit:
    return follow(context, [args.batch_id])


def _rate(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.update(args.batch_id, rate=_whole(args.rate)))


def _update(context: Context, args: argparse.Namespace) -> None:
    changes = given_of(args, BatchOptions)
    if args.note is not None:
        changes["note"] = args.note or None
    if args.rate is not None:
        changes["rate"] = _whole(args.rate)
    if not changes:
        raise UsageError("nothing to change: give --rate, --max-errors or another option of `batch update --help`")
    context.output.record(context.client.batches.update(args.batch_id, **changes))


def _results(context: Context, args: argparse.Namespace) -> None:
    context.output.record(_ready_results(context, args))


def _ready_results(context: Context, args: argparse.Namespace) -> dict[str, Any]:
    """Returns the link to the results. Repeats the call while the results are not ready.

    If there are many results, each call builds a part of them."""
    batches = context.client.batches
    while True:
        try:
            return batches.report(args.batch_id, format=args.format) if args.all else batches.results(args.batch_id)
        except Conflict as error:
            if error.code != "not_ready":
                raise
            time.sleep(1)


def _redrive(context: Context, args: argparse.Namespace) -> None:
    made = context.client.batches.redrive(args.batch_id, states=args.state)
    context.output.record(context.client.batches.start(made["batch_id"]) if args.start else made)


def _export_logs(context: Context, args: argparse.Namespace) -> Exit:
    return follow_export(context, context.client.batches.export_logs(args.batch_id), args.output)


def _repeat(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.repeat(args.schedule, **given(args, "timezone"), **_batch_of(args)))


def _change(context: Context, args: argparse.Namespace) -> None:
    batch = {**given(args, "biz_id", "name"), **_options(args)}
    if args.rate is not None:
        batch["rate"] = _whole(args.rate)
    if not batch and not args.schedule and not args.timezone:
        raise UsageError("nothing to change: give WHEN, --timezone, or options of the batch such as --rate")
    context.output.record(
        context.client.batches.update_schedule(
            args.schedule_id,
            schedule=args.schedule,
            timezone=args.timezone,
            batch=batch or None,
            revision=args.revision,
        )
    )
