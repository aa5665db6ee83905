"""The commands queue (stats, list, pause, resume, capacity, host-pauses, clear-pause) and request."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tidegate_client.cli.context import Command, Context, Exit, Group, Subparsers, add_watch, given
from tidegate_client.cli.views import follow
from tidegate_client.resources.operations import Queue
from tidegate_client.resources.requests import Requests


def register(subparsers: Subparsers) -> None:
    queue = Group(subparsers, "queue", "the request queue and its channels", lambda client: client.queue)
    queue.command("stats", _stats, "show capacity, running, queued and oldest wait of each channel")
    columns = ("request_id", "type", "channel", "status", "priority", "attempts", "last_wait_reason", "create_time")
    queue.pages("list", Queue.list, columns, "list requests that wait or run", channel={}, status={})
    for name, text in (("pause", "start no more requests (admin)"), ("resume", "start requests again (admin)")):
        scoped = queue.command(name, _switch(name), text)
        scoped.add_argument("scope", nargs="?", default="all", help="a channel; default: all")
    capacity = queue.command("capacity", _capacity, "set how many requests of a channel run at a time (admin)")
    capacity.add_argument("channels", nargs="+", type=_capacity_of, metavar="CHANNEL=N")

    queue.command("host-pauses", _host_pauses, "list origins that asked for a pause")
    queue.command("clear-pause", _clear_pause, "end the pause of an origin").add_argument("origin")

    request = Group(subparsers, "request", "requests of the queue", lambda client: client.requests, "request_id")
    create = request.command("create", _create, "queue a request")
    create.add_argument("type", choices=("scan", "associate", "check", "download", "extract"))
    create.add_argument("--payload", type=_object, default={}, metavar="JSON")
    create.add_argument("--subscription", metavar="ID")
    create.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    create.add_argument("--channel")
    add_watch(create)
    request.call("show", Requests.get, "show a request")
    bulk = request.command("bulk", _bulk, "cancel, retry or prioritize all requests that match")
    bulk.add_argument("action", choices=("cancel", "retry", "retry-now", "prioritize"))
    bulk.add_argument("--priority", type=int, choices=range(1, 11), metavar="1-10")
    for option in ("--type", "--channel", "--status", "--subscription-id"):
        bulk.add_argument(option)
    of_log = ("at", "attempt", "event", "seconds", "code", "detail")
    request.pages("log", Requests.log, of_log, "show the execution log of a request", "request_id")
    request.call("cancel", Requests.cancel, "cancel a request; a running one is stopped")
    request.call("pause", Requests.pause, "pause a request: it does not run until it is resumed")
    request.call("resume", Requests.resume, "let a paused request run")
    request.call("retry", Requests.retry, "run a failed request again")
    request.call("retry-now", Requests.retry_now, "end the back-off of a request")
    prioritize = request.command("prioritize", _prioritize, "set the priority of a request; 1 runs first")
    prioritize.add_argument("request_id")
    prioritize.add_argument("priority", type=int, choices=range(1, 11), metavar="1-10")


def _capacity_of(text: str) -> tuple[str, int]:
    channel, _, count = text.partition("=")
    if not channel or not count.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not CHANNEL=N, as in export=4")
    return channel, int(count)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is JSON, but not an object, as in {{"file_id": "…"}}')
    return value


def _stats(context: Context, _args: argparse.Namespace) -> None:
    _show_channels(context, context.client.queue.stats())


def _show_channels(context: Context, stats: dict[str, Any]) -> None:
    if context.output.as_json:
        context.output.record(stats)
        return
    rows = [{"channel": name, **figures} for name, figures in stats.get("channels", {}).items()]
    context.output.table(rows, ("channel", "capacity", "running", "queued", "paused", "oldest_wait_s"))


def _switch(name: str) -> Command:
    def run(context: Context, args: argparse.Namespace) -> None:
        switch = context.client.queue.pause if name == "pause" else context.client.queue.resume
        _show_channels(context, switch(args.scope))

    return run


def _capacity(context: Context, args: argparse.Namespace) -> None:
    _show_channels(context, context.client.queue.capacity(dict(args.channels)))


def _host_pauses(context: Context, _args: argparse.Namespace) -> None:
    context.output.table(context.client.queue.host_pauses()["items"], ("origin", "until"))


def _clear_pause(context: Context, args: argparse.Namespace) -> None:
    context.client.queue.clear_host_pause(args.origin)


def _create(context: Context, args: argparse.Namespace) -> Exit | None:
    made = context.client.requests.create(
        args.type, args.payload, subscription_id=args.subscription, priority=args.priority, channel=args.channel
    )
    if args.watch:
        return follow(context, [made["request_id"]])
    context.output.record(made)
    return None


def _bulk(context: Context, args: argparse.Namespace) -> None:
    wanted = {name: str(value) for name, value in given(args, "type", "channel", "status", "subscription_id").items()}
    context.output.record(context.client.requests.bulk(args.action, priority=args.priority, **wanted))


def _prioritize(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.requests.prioritize(args.request_id, args.priority))
