"""`Context`, which every command gets, and helpers to declare commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tidegate_client import config
from tidegate_client.cli.exits import Exit
from tidegate_client.cli.output import Output
from tidegate_client.client import Client
from tidegate_client.models import Page
from tidegate_client.resources.paging import walk

Command = Callable[["Context", argparse.Namespace], Exit | None]
Subparsers = Any


@dataclass
class Context:
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

    def show_list(self, page: Callable[[str | None], Page[Any]], columns: Sequence[str]) -> None:
        """Prints one page, from --cursor on, or all pages with --all."""
        if self.args.all:
            self.output.table(list(walk(page)), columns)
            return
        answer = page(self.args.cursor)
        self.output.table(answer["items"], columns, answer.get("next_cursor"))


def common_options() -> argparse.ArgumentParser:
    """Options that may be given before or after the subcommand.

    They have no defaults: the one of the subcommand would overwrite a value given before it."""
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
    """A command with subcommands: `Group(subparsers, "file", "…").command("put", run, "…")` returns a parser.

    `old` is a former name, which still works and is not shown in the help.
    """

    def __init__(self, subparsers: Subparsers, name: str, help_text: str, *, old: str | None = None) -> None:
        parser = subparsers.add_parser(name, help=help_text, description=help_text, parents=[common_options()])
        self._inner = parser.add_subparsers(metavar="COMMAND", required=True, dest=f"{name}_command")
        if old:
            # `aliases` would be shown in the help.
            subparsers.choices[old] = parser

    def hide(self, name: str, parser: argparse.ArgumentParser) -> None:
        """Adds a former name of a command, which works and is not shown in the help."""
        self._inner.choices[name] = parser

    def group(self, name: str, help_text: str) -> Group:
        """Adds a subcommand that has subcommands of its own."""
        return Group(self._inner, name, help_text)

    def command(self, name: str, run: Command, help_text: str) -> argparse.ArgumentParser:
        return add_command(self._inner, name, run, help_text)


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


def given(args: argparse.Namespace, *names: str) -> Mapping[str, Any]:
    """The named options that were given, with their values."""
    return {name: value for name in names if (value := getattr(args, name)) is not None}
