"""The commands subscription and credential."""

from __future__ import annotations

import argparse
import sys
from typing import cast

from tidegate_client.cli.context import Context, Group, Subparsers, add_politeness, add_timezone, given_of, politeness
from tidegate_client.errors import UsageError
from tidegate_client.models import PreviewOptions, SubscriptionChanges, SubscriptionOptions
from tidegate_client.resources.requests import Credentials, Subscriptions


def register(subparsers: Subparsers) -> None:
    subscription = Group(
        subparsers, "subscription", "remote sources of files", lambda client: client.subscriptions, "subscription_id"
    )
    create = subscription.command("create", _create, "subscribe to a source")
    create.add_argument("name")
    create.add_argument("source_url")
    create.add_argument("--schedule", help="when to scan it: 'rate(1 hour)' or 'cron(0 6 * * ? *)'")
    add_timezone(create)
    create.add_argument("--biz-id", type=int, help="biz_id of its files")
    create.add_argument("--app-id", type=int, help="app_id of its files")
    create.add_argument("--credentials", metavar="NAME", help="the stored credentials to send to the source")
    _add_selection(create)
    _add_concurrency(create)
    add_politeness(create)
    preview = subscription.command(
        "preview", _preview, "list the files that a source would bring, without ingesting them"
    )
    preview.add_argument("source_url")
    preview.add_argument("--subscription", metavar="ID", help="also show what its scan would do: new, changed, gone")
    _add_selection(preview)
    update = subscription.command("update", _update, "change a subscription")
    update.add_argument("subscription_id")
    for option in ("--name", "--source-url", "--schedule", "--credentials"):
        update.add_argument(option, help="'none' removes it" if option in ("--schedule", "--credentials") else None)
    add_timezone(update)
    update.add_argument("--revision", type=int, metavar="N", help="refuse if it was changed since this revision")
    _add_selection(update)
    _add_concurrency(update)
    add_politeness(update)
    subscription.call("pause", Subscriptions.pause, "stop following the schedule")
    subscription.call("resume", Subscriptions.resume, "follow the schedule again")
    subscription.call("show", Subscriptions.get, "show a subscription")
    columns = ("subscription_id", "name", "source_url", "schedule", "status", "last_scan", "next_run")
    subscription.pages("list", Subscriptions.list, columns, "list subscriptions")
    confirm = {
        "type": int,
        "metavar": "N",
        "help": "move N files that the source deleted to the trash, after a scan refused so many",
    }
    subscription.call("download", Subscriptions.download, "scan the source now", confirm_trash=confirm)
    of_tasks = ("request_id", "type", "status", "attempts", "create_time", "finish_time")
    subscription.pages("tasks", Subscriptions.tasks, of_tasks, "list its requests, newest first", "subscription_id")
    of_runs = ("due", "state", "request_id", "reason")
    text = "list the runs of its schedule, newest first"
    subscription.pages("runs", Subscriptions.runs, of_runs, text, "subscription_id")
    subscription.call("delete", Subscriptions.delete, "delete a subscription and cancel its queued requests")

    what = "headers for sources, stored under a name"
    credential = Group(subparsers, "credential", what, lambda client: client.credentials, "name")
    put = credential.command("put", _put_credential, "store headers, read from stdin as lines of 'Name: value'")
    put.add_argument("name")
    put.add_argument(
        "--origin",
        required=True,
        action="append",
        metavar="https://HOST",
        help="the only origin that the headers are sent to (repeatable)",
    )
    credential.command("list", _list_credentials, "list names and origins, never a value")
    credential.call("delete", Credentials.delete, "delete stored headers")


# For these "none" is a value like any other.
_NOT_REMOVABLE = frozenset({"name", "source_url"})


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap"))
    parser.add_argument("--include", action="append", metavar="GLOB", help="only these (repeatable)")
    parser.add_argument("--exclude", action="append", metavar="GLOB", help="not these (repeatable)")
    parser.add_argument(
        "--recursive",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also the folders below a directory index",
    )
    parser.add_argument("--file-path", metavar="TEMPLATE", help="path of each file, as in '/pod/{year}/{name}'")


def _add_concurrency(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on-delete", choices=("keep", "trash"), help="trash: delete files 7 days after the source did (default keep)"
    )
    parser.add_argument(
        "--compare", choices=("auto", "head"), help="head: ask the server about each file (default auto)"
    )
    parser.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    parser.add_argument("--concurrency", type=int, metavar="N", help="downloads of its files at a time (default 1)")


def _preview(context: Context, args: argparse.Namespace) -> None:
    options = given_of(args, PreviewOptions)
    found = context.client.subscriptions.preview(args.source_url, subscription_id=args.subscription, **options)
    context.output.note(f"{found.format}: {found.chosen} of {found.listed} files")
    if args.subscription:
        context.output.note(f"{found.new} new, {found.changed} changed, {found.gone} gone")
    plan = ("plan",) if args.subscription else ()
    context.output.table(found["items"], ("file_path", *plan, "size", "signature", "url"))


def _update(context: Context, args: argparse.Namespace) -> None:
    named = given_of(args, SubscriptionChanges)
    changes = {
        name: None if value == "none" and name not in _NOT_REMOVABLE else value for name, value in named.items()
    } | politeness(args)
    if not set(changes) - {"revision"}:
        raise UsageError(
            "nothing to change: give an option such as --schedule; `tidegate subscription update --help` lists them"
        )
    context.output.record(context.client.subscriptions.update(args.subscription_id, cast(SubscriptionChanges, changes)))


def _create(context: Context, args: argparse.Namespace) -> None:
    options = given_of(args, SubscriptionOptions) | politeness(args)
    context.output.record(context.client.subscriptions.create(args.name, args.source_url, **options))


def _put_credential(context: Context, args: argparse.Namespace) -> None:
    # From stdin, because every user of the machine can see arguments.
    lines = [line.partition(":") for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines:
        raise UsageError("stdin is empty: give the headers there, one line each, as in 'Cookie: session=…'")
    # Headers are secrets: name the line, not its content.
    if wrong := [number for number, (_, colon, _) in enumerate(lines, start=1) if not colon]:
        raise UsageError(f"header {wrong[0]} on stdin has no colon: give one line each, as in 'Cookie: session=…'")
    headers = {name.strip(): value.strip() for name, _, value in lines}
    context.client.credentials.put(args.name, headers, args.origin)
    context.output.record({"stored": args.name})


def _list_credentials(context: Context, _args: argparse.Namespace) -> None:
    context.output.table(context.client.credentials.list()["items"], ("name", "origins", "headers", "updated_at"))
