"""The command watch: shows records until they end."""

from __future__ import annotations

import argparse

from tidegate_client.cli.context import Context, Exit, Subparsers, add_command, add_timeout
from tidegate_client.cli.views import follow


def register(subparsers: Subparsers) -> None:
    watch = add_command(
        subparsers, "watch", _watch, "show Tasks, Jobs, exports, requests or batches until all have ended"
    )
    watch.add_argument("record", nargs="+", metavar="ID")
    watch.add_argument("--poll", action="store_true", help="do not use the WebSocket")
    add_timeout(watch)


def _watch(context: Context, args: argparse.Namespace) -> Exit:
    return follow(context, args.record, use_socket=not args.poll)
