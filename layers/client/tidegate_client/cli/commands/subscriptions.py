"""subscription create · show · list · download · tasks · delete, credential put · delete"""

from __future__ import annotations

import argparse
import sys

from tidegate_client.cli.context import Context, Group, Subparsers, add_paging, given
from tidegate_client.errors import UsageError


def register(subparsers: Subparsers) -> None:
    subscription = Group(subparsers, "subscription", "remote sources of files")
    create = subscription.command("create", _create, "watch a source")
    create.add_argument("name")
    create.add_argument("source_url")
    create.add_argument("--schedule", help="an EventBridge expression, as in 'rate(1 hour)'")
    create.add_argument("--biz-id", type=int, help="its files are known under this")
    create.add_argument("--app-id", type=int)
    create.add_argument("--credentials", metavar="NAME", help="stored headers that the source asks for")
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
    credential.command("delete", _delete_credential, "forget them").add_argument("name")


def _create(context: Context, args: argparse.Namespace) -> None:
    optional = given(args, "schedule", "biz_id", "app_id", "credentials")
    context.output.record(context.client.subscriptions.create(args.name, args.source_url, **optional))


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


def _delete_credential(context: Context, args: argparse.Namespace) -> None:
    context.client.credentials.delete(args.name)
    context.output.record({"deleted": args.name})
