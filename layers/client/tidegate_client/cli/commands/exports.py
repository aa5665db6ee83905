"""The command export, with its subcommands for exports and for recurring exports."""

from __future__ import annotations

import argparse
import contextlib
import getpass
import os
import sys
from pathlib import Path
from typing import Any

from tidegate_client.cli.context import Context, Exit, Group, Subparsers, add_timezone, add_watch, given, given_of
from tidegate_client.cli.output import ByteBar
from tidegate_client.cli.views import follow
from tidegate_client.errors import UsageError
from tidegate_client.http import read_written
from tidegate_client.models import ExportOptions
from tidegate_client.resources.exports import Exports


def register(subparsers: Subparsers) -> None:
    export = Group(
        subparsers,
        "export",
        "CSV, Excel, JSON lines and Parquet files from rows or a paged source",
        lambda client: client.exports,
        "task_id",
    )
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
        default=None,
        help="encrypt the file; asks for the password, or takes it from TIDEGATE_FILE_PASSWORD",
    )
    submit.add_argument("--credential", metavar="NAME", help="the stored credential to send to the source")
    submit.add_argument(
        "--deliver", action="append", type=_bucket, metavar="s3://BUCKET/KEY", help="copy the file there (repeatable)"
    )
    submit.add_argument(
        "--email", action="append", metavar="ADDRESS", help="send a link to the file to this address (repeatable)"
    )
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
    add_watch(submit, "show its progress, then download the file")
    submit.add_argument(
        "-o", "--output", type=Path, help="where --watch puts the file (default: its own name, in this folder)"
    )

    export.call("status", Exports.get, "show an export")
    get = export.command("get", _get, "download a finished export")
    get.add_argument("task_id")
    get.add_argument("-o", "--output", type=Path, help="default: its own name, in this folder")

    note = export.command("note", _note, "change the note of an export")
    note.add_argument("task_id")
    note.add_argument("note", metavar="TEXT", help="at most 500 characters; '' removes it")

    delete = export.command("delete", _delete, "delete exports and their files")
    delete.add_argument("task_id", nargs="+")

    placeholders = export.command(
        "placeholders", _placeholders, "show the values and columns that a template needs (submit --fill)"
    )
    placeholders.add_argument("file_id")

    columns = (
        "schedule_id",
        "name",
        "type",
        "schedule",
        "timezone",
        "status",
        "next_run",
        "last_task_id",
        "last_error",
    )
    export.pages("schedules", Exports.schedules, columns, "list recurring exports")
    text = "list the runs of a recurring export, newest first"
    export.pages("runs", Exports.runs, ("due", "state", "task_id", "reason"), text, "schedule_id")
    export.call("pause", Exports.pause_schedule, "pause a recurring export", "schedule_id")
    export.call("resume", Exports.resume_schedule, "run it on its schedule again", "schedule_id")
    text = "delete a recurring export; the exports that it created stay"
    export.call("unschedule", Exports.delete_schedule, text, "schedule_id")

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

    export.pages(
        "list",
        Exports.list,
        ("task_id", "name", "type", "status", "file_name", "size", "create_time", "finish_time"),
        "list exports, newest first",
        status={},
        operator_id={},
        merchant_id={},
        name={},
        merchant_type={"type": int},
    )


def _json(text: str) -> Any:
    try:
        return read_written(Path(text[1:]).read_text(encoding="utf-8-sig") if text.startswith("@") else text)
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
    """Reads rows from a JSON file; decimals keep their digits."""
    if source.startswith("@") and not Path(source).exists():
        # As the options that take JSON or @FILE.
        source = source[1:]
    content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    try:
        # With or without a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--data {source} is not UTF-8 (at byte {error.start}): save it as UTF-8") from error
    try:
        return read_written(text)
    except ValueError as error:
        raise UsageError(f"--data {source} is not JSON: {error}") from error


def _password() -> str:
    """Returns the password, from the environment or a prompt. An argument would stay in the shell's history."""
    if given := os.environ.get("TIDEGATE_FILE_PASSWORD"):
        return given
    if not sys.stdin.isatty():
        raise UsageError("--password asks at a terminal: set TIDEGATE_FILE_PASSWORD to give it without one")
    password = getpass.getpass("Password of the file: ")
    if getpass.getpass("Again: ") != password:
        raise UsageError("the two passwords are not equal")
    return password


def _submit(context: Context, args: argparse.Namespace) -> Exit | None:
    fields = {**given(args, "name"), **given_of(args, ExportOptions), **(args.fields or {})}
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
    """Raises UsageError if the folder is missing. Without this check, the error would come only after the export."""
    if output and not output.parent.is_dir():
        raise UsageError(f"--output {output}: the folder {output.parent} does not exist; create it first")


def follow_export(context: Context, task_id: str, output: Path | None) -> Exit:
    """Shows the export until it ends, then downloads the file."""
    ended = follow(context, [task_id])
    if ended is Exit.OK:
        _fetch(context, task_id, output)
    return ended


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


def _change(context: Context, args: argparse.Namespace) -> None:
    fields = {**given(args, "schedule", "timezone", "name", "file_name", "template", "revision"), **(args.fields or {})}
    if not set(fields) - {"revision"}:
        raise UsageError("nothing to change: give --schedule, --timezone, --name, --file-name, --template or --fields")
    context.output.record(context.client.exports.update_schedule(args.schedule_id, fields))
