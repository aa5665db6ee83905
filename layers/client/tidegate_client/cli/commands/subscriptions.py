"""subscription create · show · list · download · tasks · delete, credential put · list · delete"""

from __future__ import annotations

import argparse
import sys
from typing import cast

from tidegate_client.cli.arguments import add_politeness, politeness
from tidegate_client.cli.context import Command, Context, Group, Subparsers, add_paging, given
from tidegate_client.errors import UsageError
from tidegate_client.models import SubscriptionChanges


def register(subparsers: Subparsers) -> None:
    subscription = Group(subparsers, "subscription", "remote sources of files")
    create = subscription.command("create", _create, "watch a source")
    create.add_argument("name")
    create.add_argument("source_url")
    create.add_argument("--schedule", help="an EventBridge expression, as in 'rate(1 hour)'")
    create.add_argument("--biz-id", type=int, help="its files are known under this")
    create.add_argument("--app-id", type=int)
    create.add_argument("--credentials", metavar="NAME", help="stored headers that the source asks for")
    _add_selection(create)
    _add_concurrency(create)
    add_politeness(create)
    preview = subscription.command("preview", _preview, "what a source would bring; brings nothing")
    preview.add_argument("source_url")
    _add_selection(preview)
    update = subscription.command("update", _update, "change a subscription")
    update.add_argument("subscription_id")
    for option in ("--name", "--source-url", "--schedule", "--credentials"):
        update.add_argument(option, help="'none' takes it away" if option in ("--schedule", "--credentials") else None)
    _add_selection(update)
    _add_concurrency(update)
    add_politeness(update)
    for name, text in (("pause", "let its schedule rest"), ("resume", "follow its schedule again")):
        subscription.command(name, _switch(name), text).add_argument("subscription_id")
    subscription.command("show", _show, "one subscription").add_argument("subscription_id")
    add_paging(subscription.command("list", _list, "list subscriptions"))
    subscription.command("download", _download, "scan it now").add_argument("subscription_id")
    tasks = subscription.command("tasks", _tasks, "its requests, newest first")
    tasks.add_argument("subscription_id")
    add_paging(tasks)
    subscription.command("delete", _delete, "forget it and cancel what it has queued").add_argument("subscription_id")

    credential = Group(subparsers, "credential", "headers that sources ask for, kept secret under a name")
    put = credential.command("put", _put_credential, "keep headers, read from stdin as lines of 'Name: value'")
    put.add_argument("name")
    put.add_argument(
        "--origin", required=True, action="append", metavar="https://HOST", help="they go there only; may be repeated"
    )
    credential.command("list", _list_credentials, "their names and where they are sent; never a value")
    credential.command("delete", _delete_credential, "forget them").add_argument("name")


_SELECTION = ("format", "include", "exclude", "file_path")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--format", choices=("auto", "json", "html", "rss", "atom", "s3", "sums", "sitemap"))
    parser.add_argument("--include", action="append", metavar="GLOB", help="only these; may be repeated")
    parser.add_argument("--exclude", action="append", metavar="GLOB", help="not these; may be repeated")
    parser.add_argument("--file-path", metavar="TEMPLATE", help="where files go, as in '/pod/{year}/{name}'")


def _add_concurrency(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    parser.add_argument(
        "--concurrency", type=int, metavar="N", help="how many of its downloads run at once (default 1)"
    )


def _preview(context: Context, args: argparse.Namespace) -> None:
    found = context.client.subscriptions.preview(args.source_url, **given(args, *_SELECTION))
    context.output.note(f"{found.format}: {found.chosen} of {found.listed} files")
    context.output.table(found["items"], ("file_path", "size", "signature", "url"))


def _update(context: Context, args: argparse.Namespace) -> None:
    named = given(args, "name", "source_url", "schedule", "credentials", *_SELECTION, "priority", "concurrency")
    changes = {name: None if value == "none" else value for name, value in named.items()} | politeness(args)
    if not changes:
        raise UsageError("nothing to change: name at least one option")
    context.output.record(context.client.subscriptions.update(args.subscription_id, cast(SubscriptionChanges, changes)))


def _switch(name: str) -> Command:
    def run(context: Context, args: argparse.Namespace) -> None:
        context.output.record(getattr(context.client.subscriptions, name)(args.subscription_id))

    return run


def _create(context: Context, args: argparse.Namespace) -> None:
    optional = given(args, "schedule", "biz_id", "app_id", "credentials", *_SELECTION, "priority", "concurrency")
    asked = {**optional, **politeness(args)}
    context.output.record(context.client.subscriptions.create(args.name, args.source_url, **asked))


def _show(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.subscriptions.get(args.subscription_id))


def _list(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.subscriptions.list(limit=args.limit, cursor=cursor),
        ("subscription_id", "name", "source_url", "schedule", "status", "last_scan"),
    )


def _download(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.subscriptions.download(args.subscription_id))


def _tasks(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.subscriptions.tasks(args.subscription_id, limit=args.limit, cursor=cursor),
        ("request_id", "type", "status", "attempts", "create_time", "finish_time"),
    )


def _delete(context: Context, args: argparse.Namespace) -> None:
    context.client.subscriptions.delete(args.subscription_id)
    context.output.record({"deleted": args.subscription_id})


def _put_credential(context: Context, args: argparse.Namespace) -> None:
    # From stdin, as arguments are seen by everyone on the machine.
    lines = [line.partition(":") for line in sys.stdin.read().splitlines() if line.strip()]
    if not lines or not all(colon for _, colon, _ in lines):
        raise UsageError("give the headers on stdin, a line each: 'Cookie: session=…'")
    headers = {name.strip(): value.strip() for name, _, value in lines}
    context.client.credentials.put(args.name, headers, args.origin)
    context.output.record({"stored": args.name})


def _list_credentials(context: Context, _args: argparse.Namespace) -> None:
    context.output.table(context.client.credentials.list()["items"], ("name", "origins", "headers", "updated_at"))


def _delete_credential(context: Context, args: argparse.Namespace) -> None:
    context.client.credentials.delete(args.name)
    context.output.record({"deleted": args.name})
