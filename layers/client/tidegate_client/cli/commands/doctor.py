"""The command doctor: a smoke test of a deployed stack."""

from __future__ import annotations

import argparse
import sys

from tidegate_client.cli.commands.account import warn_of_key
from tidegate_client.cli.context import Context, Exit, Subparsers, add_command
from tidegate_client.client import Client
from tidegate_client.errors import UsageError
from tidegate_client.smoke import examine


def register(subparsers: Subparsers) -> None:
    doctor = add_command(
        subparsers, "doctor", _doctor, "test a stack with an admin key: use each feature once, then clean up"
    )
    doctor.add_argument("--api-url", metavar="URL", help="default: the stored address")
    doctor.add_argument("--key", help="an admin key; default: the stored one; '-' reads it from stdin")
    doctor.add_argument("--timeout", type=float, default=180.0, metavar="S", help="time-out of each step (default 180)")


def _doctor(context: Context, args: argparse.Namespace) -> Exit:
    url = args.api_url or context.config.required_url()
    warn_of_key(args.key)
    key = sys.stdin.readline().strip() if args.key == "-" else args.key or context.config.key
    if not key:
        raise UsageError("no admin key: give --key, set TIDEGATE_KEY or run `tidegate login` with one")
    findings = list(examine(Client(url, key), lambda other: Client(url, other), seconds=args.timeout))
    rows = [
        {"check": one.check, "result": "ok" if one.ok else "FAILED", "seconds": one.seconds, "detail": one.detail}
        for one in findings
    ]
    context.output.table(rows, ("check", "result", "seconds", "detail"))
    return Exit.OK if all(one.ok for one in findings) else Exit.FAILED
