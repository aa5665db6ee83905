"""The commands file (put, get, list, show, extract, delete) and ingest."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

from tidegate_client.cli.context import (
    Context,
    Exit,
    Group,
    Subparsers,
    add_command,
    add_politeness,
    add_watch,
    given,
    politeness,
)
from tidegate_client.cli.output import ByteBar
from tidegate_client.cli.views import follow
from tidegate_client.errors import TransferError
from tidegate_client.resources.files import Files


def register(subparsers: Subparsers) -> None:
    file = Group(subparsers, "file", "files of the library", lambda client: client.files, "file_id")
    put = file.command("put", _put, "upload a local file; an interrupted upload of a large file is resumed")
    put.add_argument("source", type=Path)
    _add_name(put)

    get = file.command("get", _get, "download a file and verify it; an interrupted download is resumed")
    get.add_argument("file_id")
    get.add_argument("-o", "--output", type=Path, help="default: the file's own name, in this folder")

    file.call("show", Files.get, "show a file's record")

    extract = file.command("extract", _extract, "extract a zip or tar of the library into files of the library")
    extract.add_argument("file_id")
    extract.add_argument("--to", required=True, metavar="FOLDER", help="the path below which the files are put")
    extract.add_argument(
        "--include", action="append", default=[], metavar="GLOB", help="only these, as in *.deb (repeatable)"
    )
    extract.add_argument("--exclude", action="append", default=[], metavar="GLOB", help="not these (repeatable)")
    add_watch(extract)

    delete = file.command("delete", _delete, "delete a file; its content is deleted with the last file that has it")
    delete.add_argument("file_id")

    ingest = add_command(subparsers, "ingest", _ingest, "download a URL into the library")
    file.hide("ingest", ingest)
    ingest.add_argument("source_url")
    _add_name(ingest)
    ingest.add_argument(
        "--mirror", dest="mirrors", action="append", metavar="URL", help="another address of the same file (repeatable)"
    )
    ingest.add_argument("--signature", help="the SHA-256 that the file must have")
    ingest.add_argument("--credentials", metavar="NAME", help="the stored credentials to send to the source")
    ingest.add_argument("--channel")
    ingest.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    add_politeness(ingest)
    add_watch(ingest)

    file.pages(
        "list",
        Files.list,
        ("file_id", "biz_id", "app_id", "file_path", "file_name", "size", "state", "created_at"),
        "list files, newest first",
        biz_id={"type": int},
        app_id={"type": int},
        file_path={},
    )


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--biz-id", type=int, required=True)
    parser.add_argument("--app-id", type=int, required=True)
    parser.add_argument("--file-path", required=True, help="path of the file in the library")
    parser.add_argument("--file-name", help="default: the name of the source")


def _put(context: Context, args: argparse.Namespace) -> None:
    if not args.source.is_file():
        raise TransferError(
            f"{args.source} does not exist or is not a regular file; give the path of the file to upload"
        )
    with contextlib.closing(ByteBar(context.output, args.source.name)) as progress:
        record = context.client.files.put(
            args.source,
            biz_id=args.biz_id,
            app_id=args.app_id,
            file_path=args.file_path,
            file_name=args.file_name,
            on_progress=progress,
        )
    context.output.record(record)


def _get(context: Context, args: argparse.Namespace) -> None:
    record = context.client.files.get(args.file_id)
    destination: Path = args.output or Path(Path(record["file_name"]).name)
    if destination.is_dir():
        destination /= Path(record["file_name"]).name
    with contextlib.closing(ByteBar(context.output, destination.name)) as progress:
        context.client.files.fetch(args.file_id, destination, on_progress=progress)
    context.output.record({**record, "saved_to": str(destination)})


def _extract(context: Context, args: argparse.Namespace) -> Exit | None:
    made = context.client.files.extract(args.file_id, args.to, include=args.include, exclude=args.exclude)
    if args.watch:
        return follow(context, [made.request_id])
    context.output.record(made)
    return None


def _delete(context: Context, args: argparse.Namespace) -> None:
    context.client.files.delete(args.file_id)
    context.output.record({"file_id": args.file_id, "deleted": True})


def _ingest(context: Context, args: argparse.Namespace) -> Exit | None:
    optional = given(args, "file_name", "mirrors", "signature", "credentials", "channel", "priority")
    options = {**optional, **politeness(args), "source_url": args.source_url}
    made = context.client.files.create(biz_id=args.biz_id, app_id=args.app_id, file_path=args.file_path, **options)
    if args.watch and "request_id" in made:
        context.output.note(f"request {made['request_id']}: `tidegate request log` shows its steps")
        return follow(context, [made["request_id"]])
    context.output.record(made)
    return None
