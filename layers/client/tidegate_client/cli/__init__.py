"""The `tidegate` command."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

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
    operations,
    queue,
    subscriptions,
    watch,
    webhook,
)
from tidegate_client.cli.context import Context, common_options
from tidegate_client.cli.exits import MEANINGS, Exit, exit_for
from tidegate_client.cli.output import Output
from tidegate_client.errors import TidegateError

MODULES = (
    account,
    keys,
    files,
    downloads,
    exports,
    batches,
    queue,
    subscriptions,
    operations,
    watch,
    webhook,
    fleet,
    agent,
    doctor,
)
EPILOG = f"""The API's address and key come from `tidegate login`; TIDEGATE_API_URL and TIDEGATE_KEY override them.

{MEANINGS}"""


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidegate",
        description="Tidegate from the command line: files, downloads, exports, batches, the queue, the host agent.",
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
    """Runs one command and returns its exit code; only wrong usage and --help raise SystemExit, as argparse does."""
    for stream in (sys.stdout, sys.stderr):
        _make_lenient(stream)
    try:
        return _run(build_parser().parse_args(argv))
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Without this, the flush at exit would complain.
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
    # `export submit --fields` is another option: what is sent, not what is shown.
    fields = [name.strip() for name in picked.split(",") if name.strip()] if isinstance(picked, str) else []
    output = Output(as_json=getattr(args, "json", False), fields=fields)
    try:
        return int(args.run(Context(args, output), args) or Exit.OK)
    except TidegateError as error:
        if getattr(args, "debug", False):
            traceback.print_exception(error)
        output.error(error)
        return exit_for(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        output.error(error)
        return Exit.FAILED


def _make_lenient(stream: TextIO) -> None:
    """A character that the terminal's encoding lacks is escaped: it must not end the command."""
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Sends what is still buffered, and what is printed from now on, nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            try:
                stream.flush()
            except BrokenPipeError:
                os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _flush_output() -> None:
    """After --help: a reader that has gone is no error there either."""
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
