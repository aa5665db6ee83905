"""The command fleet: list, show, set, delete, token."""

from __future__ import annotations

import argparse

from tidegate_client.cli.context import Context, Group, Subparsers, add_paging, given_of
from tidegate_client.errors import UsageError
from tidegate_client.models import EnrolmentOptions
from tidegate_client.resources.agents import Agents

_COLUMNS = ("agent_id", "state", "last_seen", "version", "zone", "groups", "labels", "free_bytes", "duplicate_at")


def register(subparsers: Subparsers) -> None:
    fleet = Group(subparsers, "fleet", "the hosts that run an agent", lambda client: client.agents, "agent_id")
    fleet.pages("list", Agents.list, _COLUMNS, "list hosts", group={}, state={"choices": ("online", "offline")})
    show = fleet.command("show", _show, "show a host and its open transfers")
    show.add_argument("agent_id")
    show.add_argument("--files", action="store_true", help="list its files of releases, and which were changed since")
    add_paging(show)
    change = fleet.command("set", _set, "replace the groups or the labels of a host")
    change.add_argument("agent_id")
    _add_groups(change)
    change.add_argument("--no-groups", action="store_true", help="remove it from all groups")
    change.add_argument("--no-labels", action="store_true", help="remove all labels")
    fleet.call("delete", Agents.delete, "remove a host, revoke all its keys and close its connections")
    token = fleet.command("token", _token, "create a token for `tidegate agent enrol` (admin)")
    _add_groups(token)
    token.add_argument("--uses", type=int, metavar="N", help="how many hosts may enrol with it (default 1)")
    token.add_argument("--expires-in", type=int, metavar="SECONDS", help="how long it is valid (default: an hour)")
    token.add_argument(
        "--replace",
        action="store_true",
        help="let hosts enrol under ids that exist; the hosts that had these ids are locked out",
    )


def _add_groups(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--group", action="append", metavar="NAME", help="repeatable")
    parser.add_argument("--label", action="append", type=label, metavar="NAME=VALUE", help="repeatable")


def label(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _show(context: Context, args: argparse.Namespace) -> None:
    if not args.files:
        context.output.record(context.client.agents.get(args.agent_id))
        return
    context.show_list(
        lambda cursor: context.client.agents.files(args.agent_id, limit=args.limit, cursor=cursor),
        ("path", "release", "revision", "sha256", "checked_at", "drift"),
    )


def _set(context: Context, args: argparse.Namespace) -> None:
    groups = [] if args.no_groups else args.group
    labels = {} if args.no_labels else dict(args.label) if args.label else None
    if groups is None and labels is None:
        raise UsageError("nothing to change: give --group, --label, --no-groups or --no-labels")
    context.output.record(context.client.agents.change(args.agent_id, groups=groups, labels=labels))


def _token(context: Context, args: argparse.Namespace) -> None:
    options = given_of(args, EnrolmentOptions) | {"groups": args.group, "labels": dict(args.label or ())}
    made = context.client.agents.create_enrolment(**options)
    context.output.record(made)
    context.output.note(
        f"on the host: tidegate agent enrol --url {context.client.http.api_url} --token {made['token']} --agent-id ID"
    )
