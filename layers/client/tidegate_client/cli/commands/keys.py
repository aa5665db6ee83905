"""The command key: create, create-admin, list, rotate, delete."""

from __future__ import annotations

import argparse

from tidegate_client.cli.context import Context, Group, Subparsers, add_paging
from tidegate_client.models import Key
from tidegate_client.resources.keys import Keys

SCOPES = ("read", "write", "agent", "unmask")
_COLUMNS = ("key_id", "name", "scopes", "agent_id", "state", "last_used_at", "expires_at")


def register(subparsers: Subparsers) -> None:
    key = Group(subparsers, "key", "keys (admin)", lambda client: client.keys, "key_id")
    create = key.command("create", _create, "create a key of a project; it is shown only once")
    create.add_argument("project_id")
    create.add_argument(
        "--scope", action="append", choices=SCOPES, required=True, help="what the key may do (repeatable)"
    )
    create.add_argument("--agent-id", help="the host of a key of scope agent")
    _add_name_and_expiry(create)
    _add_name_and_expiry(key.command("create-admin", _create_admin, "create an admin key; it is shown only once"))
    listing = key.command("list", _list, "list the keys of a project, or the admin keys")
    listing.add_argument("project_id", nargs="?", help="the project (default: list the admin keys)")
    add_paging(listing)
    rotate = key.command("rotate", _rotate, "create a new key; the old one works for the overlap")
    rotate.add_argument("key_id", help="`tidegate key list` shows it; `admin` is the admin key of the deployment")
    rotate.add_argument("--overlap", type=int, metavar="SECONDS", help="how long the old key works (default: a day)")
    key.call("delete", Keys.delete, "revoke a key and close its WebSockets")


def _add_name_and_expiry(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="what the key is for; lists show it")
    parser.add_argument("--expires-in", type=int, metavar="SECONDS", help="default: it does not expire")


def _create(context: Context, args: argparse.Namespace) -> None:
    made = context.client.keys.create(
        args.project_id, args.scope, agent_id=args.agent_id, name=args.name, expires_in=args.expires_in
    )
    _show_once(context, made)


def _create_admin(context: Context, args: argparse.Namespace) -> None:
    _show_once(context, context.client.keys.create_admin(name=args.name, expires_in=args.expires_in))


def _rotate(context: Context, args: argparse.Namespace) -> None:
    _show_once(context, context.client.keys.rotate(args.key_id, overlap_s=args.overlap))


def _show_once(context: Context, made: Key) -> None:
    context.output.record({name: value for name, value in made.items() if value is not None})
    context.output.note("Store the key now: it is not shown again.")


def _list(context: Context, args: argparse.Namespace) -> None:
    keys = context.client.keys
    if args.project_id:
        context.show_list(lambda cursor: keys.list(args.project_id, limit=args.limit, cursor=cursor), _COLUMNS)
    else:
        context.show_list(lambda cursor: keys.list_admin(limit=args.limit, cursor=cursor), _COLUMNS)
