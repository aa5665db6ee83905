"""subscription create · list · download · tasks · delete"""

from __future__ import annotations

import argparse

from tidegate_client.cli.context import Context, Group, Subparsers, add_paging


def register(subparsers: Subparsers) -> None:
    subscription = Group(subparsers, "subscription", "remote sources of files")
    create = subscription.command("create", _create, "watch a source")
    create.add_argument("name")
    create.add_argument("source_url")
    create.add_argument("--schedule", help="an EventBridge expression, as in 'rate(1 hour)'")
    add_paging(subscription.command("list", _list, "list subscriptions"))
    subscription.command("download", _download, "scan it now").add_argument("subscription_id")
    tasks = subscription.command("tasks", _tasks, "its requests, newest first")
    tasks.add_argument("subscription_id")
    add_paging(tasks)
    subscription.command("delete", _delete, "forget it and cancel what it has queued").add_argument("subscription_id")


def _create(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.subscriptions.create(args.name, args.source_url, schedule=args.schedule))


def _list(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.subscriptions.list(limit=args.limit, cursor=cursor),
        ("subscription_id", "name", "source_url", "schedule"),
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
