"""batch create · start · stop · show · list · watch · rate · items · results · redrive · logs · export-logs

batch schedule create · list · show · runs · change · pause · resume · delete
biz create · list
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tidegate_client.cli.commands.exports import follow_export
from tidegate_client.cli.context import Context, Group, Subparsers, add_paging, add_timeout, given
from tidegate_client.cli.exits import Exit
from tidegate_client.cli.views import follow
from tidegate_client.errors import UsageError

_WHEN = "'rate(6 hours)' or 'cron(0 2 * * ? *)', in UTC"


def register(subparsers: Subparsers) -> None:
    biz = Group(subparsers, "biz", "businesses whose callbacks process batches")
    create = biz.command("create", _create_business, "register a business")
    create.add_argument("name")
    create.add_argument("process_url")
    for option in ("--before-create-url", "--before-run-url", "--process-stop-url", "--auth-code"):
        create.add_argument(option)
    create.add_argument("--rate", type=float, help="items a second, for all its batches together")
    add_paging(biz.command("list", _list_businesses, "list businesses"))

    batch = Group(subparsers, "batch", "many items through a business callback, at a rate")
    create = batch.command("create", _create, "make a batch; it does not run yet")
    _add_order(create)
    create.add_argument("--start", action="store_true", help="start it at once")

    start = _with_id(batch.command("start", _start, "start, or go on where it stopped"))
    start.add_argument("--watch", action="store_true")
    add_timeout(start)
    _with_id(batch.command("stop", _stop, "stop; it keeps its place"))
    _with_id(batch.command("show", _show, "one batch"))
    add_timeout(_with_id(batch.command("watch", _watch, "a live bar until it ends")))
    _with_id(batch.command("rate", _rate, "change its rate while it runs")).add_argument("rate", type=float)
    items = _with_id(batch.command("items", _items, "items that failed, were abandoned or needed retries"))
    items.add_argument("--state", choices=("failed", "abandoned", "recovered"))
    add_paging(items)
    _with_id(batch.command("results", _results, "a link to all of them as JSONL"))
    redrive = _with_id(batch.command("redrive", _redrive, "a new batch of the failed items only"))
    redrive.add_argument("--state", action="append", choices=("failed", "abandoned"), help="default: failed")
    redrive.add_argument("--start", action="store_true", help="start it at once")
    dry_run = _with_id(batch.command("dry-run", _dry_run, "send the first items to the business; nothing is counted"))
    dry_run.add_argument("--items", type=int, default=1, metavar="N", help="1 to 10; default: 1")
    logs = _with_id(batch.command("logs", _logs, "what the business logged, newest first"))
    logs.add_argument("--index", type=int, help="of this item only")
    add_paging(logs)
    export = _with_id(batch.command("export-logs", _export_logs, "all log lines into a CSV file here"))
    export.add_argument("-o", "--output", type=Path, help="default: the export's own name, here")
    add_timeout(export)
    listing = batch.command("list", _list, "list batches, newest first")
    listing.add_argument("--status")
    add_paging(listing)
    _register_schedules(batch.group("schedule", "batches that are made and started again and again; times are UTC"))


def _register_schedules(schedule: Group) -> None:
    create = schedule.command("create", _repeat, "make and start a batch at each moment of a schedule")
    create.add_argument("schedule", metavar="WHEN", help=_WHEN)
    _add_order(create)
    add_paging(schedule.command("list", _schedules, "list recurring batches"))
    for name, run, text in (
        ("show", _schedule, "one recurring batch, with what it makes"),
        ("pause", _pause, "stop repeating a batch; what is missed is not made up for"),
        ("resume", _resume, "repeat it again"),
        ("delete", _unschedule, "forget a recurring batch; batches that it made stay"),
    ):
        schedule.command(name, run, text).add_argument("schedule_id")
    runs = schedule.command("runs", _runs, "its history, newest first")
    runs.add_argument("schedule_id")
    add_paging(runs)
    change = schedule.command("change", _change, "change when it runs, or the batch that it makes; the rest stays")
    change.add_argument("schedule_id")
    change.add_argument("schedule", metavar="WHEN", nargs="?", help=_WHEN)
    change.add_argument("--revision", type=int, metavar="N", help="refuse if it was changed since this revision")
    _add_order(change, required=False)


def _add_order(create: argparse.ArgumentParser, *, required: bool = True) -> None:
    create.add_argument("--biz", required=required, metavar="BIZ_ID", dest="biz_id")
    create.add_argument("--name", required=required)
    create.add_argument("--total", type=int, help="how many items")
    create.add_argument("--rate", type=float, required=required, help="items a second")
    create.add_argument("--concurrency", type=int)
    create.add_argument("--start-index", type=int)
    create.add_argument("--job-data", type=_json, metavar="JSON")
    create.add_argument("--max-errors", type=int)
    create.add_argument("--retries", type=int)
    create.add_argument("--retry-delay", type=float)
    create.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    create.add_argument("--rows", metavar="FILE_ID", help="a CSV or NDJSON file of the library: its rows are the items")
    create.add_argument("--rows-format", choices=("csv", "ndjson"))
    create.add_argument("--on-item-failure", choices=("stop", "skip"), help="what an item without retries left does")
    create.add_argument("--max-failed", type=int, help="tolerate so many items that did not succeed")
    create.add_argument("--max-failed-percent", type=float, help="the same, as a share of the total")
    create.add_argument("--item-timeout", type=int, metavar="SECONDS", help="1 to 900")
    create.add_argument("--ack", choices=("sync", "async"), help="async: the result comes by a call of its own")
    create.add_argument("--items-per-call", type=int, metavar="N", help="1 to 100")
    create.add_argument("--runners", type=int, metavar="N", help="1 to 32 functions share the items and the rate")
    create.add_argument("--concurrency-key", metavar="KEY", help="batches with the same key run one at a time")


def _order(args: argparse.Namespace) -> dict[str, Any]:
    """The batch that the options of `_add_order` describe, as the SDK takes it."""
    needed = {"biz_id": args.biz_id, "name": args.name, "total": args.total, "rate": _whole(args.rate)}
    return {**needed, **_options(args)}


def _options(args: argparse.Namespace) -> dict[str, Any]:
    simple = ("concurrency", "start_index", "job_data", "max_errors", "retries", "retry_delay", "priority")
    failures = ("on_item_failure", "max_failed", "max_failed_percent", "item_timeout", "ack", "items_per_call")
    source = {}
    if args.rows:
        source = {"source": {"file_id": args.rows} | ({"format": args.rows_format} if args.rows_format else {})}
    return {**given(args, *simple, *failures, "runners", "concurrency_key"), **source}


def _with_id(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument("batch_id")
    return parser


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error


def _whole(rate: float) -> float:
    return int(rate) if rate.is_integer() else rate


def _create_business(context: Context, args: argparse.Namespace) -> None:
    optional = given(args, "before_create_url", "before_run_url", "process_stop_url", "auth_code", "rate")
    context.output.record(context.client.businesses.create(args.name, args.process_url, **optional))


def _list_businesses(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.businesses.list(limit=args.limit, cursor=cursor),
        ("biz_id", "name", "process_url"),
    )


def _create(context: Context, args: argparse.Namespace) -> None:
    made = context.client.batches.create(**_order(args))
    if args.start:
        made = context.client.batches.start(made["batch_id"])
    context.output.record(made)


def _dry_run(context: Context, args: argparse.Namespace) -> None:
    tried = context.client.batches.dry_run(args.batch_id, items=args.items)
    context.output.table(tried, ("index", "answer"))


def _start(context: Context, args: argparse.Namespace) -> Exit | None:
    started = context.client.batches.start(args.batch_id)
    if args.watch:
        return follow(context, [args.batch_id])
    context.output.record(started)
    return None


def _stop(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.stop(args.batch_id))


def _show(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.get(args.batch_id))


def _watch(context: Context, args: argparse.Namespace) -> Exit:
    return follow(context, [args.batch_id])


def _rate(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.update(args.batch_id, rate=_whole(args.rate)))


def _items(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.batches.items(args.batch_id, state=args.state, limit=args.limit, cursor=cursor),
        ("index", "state", "attempts", "answer", "job_data"),
    )


def _results(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.results(args.batch_id))


def _redrive(context: Context, args: argparse.Namespace) -> None:
    made = context.client.batches.redrive(args.batch_id, states=args.state)
    context.output.record(context.client.batches.start(made["batch_id"]) if args.start else made)


def _logs(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.batches.logs(args.batch_id, index=args.index, limit=args.limit, cursor=cursor),
        ("time", "index", "level", "message"),
    )


def _export_logs(context: Context, args: argparse.Namespace) -> Exit:
    return follow_export(context, context.client.batches.export_logs(args.batch_id), args.output)


def _list(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.batches.list(status=args.status, limit=args.limit, cursor=cursor),
        ("batch_id", "name", "status", "progress", "stop_reason"),
    )


def _repeat(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.repeat(args.schedule, **_order(args)))


def _schedules(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.batches.schedules(limit=args.limit, cursor=cursor),
        ("schedule_id", "name", "schedule", "status", "next_run", "last_batch_id", "last_error"),
    )


def _schedule(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.schedule(args.schedule_id))


def _runs(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.batches.runs(args.schedule_id, limit=args.limit, cursor=cursor),
        ("due", "state", "batch_id", "reason"),
    )


def _change(context: Context, args: argparse.Namespace) -> None:
    batch = {**given(args, "biz_id", "name", "total"), **_options(args)}
    if args.rate is not None:
        batch["rate"] = _whole(args.rate)
    if not batch and not args.schedule:
        raise UsageError("nothing to change: give WHEN, or options of the batch such as --rate")
    context.output.record(
        context.client.batches.update_schedule(
            args.schedule_id, schedule=args.schedule, batch=batch or None, revision=args.revision
        )
    )


def _pause(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.update_schedule(args.schedule_id, paused=True))


def _resume(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.batches.update_schedule(args.schedule_id, paused=False))


def _unschedule(context: Context, args: argparse.Namespace) -> None:
    context.client.batches.delete_schedule(args.schedule_id)
    context.output.record({"deleted": args.schedule_id})
