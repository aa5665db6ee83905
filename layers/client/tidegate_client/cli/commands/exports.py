"""export submit · status · list · get · delete · schedules · runs · change · pause · resume · unschedule"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path
from typing import Any

from tidegate_client.cli.context import Context, Group, Subparsers, add_paging, add_timeout, given
from tidegate_client.cli.exits import Exit
from tidegate_client.cli.progress import ByteBar
from tidegate_client.cli.views import follow
from tidegate_client.errors import UsageError


def register(subparsers: Subparsers) -> None:
    export = Group(subparsers, "export", "CSV, Excel, JSON lines and Parquet from paged data")
    submit = export.command("submit", _submit, "ask for an export")
    submit.add_argument("--name", help="2 to 60 characters")
    source = submit.add_mutually_exclusive_group()
    source.add_argument("--source-url", metavar="URL", help="where the pages are")
    source.add_argument("--data", metavar="FILE", help="JSON rows; '-' is stdin")
    source.add_argument(
        "--source",
        type=_json,
        metavar="JSON",
        help='{"s3": …}, {"dynamodb": …} or {"athena": …}, or @FILE',
    )
    submit.add_argument("--type", choices=("csv", "excel", "jsonl", "parquet"))
    submit.add_argument(
        "--encoding",
        choices=("utf-8-sig", "utf-8", "gb18030"),
        help="of a CSV; utf-8-sig, the default here, is what Excel opens rightly",
    )
    submit.add_argument("--compression", choices=("none", "gzip"), help="of a CSV or of JSON lines")
    submit.add_argument("--parallel", type=int, metavar="N", help="pages of the source in flight at a time")
    submit.add_argument("--credential", metavar="NAME", help="the stored credential that opens the source")
    submit.add_argument(
        "--deliver", action="append", type=_bucket, metavar="s3://BUCKET/KEY", help="put a copy there; may be repeated"
    )
    submit.add_argument("--email", action="append", metavar="ADDRESS", help="send a link there; may be repeated")
    submit.add_argument(
        "--schedule", metavar="WHEN", help="again and again: 'rate(1 day)' or 'cron(0 6 ? * MON *)', in UTC"
    )
    submit.add_argument("--file-name")
    submit.add_argument("--template", type=_json, metavar="JSON", help="columns: JSON, or @FILE")
    submit.add_argument("--title")
    submit.add_argument("--summary")
    submit.add_argument("--header", type=_json, metavar="JSON")
    submit.add_argument("--footer", type=_json, metavar="JSON")
    submit.add_argument("--step", type=int, help="rows a page, 100 to 5000")
    submit.add_argument("--callback", metavar="URL")
    submit.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    submit.add_argument("--fields", type=_json, metavar="JSON", help="other fields of POST /v1/task: JSON, or @FILE")
    submit.add_argument("--multiple", action="store_true", help="several tables (POST /v1/task/multiple)")
    submit.add_argument("--watch", action="store_true", help="show a bar, then download the result")
    submit.add_argument("-o", "--output", type=Path, help="where --watch puts the file (default: its own name, here)")
    add_timeout(submit)

    for name, run, text in (("status", _status, "one export"), ("get", _get, "download a finished export")):
        parser = export.command(name, run, text)
        parser.add_argument("task_id")
        if run is _get:
            parser.add_argument("-o", "--output", type=Path, help="default: its own name, here")

    delete = export.command("delete", _delete, "delete exports and their files")
    delete.add_argument("task_id", nargs="+")

    schedules = export.command("schedules", _schedules, "list recurring exports")
    add_paging(schedules)
    runs = export.command("runs", _runs, "what a recurring export has ordered, newest first")
    runs.add_argument("schedule_id")
    add_paging(runs)
    for name, run, text in (
        ("pause", _pause, "stop repeating an export"),
        ("resume", _resume, "repeat it again"),
        ("unschedule", _unschedule, "forget a recurring export; what it ordered stays"),
    ):
        export.command(name, run, text).add_argument("schedule_id")

    change = export.command("change", _change, "change when a recurring export runs, or what it orders")
    change.add_argument("schedule_id")
    change.add_argument("--schedule", metavar="WHEN", help="'rate(1 day)' or 'cron(0 6 ? * MON *)', in UTC")
    change.add_argument("--name", help="2 to 60 characters")
    change.add_argument("--file-name")
    change.add_argument("--template", type=_json, metavar="JSON", help="columns: JSON, or @FILE")
    change.add_argument(
        "--fields", type=_json, metavar="JSON", help="other fields of the order: JSON, or @FILE; null takes one away"
    )
    change.add_argument("--revision", type=int, help="refuse if someone else has changed it since this one")

    listing = export.command("list", _list, "list exports, newest first")
    for option in ("--status", "--operator-id", "--merchant-id", "--name"):
        listing.add_argument(option)
    listing.add_argument("--merchant-type", type=int)
    add_paging(listing)


def _json(text: str) -> Any:
    try:
        return json.loads(Path(text[1:]).read_text(encoding="utf-8") if text.startswith("@") else text)
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from error


def _bucket(text: str) -> dict[str, str]:
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not text.startswith("s3://") or not bucket or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not s3://BUCKET/KEY")
    return {"bucket": bucket, "key": key}


def _rows(source: str) -> Any:
    """The rows; as text where a float would not keep their digits, which the service reads as well."""
    text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    lossy = False

    def number(digits: str) -> float:
        nonlocal lossy
        value = float(digits)
        lossy = lossy or repr(value) != digits
        return value

    try:
        rows = json.loads(text, parse_float=number)
    except ValueError as error:
        raise UsageError(f"--data {source} is not JSON: {error}") from error
    return text if lossy else rows


def _submit(context: Context, args: argparse.Namespace) -> Exit | None:
    simple = ("name", "source_url", "type", "file_name", "template", "title", "summary", "header", "footer")
    more = ("step", "callback", "priority", "encoding", "compression", "parallel", "deliver", "email", "source")
    fields = {**given(args, *simple, *more), **(args.fields or {})}
    if fields.get("type", "csv") == "csv" and "bom" not in fields:
        # Without the mark Excel takes UTF-8 for something else; programs that read the API's CSV need none.
        fields.setdefault("encoding", "utf-8-sig")
    if args.credential:
        fields["source_headers"] = {"credential": args.credential}
    if args.data:
        fields["source_data"] = _rows(args.data)
    if args.schedule:
        if args.watch:
            raise UsageError("--watch is for one export, --schedule for many: see `tidegate export runs`")
        context.output.record(context.client.exports.repeat(fields, args.schedule, multiple=args.multiple))
        return None
    made = context.client.exports.submit(fields, multiple=args.multiple)
    if not args.watch:
        context.output.record(made)
        return None
    return follow_export(context, made["task_id"], args.output)


def follow_export(context: Context, task_id: str, output: Path | None) -> Exit:
    """Watch it to its end, then bring the file here."""
    ended = follow(context, [task_id])
    if ended is Exit.OK:
        _fetch(context, task_id, output)
    return ended


def _status(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.exports.get(args.task_id))


def _get(context: Context, args: argparse.Namespace) -> None:
    _fetch(context, args.task_id, args.output)


def _fetch(context: Context, task_id: str, output: Path | None) -> None:
    record = context.client.exports.get(task_id)
    name = Path(record.get("file_name") or task_id).name
    destination = output / name if output and output.is_dir() else output or Path(name)
    with contextlib.closing(ByteBar(context.output, destination.name)) as progress:
        context.client.exports.fetch(task_id, destination, on_progress=progress)
    saved = {**record, "saved_to": str(destination)}
    context.output.event(saved, f"saved to {destination}")


def _delete(context: Context, args: argparse.Namespace) -> None:
    context.output.record({"deleted": context.client.exports.delete(args.task_id)})


def _schedules(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.exports.schedules(limit=args.limit, cursor=cursor),
        ("schedule_id", "name", "type", "schedule", "status", "next_run", "last_task_id"),
    )


def _runs(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.exports.runs(args.schedule_id, limit=args.limit, cursor=cursor),
        ("due", "state", "task_id", "reason"),
    )


def _change(context: Context, args: argparse.Namespace) -> None:
    fields = {**given(args, "schedule", "name", "file_name", "template", "revision"), **(args.fields or {})}
    if not set(fields) - {"revision"}:
        raise UsageError("name what is to be changed, such as --schedule 'rate(1 day)'")
    context.output.record(context.client.exports.update_schedule(args.schedule_id, fields))


def _pause(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.exports.pause_schedule(args.schedule_id))


def _resume(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.exports.resume_schedule(args.schedule_id))


def _unschedule(context: Context, args: argparse.Namespace) -> None:
    context.client.exports.delete_schedule(args.schedule_id)
    context.output.record({"deleted": args.schedule_id})


def _list(context: Context, args: argparse.Namespace) -> None:
    filters = given(args, "status", "operator_id", "merchant_type", "merchant_id", "name")
    context.show_list(
        lambda cursor: context.client.exports.list(**filters, limit=args.limit, cursor=cursor),
        ("task_id", "name", "type", "status", "file_name", "size", "create_time", "finish_time"),
    )
