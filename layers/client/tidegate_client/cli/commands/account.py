"""login · project · key"""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from tidegate_client import config
from tidegate_client.cli.context import Context, Group, Subparsers, add_command, add_paging
from tidegate_client.cli.exits import Exit
from tidegate_client.client import Client
from tidegate_client.errors import ApiError, Unauthorized, UsageError

SCOPES = ("read", "write", "agent")


def register(subparsers: Subparsers) -> None:
    login = add_command(subparsers, "login", _login, "check a key and remember it (mode 0600)")
    login.add_argument("--api-url", metavar="URL", help="default: TIDEGATE_API_URL, else asked for")
    login.add_argument("--key", help="default: TIDEGATE_KEY, else asked for without echo; '-' reads it from stdin")
    login.add_argument("--ws-url", metavar="URL", help="address of the WebSocket API, for watching")

    project = Group(subparsers, "project", "projects (admin)")
    create = project.command("create", _create_project, "make a project")
    create.add_argument("name")
    create.add_argument("--group")
    create.add_argument("--allow-private-urls", action="store_true", help="its URLs may point into private networks")
    add_paging(project.command("list", _list_projects, "list projects"))
    rotate = project.command("rotate-secret", _rotate_secret, "a new callback secret beside the present one")
    rotate.add_argument("project_id")
    retire = project.command("retire-secret", _retire_secret, "end a rotation: only the new secret signs")
    retire.add_argument("project_id")

    key = Group(subparsers, "key", "keys of a project (admin)")
    create = key.command("create", _create_key, "make a key; it is shown this once")
    create.add_argument("project_id")
    create.add_argument("--scope", action="append", choices=SCOPES, required=True, help="may be given several times")
    create.add_argument("--agent-id", help="the one host that a key of scope agent is for")
    delete = key.command("delete", _delete_key, "revoke a key")
    delete.add_argument("key_id")


def _login(context: Context, args: argparse.Namespace) -> Exit | None:
    api_url = args.api_url or os.environ.get("TIDEGATE_API_URL") or _asked("API address: ")
    key = args.key or os.environ.get("TIDEGATE_KEY") or _asked_secretly("Key: ")
    if key == "-":
        key = sys.stdin.readline().strip()
    if not api_url or not key:
        raise UsageError("an API address and a key are needed")
    _check(Client(api_url, key))
    ws_url = args.ws_url or os.environ.get("TIDEGATE_WS_URL")
    path = config.save(config.Config(api_url=api_url.rstrip("/"), key=key, ws_url=ws_url))
    context.output.record({"api_url": api_url.rstrip("/"), "config": str(path)})
    return None


def _check(client: Client) -> None:
    """Any answer but 401 shows that the key is known; which scopes it has is its own matter."""
    try:
        client.files.list(limit=1)
    except Unauthorized:
        raise
    except ApiError as error:
        if error.status >= 500:
            raise


def _asked(prompt: str) -> str:
    if not sys.stdin.isatty():
        return ""
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _asked_secretly(prompt: str) -> str:
    return getpass.getpass(prompt).strip() if sys.stdin.isatty() else ""


def _create_project(context: Context, args: argparse.Namespace) -> None:
    made = context.client.projects.create(args.name, group=args.group, allow_private_urls=args.allow_private_urls)
    context.output.record(made)


def _list_projects(context: Context, args: argparse.Namespace) -> None:
    context.show_list(
        lambda cursor: context.client.projects.list(limit=args.limit, cursor=cursor), ("project_id", "name", "group")
    )


def _rotate_secret(context: Context, args: argparse.Namespace) -> None:
    context.output.record({"callback_secret": context.client.projects.rotate_callback_secret(args.project_id)})


def _retire_secret(context: Context, args: argparse.Namespace) -> None:
    context.client.projects.retire_callback_secret(args.project_id)
    context.output.record({"retired": args.project_id})


def _create_key(context: Context, args: argparse.Namespace) -> None:
    made = context.client.keys.create(args.project_id, args.scope, agent_id=args.agent_id)
    context.output.record(made)
    context.output.note("Keep the key: it is not shown again.")


def _delete_key(context: Context, args: argparse.Namespace) -> None:
    context.client.keys.delete(args.key_id)
    context.output.record({"deleted": args.key_id})
