"""The commands compensation, callback, audit, stats, archive, cleanup, system and ops."""

from __future__ import annotations

import argparse
from datetime import date, datetime, timezone

from tidegate_client.cli.context import Context, Group, Subparsers, add_command, add_paging
from tidegate_client.resources.operations import Callbacks, Compensation, Operations


def register(subparsers: Subparsers) -> None:
    compensation = Group(
        subparsers, "compensation", "the poll that starts overdue work", lambda client: client.compensation
    )
    compensation.call(
        "show", Compensation.get, "show its interval, its last and next poll, and how much it has started"
    )
    compensation.call("trigger", Compensation.trigger, "poll now (admin)")

    callback = Group(subparsers, "callback", "deliveries of callbacks", lambda client: client.callbacks, "delivery_id")
    deliveries = callback.command("list", _callbacks, "list deliveries and their state")
    deliveries.add_argument("--task", metavar="ID")
    add_paging(deliveries)
    callback.call("redeliver", Callbacks.redeliver, "send a callback again")

    audit = add_command(subparsers, "audit", _audit, "list every change: who, when, from, to, why")
    audit.add_argument("record", nargs="?", help="only changes of this record")
    audit.add_argument("--actor", metavar="KEY_ID", help="only changes made with this key")
    audit.add_argument("--action", help="as in key.create or download.submit")
    audit.add_argument("--since", metavar="TIME", help="ISO 8601")
    audit.add_argument("--until", metavar="TIME", help="ISO 8601")
    add_paging(audit)

    stats = add_command(subparsers, "stats", _stats, "show counts, times, CPU, memory and bytes for each type")
    stats.add_argument("--since", metavar="TIME", help="ISO 8601")

    archive = add_command(
        subparsers, "archive", _archive, "list requests past their retention, by the day they were archived"
    )
    archive.add_argument("day", nargs="?", type=_day, metavar="DAY", help="as in 2026-11-16; default: today, in UTC")
    archive.add_argument("--type", help="download, export, batch, …")
    archive.add_argument("--status", choices=("completed", "failed", "cancelled"))
    archive.add_argument("--request", metavar="ID")
    add_paging(archive)
    add_command(subparsers, "system", _system, "show version, parameters and alarms of the deployment (admin)")
    ops = Group(subparsers, "ops", "freeze and thaw the deployment (admin)", lambda client: client.operations)
    ops.call("freeze", Operations.freeze, "start nothing new, until it is thawed", "reason")
    ops.call("thaw", Operations.thaw, "end the freeze and start everything that is due")
    ops.command("reconcile", _reconcile, "after the table was restored: stop executions that it does not know")
    cleanup = add_command(subparsers, "cleanup", _cleanup, "remove what is past its retention (admin)")
    cleanup.add_argument("--confirm", metavar="RUN_ID", help="let the next daily run delete what this run stopped at")


def _day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a date: give a day as in 2026-11-16") from error


def _system(context: Context, _args: argparse.Namespace) -> None:
    context.output.record(context.client.operations.system())


def _reconcile(context: Context, _args: argparse.Namespace) -> None:
    stopped, more = 0, True
    while more:
        answer = context.client.operations.reconcile()
        stopped, more = stopped + answer["stopped"], answer["more"]
    context.output.record({"stopped": stopped})


def _callbacks(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.callbacks.list(task_id=args.task, limit=args.limit, cursor=cursor),
        ("delivery_id", "type", "task_id", "callback_state", "tries", "next_attempt_at", "url"),
    )


def _audit(context: Context, args: argparse.Namespace) -> None:
    wanted = {"actor": args.actor, "action": args.action, "since": args.since, "until": args.until}
    context.show_list(
        lambda cursor: context.client.operations.audit(args.record, **wanted, limit=args.limit, cursor=cursor),
        ("at", "record", "actor", "action", "from", "to", "why", "attempt"),
    )


def _stats(context: Context, args: argparse.Namespace) -> None:
    stats = context.client.operations.stats(args.since)
    if context.output.as_json:
        context.output.record(stats)
        return
    rows = [{"type": name, **figures} for name, figures in stats.get("types", {}).items()]
    context.output.table(
        rows, ("type", "count", "success_rate", "mean_s", "p95_s", "mean_cpu_s", "peak_memory_mb", "bytes")
    )


def _archive(context: Context, args: argparse.Namespace) -> None:
    day = args.day or datetime.now(timezone.utc).date().isoformat()
    context.show_list(
        lambda cursor: context.client.operations.archive(
            day, type=args.type, status=args.status, request_id=args.request, limit=args.limit, cursor=cursor
        ),
        ("request_id", "type", "status", "channel", "attempts", "create_time", "finish_time"),
    )


def _cleanup(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.operations.cleanup(confirm=args.confirm))
