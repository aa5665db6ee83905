"""The `tidegate` command: its subcommands and global options, and how a command is run."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn, TextIO

from tidegate_client.cli import completion
from tidegate_client.cli.commands import (
    account,
    agent,
    batches,
    doctor,
    downloads,
    exports,
    files,
    fleet,
    keys,
    moving_in,
    operations,
    queue,
    release,
    subscriptions,
    watch,
    webhook,
)
from tidegate_client.cli.context import MEANINGS, Context, Exit, common_options, exit_for
from tidegate_client.cli.output import Output
from tidegate_client.errors import TidegateError, without_queries

MODULES = (
    account,
    keys,
    files,
    downloads,
    exports,
    batches,
    queue,
    release,
    subscriptions,
    operations,
    watch,
    webhook,
    fleet,
    agent,
    moving_in,
    doctor,
)
EPILOG = f"""`tidegate login` stores the API's address and a key; TIDEGATE_API_URL and TIDEGATE_KEY override them.

{MEANINGS}"""


class _Parser(argparse.ArgumentParser):
    """An argument parser that lists the subcommands if none was given."""

    def error(self, message: str) -> NoReturn:
        """Prints the error and exits; if a subcommand is missing, prints the help with all subcommands first."""
        if message.endswith("required: COMMAND"):
            self.print_help(sys.stderr)
            self.exit(2)
        super().error(message)


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tidegate",
        description="Tidegate: files, distribution to hosts, exports, batches, the queue, and the agent on a host.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        parents=[common_options()],
    )
    parser.add_argument("--version", action="version", version=f"tidegate {_version()}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, dest="command")
    for module in (*MODULES, completion):
        module.register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code. Only wrong usage and --help raise SystemExit, as argparse does."""
    for stream in (sys.stdout, sys.stderr):
        _make_lenient(stream)
    try:
        return _run(build_parser().parse_args(argv))
    except BrokenPipeError:
        # The reader (`head`, a pager) has closed the pipe. Without this, Python would print an error at exit.
        _drop_output()
        return Exit.OK
    except SystemExit:
        _flush_output()
        raise
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return Exit.INTERRUPTED


def _run(args: argparse.Namespace) -> int:
    picked = getattr(args, "fields", None)
    # `export submit` has another --fields: fields to send, already parsed from JSON.
    fields = [name.strip() for name in picked.split(",") if name.strip()] if isinstance(picked, str) else []
    output = Output(as_json=getattr(args, "json", False), fields=fields)
    try:
        return int(args.run(Context(args, output), args) or Exit.OK)
    except TidegateError as error:
        if getattr(args, "debug", False):
            print(without_queries("".join(traceback.format_exception(error))), file=sys.stderr)
        output.error(error)
        return exit_for(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        output.error(error)
        return Exit.FAILED


def _make_lenient(stream: TextIO) -> None:
    """Changes a stream: characters that its encoding lacks are escaped, and are no error."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Discards the buffered output of a closed stream, and everything that is printed to this stream from now on."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _flush_output() -> None:
    """Flushes stdout after --help. As elsewhere, a closed pipe is no error."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()


def _version() -> str:
    for distribution in ("tidegate-client", "tidegate"):
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return "(not installed)"
