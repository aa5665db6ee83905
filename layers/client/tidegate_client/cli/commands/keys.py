"""key"""

from __future__ import annotations

import argparse

from tidegate_client.cli.context import Context, Group, Subparsers, add_paging
from tidegate_client.models import Key

SCOPES = ("read", "write", "agent")
_COLUMNS = ("key_id", "name", "scopes", "agent_id", "state", "last_used_at", "expires_at")


def register(subparsers: Subparsers) -> None:
    key = Group(subparsers, "key", "keys (admin)")
    create = key.command("create", _create, "make a key of a project; it is shown this once")
    create.add_argument("project_id")
    create.add_argument("--scope", action="append", choices=SCOPES, required=True, help="may be given several times")
    create.add_argument("--agent-id", help="the one host that a key of scope agent is for")
    _add_lasting(create)
    _add_lasting(key.command("create-admin", _create_admin, "make an admin key; it is shown this once"))
    listing = key.command("list", _list, "list the keys of a project, or the admin keys")
    listing.add_argument("project_id", nargs="?", help="without it: admin keys")
    add_paging(listing)
    rotate = key.command("rotate", _rotate, "a new key; the old one works for the overlap")
    rotate.add_argument("key_id", help="the deployment's own admin key is: admin")
    rotate.add_argument("--overlap", type=int, metavar="SECONDS", help="default: a day")
    delete = key.command("delete", _delete, "revoke a key and close its WebSockets")
    delete.add_argument("key_id")


def _add_lasting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", help="what it is for, shown in lists")
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
    context.output.note("Keep the key: it is not shown again.")


def _list(context: Context, args: argparse.Namespace) -> None:
    keys = context.client.keys
    if args.project_id:
        context.show_list(lambda cursor: keys.list(args.project_id, limit=args.limit, cursor=cursor), _COLUMNS)
    else:
        context.show_list(lambda cursor: keys.list_admin(limit=args.limit, cursor=cursor), _COLUMNS)


def _delete(context: Context, args: argparse.Namespace) -> None:
    context.client.keys.delete(args.key_id)
    context.output.record({"deleted": args.key_id})
