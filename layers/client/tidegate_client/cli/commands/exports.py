"""export submit, status, note, list, get, delete, placeholders; schedules, runs, change, pause, resume, unschedule"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import sys
from pathlib import Path
from typing import Any

from tidegate_client.cli.context import Context, Exit, Group, Subparsers, add_paging, add_timeout, add_timezone, given
from tidegate_client.cli.output import ByteBar
from tidegate_client.cli.views import follow
from tidegate_client.errors import UsageError


def register(subparsers: Subparsers) -> None:
    export = Group(subparsers, "export", "CSV, Excel, JSON lines and Parquet files from rows or a paged source")
    submit = export.command("submit", _submit, "submit an export")
    submit.add_argument("--name", help="name of the export, 2 to 60 characters")
    source = submit.add_mutually_exclusive_group()
    source.add_argument("--source-url", metavar="URL", help="the endpoint that serves the pages")
    source.add_argument("--data", metavar="FILE", help="a file with rows as JSON; '-' reads stdin")
    source.add_argument(
        "--source",
        type=_json,
        metavar="JSON",
        help='read directly: {"s3": …}, {"dynamodb": …} or {"athena": …}, or @FILE',
    )
    submit.add_argument("--type", choices=("csv", "excel", "jsonl", "parquet"))
    submit.add_argument(
        "--encoding",
        choices=("utf-8-sig", "utf-8", "gb18030"),
        help="encoding of a CSV (default here: utf-8-sig, which Excel recognises)",
    )
    submit.add_argument("--compression", choices=("none", "gzip"), help="compression of a CSV or of JSON lines")
    submit.add_argument("--parallel", type=int, metavar="N", help="pages of the source requested at a time")
    submit.add_argument("--source-timeout", type=int, metavar="S", help="seconds that a page of the source may take")
    submit.add_argument("--fill", metavar="FILE_ID", help="the .xlsx of the library to fill (with --type excel)")
    submit.add_argument(
        "--value", action="append", type=_value, metavar="NAME=VALUE", help="a value for the template (repeatable)"
    )
    submit.add_argument(
        "--password",
        action="store_true",
        help="encrypt the file; asks for the password, or takes it from TIDEGATE_FILE_PASSWORD",
    )
    submit.add_argument("--credential", metavar="NAME", help="the stored credential to send to the source")
    submit.add_argument(
        "--deliver", action="append", type=_bucket, metavar="s3://BUCKET/KEY", help="put a copy there (repeatable)"
    )
    submit.add_argument("--email", action="append", metavar="ADDRESS", help="send a link there (repeatable)")
    submit.add_argument(
        "--schedule", metavar="WHEN", help="run it on a schedule: 'rate(1 day)' or 'cron(0 6 ? * MON *)'"
    )
    add_timezone(submit)
    submit.add_argument("--file-name")
    submit.add_argument("--template", type=_json, metavar="JSON", help="the columns, as JSON or @FILE")
    submit.add_argument("--title")
    submit.add_argument("--summary")
    submit.add_argument("--sheet-name", metavar="NAME", help="name of the sheet (with --type excel)")
    submit.add_argument("--header", type=_json, metavar="JSON")
    submit.add_argument("--footer", type=_json, metavar="JSON")
    submit.add_argument("--step", type=int, help="rows per page, 100 to 5000 (default 1000)")
    submit.add_argument("--callback", metavar="URL", help="called when it ends")
    submit.add_argument("--note", metavar="TEXT", help="a remark for people, at most 500 characters")
    submit.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    submit.add_argument("--fields", type=_json, metavar="JSON", help="more fields of POST /v1/task, as JSON or @FILE")
    submit.add_argument("--multiple", action="store_true", help="several tables (POST /v1/task/multiple)")
    submit.add_argument("--watch", action="store_true", help="show its progress, then download the file")
    submit.add_argument(
        "-o", "--output", type=Path, help="where --watch puts the file (default: its own name, in this folder)"
    )
    add_timeout(submit)

    for name, run, text in (("status", _status, "show an export"), ("get", _get, "download a finished export")):
        parser = export.command(name, run, text)
        parser.add_argument("task_id")
        if run is _get:
            parser.add_argument("-o", "--output", type=Path, help="default: its own name, in this folder")

    note = export.command("note", _note, "change the note of an export")
    note.add_argument("task_id")
    note.add_argument("note", metavar="TEXT", help="at most 500 characters; '' removes it")

    delete = export.command("delete", _delete, "delete exports and their files")
    delete.add_argument("task_id", nargs="+")

    placeholders = export.command("placeholders", _placeholders, "show what a template asks for (submit --fill)")
    placeholders.add_argument("file_id")

    schedules = export.command("schedules", _schedules, "list recurring exports")
    add_paging(schedules)
    runs = export.command("runs", _runs, "list the runs of a recurring export, newest first")
    runs.add_argument("schedule_id")
    add_paging(runs)
    for name, run, text in (
        ("pause", _pause, "pause a recurring export"),
        ("resume", _resume, "run it on its schedule again"),
        ("unschedule", _unschedule, "delete a recurring export; the exports that it created stay"),
    ):
        export.command(name, run, text).add_argument("schedule_id")

    change = export.command("change", _change, "change when a recurring export runs, or what it exports")
    change.add_argument("schedule_id")
    change.add_argument("--schedule", metavar="WHEN", help="'rate(1 day)' or 'cron(0 6 ? * MON *)'")
    add_timezone(change)
    change.add_argument("--name", help="2 to 60 characters")
    change.add_argument("--file-name")
    change.add_argument("--template", type=_json, metavar="JSON", help="columns: JSON, or @FILE")
    change.add_argument(
        "--fields", type=_json, metavar="JSON", help="other fields of the export: JSON, or @FILE; null removes one"
    )
    change.add_argument("--revision", type=int, help="refuse if it was changed since this revision")

    listing = export.command("list", _list, "list exports, newest first")
    for option in ("--status", "--operator-id", "--merchant-id", "--name"):
        listing.add_argument(option)
    listing.add_argument("--merchant-type", type=int)
    add_paging(listing)


def _json(text: str) -> Any:
    try:
        return json.loads(Path(text[1:]).read_text(encoding="utf-8-sig") if text.startswith("@") else text)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{text[1:]} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}; write @FILE to read a file") from error


def _value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _bucket(text: str) -> dict[str, str]:
    bucket, _, key = text.removeprefix("s3://").partition("/")
    if not text.startswith("s3://") or not bucket or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not s3://BUCKET/KEY")
    return {"bucket": bucket, "key": key}


def _rows(source: str) -> Any:
    """The rows of a JSON file; as text if a float would lose digits. The API accepts both."""
    content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    try:
        # With or without a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--data {source} is not UTF-8 (at byte {error.start}): save it as UTF-8") from error
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


def _password() -> str:
    """Never an argument: those are in the history of the shell and in the list of processes."""
    if given := os.environ.get("TIDEGATE_FILE_PASSWORD"):
        return given
    if not sys.stdin.isatty():
        raise UsageError("--password asks at a terminal: set TIDEGATE_FILE_PASSWORD to give it without one")
    password = getpass.getpass("Password of the file: ")
    if getpass.getpass("Again: ") != password:
        raise UsageError("the two passwords are not equal")
    return password


def _submit(context: Context, args: argparse.Namespace) -> Exit | None:
    simple = (
        "name",
        "source_url",
        "type",
        "file_name",
        "template",
        "title",
        "sheet_name",
        "summary",
        "header",
        "footer",
    )
    more = (
        "step",
        "callback",
        "note",
        "priority",
        "encoding",
        "compression",
        "parallel",
        "source_timeout",
        "deliver",
        "email",
        "source",
    )
    fields = {**given(args, *simple, *more, "source_timeout"), **(args.fields or {})}
    if fields.get("type", "csv") == "csv" and "bom" not in fields:
        # Excel needs the byte order mark to recognise UTF-8. Programs do not, so the API's default has none.
        fields.setdefault("encoding", "utf-8-sig")
    if args.credential:
        fields["source_headers"] = {"credential": args.credential}
    if args.value and not args.fill:
        raise UsageError("--value is for a template: give --fill too")
    if args.fill:
        fields["fill"] = {"file_id": args.fill, "values": dict(args.value or ())}
    if args.password:
        fields["password"] = _password()
    if args.data:
        fields["source_data"] = _rows(args.data)
    if args.schedule:
        if args.watch:
            raise UsageError(
                "--watch and --schedule cannot be combined; `tidegate export runs` lists the runs of a schedule"
            )
        repeated = context.client.exports.repeat(fields, args.schedule, timezone=args.timezone, multiple=args.multiple)
        context.output.record(repeated)
        return None
    if args.timezone:
        raise UsageError("--timezone is that of a schedule: give --schedule too")
    if args.watch:
        _require_folder(args.output)
    made = context.client.exports.submit(fields, multiple=args.multiple)
    if not args.watch:
        context.output.record(made)
        return None
    return follow_export(context, made["task_id"], args.output)


def _require_folder(output: Path | None) -> None:
    """Checked before the export is submitted: otherwise a missing folder would be found only at the end."""
    if output and not output.parent.is_dir():
        raise UsageError(f"--output {output}: the folder {output.parent} does not exist; create it first")


def follow_export(context: Context, task_id: str, output: Path | None) -> Exit:
    """Shows the export until it ends, then downloads the file."""
    ended = follow(context, [task_id])
    if ended is Exit.OK:
        _fetch(context, task_id, output)
    return ended


def _status(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.exports.get(args.task_id))


def _note(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.exports.update(args.task_id, note=args.note or None))


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


def _placeholders(context: Context, args: argparse.Namespace) -> None:
    found = context.client.exports.placeholders(args.file_id)
    asked = {f"{{{name}}}": "a value" for name in found.values_ or ()}
    for each in found.lists or ():
        table = f"table {each.name or 1}, {each.sheet}, row {each.row}"
        asked |= {f"{{{each.name}.{column}}}": f"a column of {table}" for column in each.columns or ()}
    context.output.event(found, "\n".join(f"{name}  {what}" for name, what in asked.items()) or "no placeholders")


def _schedules(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.exports.schedules(limit=args.limit, cursor=cursor),
        ("schedule_id", "name", "type", "schedule", "timezone", "status", "next_run", "last_task_id", "last_error"),
    )


def _runs(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.exports.runs(args.schedule_id, limit=args.limit, cursor=cursor),
        ("due", "state", "task_id", "reason"),
    )


def _change(context: Context, args: argparse.Namespace) -> None:
    fields = {**given(args, "schedule", "timezone", "name", "file_name", "template", "revision"), **(args.fields or {})}
    if not set(fields) - {"revision"}:
        raise UsageError("nothing to change: give --schedule, --timezone, --name, --file-name, --template or --fields")
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
