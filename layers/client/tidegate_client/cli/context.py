"""The exit codes, the `Context` of a command, and helpers that declare commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any, Optional

from tidegate_client import config, errors
from tidegate_client.cli.output import Output
from tidegate_client.client import Client
from tidegate_client.model import Page
from tidegate_client.resources.paging import walk
from tidegate_client.webhooks import NotVerified


class Exit(IntEnum):
    """The exit codes of the command, by kind of error."""

    OK = 0
    FAILED = 1
    USAGE = 2
    AUTH = 3
    NOT_FOUND = 4
    CONFLICT = 5
    UNREACHABLE = 6
    SERVER = 7
    TIMEOUT = 8
    INTERRUPTED = 130


MEANINGS = """exit codes:
  0  success
  1  the work failed (a download, an export, a batch, a transfer of bytes)
  2  wrong usage, or the API refused the input
  3  no key, an unknown key, a wrong API address, or a scope that the key lacks
  4  not found, or past its retention
  5  not possible in the record's current state
  6  the API cannot be reached
  7  the API failed, or is too busy
  8  gave up waiting (--timeout)
  130  interrupted (Ctrl-C)"""

_BY_ERROR: tuple[tuple[type[Exception], Exit], ...] = (
    (errors.ConfigError, Exit.AUTH),
    (errors.UsageError, Exit.USAGE),
    (errors.Unauthorized, Exit.AUTH),
    (errors.Forbidden, Exit.AUTH),
    (errors.NotFound, Exit.NOT_FOUND),
    (errors.Gone, Exit.NOT_FOUND),
    (errors.Conflict, Exit.CONFLICT),
    (errors.Invalid, Exit.USAGE),
    (errors.RateLimited, Exit.SERVER),
    (errors.ServerError, Exit.SERVER),
    (errors.ApiError, Exit.SERVER),
    (errors.Unreachable, Exit.UNREACHABLE),
    (errors.WaitTimeout, Exit.TIMEOUT),
    (NotVerified, Exit.FAILED),
)


def exit_for(error: Exception) -> Exit:
    """Returns the exit code for an error; 1 for an error without a code of its own."""
    return next((code for kind, code in _BY_ERROR if isinstance(error, kind)), Exit.FAILED)


# --- context
# `Context`, which every command gets, and helpers to declare commands and options.

Command = Callable[["Context", argparse.Namespace], Optional[Exit]]
Subparsers = Any


@dataclass
class Context:
    """What a command gets: its arguments, the output, and the API client for the chosen login."""

    args: argparse.Namespace
    output: Output

    @cached_property
    def config(self) -> config.Config:
        loaded = config.load(profile=getattr(self.args, "profile", None))
        project_id = getattr(self.args, "project", None)
        return replace(loaded, project_id=project_id) if project_id else loaded

    @cached_property
    def client(self) -> Client:
        return self.client_with()

    def client_with(self, **options: Any) -> Client:
        client = Client(self.config.required_url(), self.config.key, project_id=self.config.project_id, **options)
        if getattr(self.args, "debug", False):
            client.http.on_call = self._print_call
        return client

    def _print_call(self, method: str, path: str, status: int, seconds: float, request_id: str) -> None:
        print(f"{method} {path} → {status} in {seconds * 1000:.0f} ms ({request_id})", file=self.output.err)

    def suggest(self, command: str) -> None:
        """Prints the command that usually comes next, with the same --profile."""
        profile = getattr(self.args, "profile", None)
        self.output.note(f"next: tidegate {f'--profile {profile} ' if profile else ''}{command}")

    def show_list(self, page: Callable[[str | None], Page[Any]], columns: Sequence[str]) -> None:
        """Prints one page, from --cursor on, or all pages with --all."""
        if self.args.all:
            self.output.table(list(walk(page)), columns)
            return
        answer = page(self.args.cursor)
        self.output.table(answer["items"], columns, answer.get("next_cursor"))


def common_options() -> argparse.ArgumentParser:
    """Returns a parser with the options that may be given before or after the subcommand.

    The options have no defaults. A default of the subcommand would overwrite a value that was given before it."""
    parent = argparse.ArgumentParser(add_help=False, argument_default=argparse.SUPPRESS)
    parent.add_argument("--json", action="store_true", help="print JSON on stdout, and nothing else there")
    parent.add_argument("--fields", metavar="A,B", help="print only these fields, as in status,progress.bytes")
    parent.add_argument("--debug", action="store_true", help="print each API call and tracebacks on stderr")
    parent.add_argument(
        "--profile", metavar="NAME", help="the stored login to use (default: TIDEGATE_PROFILE, else default)"
    )
    parent.add_argument("--project", metavar="ID", help="act in this project (admin keys)")
    return parent


class Group:
    """A command with subcommands.

    `Group(subparsers, "file", "…").command("put", run, "…")` adds `tidegate file put` and returns its parser.
    `resource` returns the part of the client whose methods `call` and `pages` use. `key` is the name of the id of that
    part's records. `old` is a former name of the command. It still works, but the help does not show it."""

    def __init__(
        self,
        subparsers: Subparsers,
        name: str,
        help_text: str,
        resource: Callable[[Client], Any] = lambda client: client,
        key: str = "",
        *,
        old: str | None = None,
    ) -> None:
        self._resource, self._key = resource, key
        parser = subparsers.add_parser(name, help=help_text, description=help_text, parents=[common_options()])
        self._inner = parser.add_subparsers(metavar="COMMAND", required=True, dest=f"{name}_command")
        if old:
            # `aliases` would be shown in the help.
            subparsers.choices[old] = parser

    def hide(self, name: str, parser: argparse.ArgumentParser) -> None:
        """Adds a former name of a command. The name still works, but the help does not show it."""
        self._inner.choices[name] = parser

    def group(self, name: str, help_text: str, key: str) -> Group:
        """Adds a subcommand that has subcommands of its own, on the same resource."""
        return Group(self._inner, name, help_text, self._resource, key)

    def command(self, name: str, run: Command, help_text: str) -> argparse.ArgumentParser:
        return add_command(self._inner, name, run, help_text)

    def call(
        self,
        name: str,
        method: Callable[..., Any],
        help_text: str,
        key: str | None = None,
        /,
        **options: Mapping[str, Any],
    ) -> None:
        """Adds a subcommand that calls a method with an id and prints the result.

        If the method returns None, the subcommand prints that the record is deleted. `key`: the name of the id; None:
        the group's; "": the method takes no id. `options`: arguments of the method that are passed on if the user gives
        them."""
        key = self._key if key is None else key

        def run(context: Context, args: argparse.Namespace) -> None:
            ids = [getattr(args, key)] if key else []
            answer = method(self._resource(context.client), *ids, **given(args, *options))
            context.output.record({"deleted": ids[0]} if answer is None else answer)

        parser = self.command(name, run, help_text)
        if key:
            parser.add_argument(key)
        _add_options(parser, options)

    def pages(
        self,
        name: str,
        method: Callable[..., Page[Any]],
        columns: Sequence[str],
        help_text: str,
        key: str = "",
        /,
        **options: Mapping[str, Any],
    ) -> None:
        """Adds a subcommand that prints the list that a method returns.

        `key`: the name of the id that the method needs; "" if it needs none."""

        def run(context: Context, args: argparse.Namespace) -> None:
            ids = [getattr(args, key)] if key else []
            wanted = {"limit": args.limit, **given(args, *options)}
            context.show_list(lambda at: method(self._resource(context.client), *ids, **wanted, cursor=at), columns)

        parser = self.command(name, run, help_text)
        if key:
            parser.add_argument(key)
        _add_options(parser, options)
        add_paging(parser)


def _add_options(parser: argparse.ArgumentParser, options: Mapping[str, Mapping[str, Any]]) -> None:
    for name, how in options.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **how)


def add_command(subparsers: Subparsers, name: str, run: Command, help_text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name, help=help_text, description=help_text, parents=[common_options()], conflict_handler="resolve"
    )
    parser.set_defaults(run=run)
    return parser


def add_paging(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--limit", type=int, metavar="N", help="rows per page (default 20, at most 100)")
    parser.add_argument(
        "--cursor", metavar="C", help="continue after the previous page, with the cursor that it printed"
    )
    parser.add_argument("--all", action="store_true", help="print all pages")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timeout", type=float, metavar="S", help="give up waiting after S seconds (exit code 8)")


def add_watch(parser: argparse.ArgumentParser, help_text: str = "show its progress until it ends") -> None:
    parser.add_argument("--watch", action="store_true", help=help_text)
    add_timeout(parser)


def given(args: argparse.Namespace, *names: str) -> Mapping[str, Any]:
    """Returns the values of the named options that were given."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}


def given_of(args: argparse.Namespace, shape: type) -> dict[str, Any]:
    """Returns the given options that are fields of a request body. `shape` is the TypedDict of the body in `models`."""
    return {name: value for name in shape.__annotations__ if (value := getattr(args, name, None)) is not None}


def rate(text: str) -> int:
    """Parses bytes a second, as in 500K or 10M, for argparse."""
    from tidegate_client.rates import parse_rate

    try:
        return parse_rate(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def add_timezone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timezone", metavar="ZONE", help="of the schedule, as in Asia/Shanghai (default UTC)")


def add_politeness(parser: argparse.ArgumentParser) -> None:
    """Adds the options that limit how fast a source is read."""
    parser.add_argument("--connections", type=int, metavar="N", help="connections to the source for one file")
    parser.add_argument("--bytes-per-s", type=int, metavar="N", help="bytes a second for one file")
    parser.add_argument("--delay-s", type=float, metavar="SECONDS", help="pause between two requests to the source")
    parser.add_argument(
        "--host-downloads", type=int, metavar="N", help="downloads of the project from this host at a time"
    )


def politeness(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the field `politeness` for the given options; empty if there are none."""
    asked = given(args, "connections", "bytes_per_s", "delay_s", "host_downloads")
    return {"politeness": asked} if asked else {}
