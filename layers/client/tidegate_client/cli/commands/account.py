"""The commands login, logout, console, api and project."""

from __future__ import annotations

import argparse
import getpass
import json
import os
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tidegate_client import config
from tidegate_client.cli.context import Context, Exit, Group, Subparsers, add_command
from tidegate_client.client import Client
from tidegate_client.errors import ApiError, ConfigError, Unauthorized, UsageError
from tidegate_client.http import read_written
from tidegate_client.models import Quotas
from tidegate_client.resources.projects import Projects

_LIMITS = tuple(name for name in Quotas.__annotations__ if name != "share")
# What a project is granted: the option, its value and its meaning.
_GSE = (
    ("target", "PATTERN", "hosts it may send to, such as web-*, or containers, such as web-1/*"),
    ("dir", "DIR", "a directory below which it may write"),
    ("user", "USER", "a user to whom its files may belong"),
)


def register(subparsers: Subparsers) -> None:
    login = add_command(subparsers, "login", _login, "check a key and store it, readable by you alone")
    login.add_argument("--api-url", metavar="URL", help="default: TIDEGATE_API_URL, else a prompt")
    login.add_argument(
        "--key",
        help="'-' reads it from stdin; default: TIDEGATE_KEY, else a prompt. Other users can see a key given here",
    )
    login.add_argument(
        "--ws-url", metavar="URL", help="address of the WebSocket; needed only if the API does not name it"
    )
    logout = add_command(subparsers, "logout", _logout, "remove the stored key of this profile")
    logout.epilog = "The key itself stays valid: `tidegate key delete` revokes it."

    console = add_command(subparsers, "console", _console, "print an address that opens the console signed in (admin)")
    console.add_argument("--open", action="store_true", help="open it in this machine's browser")

    api = add_command(subparsers, "api", _api, "send one request to the API and print its answer")
    api.add_argument("method", metavar="METHOD", choices=("GET", "POST", "PUT", "PATCH", "DELETE"))
    api.add_argument("path", help="such as /v1/files?limit=5; /docs of the API lists them")
    api.add_argument("-d", "--data", metavar="JSON", help="the body; @FILE reads a file, - reads stdin")

    project = Group(subparsers, "project", "projects (admin)", lambda client: client.projects, "project_id")
    create = project.command("create", _create_project, "create a project")
    create.add_argument("name")
    create.add_argument("--group")
    create.add_argument(
        "--allow-private-urls", action="store_true", help="allow URLs with private addresses, including loopback"
    )
    project.pages("list", Projects.list, ("project_id", "name", "group"), "list projects")
    project.call("show", Projects.get, "show a project with its quotas and their usage")
    update = project.command("update", _update_project, "change a project or its quotas")
    update.add_argument("project_id")
    update.add_argument("--name")
    update.add_argument("--group", help="the project's group; an empty value removes it")
    update.add_argument("--allow-private-urls", action=argparse.BooleanOptionalAction, default=None)
    update.add_argument(
        "--shared-signatures",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="also sign with the secret that all receivers share, besides that of each origin",
    )
    update.add_argument(
        "--swarm",
        choices=("auto", "on", "off"),
        help="whether its hosts exchange pieces of files; auto: those outside the bucket's region",
    )
    update.add_argument(
        "--deliver-to",
        action="append",
        metavar="BUCKET/KEY*",
        help="where its exports may be copied to; replaces the whole list, an empty value clears it",
    )
    update.add_argument(
        "--read-from",
        action="append",
        metavar="SOURCE",
        help="what its exports may read directly: s3://BUCKET/KEY*, dynamodb://TABLE, athena://WORKGROUP; "
        "replaces the whole list, an empty value clears it",
    )
    update.add_argument(
        "--alarm",
        action="append",
        metavar="PATTERN",
        help="CloudWatch alarms that may stop its releases; replaces the whole list, an empty value clears it",
    )
    update.add_argument(
        "--aws-role",
        action="append",
        metavar="'ACCOUNT/ROLE [groups=A,B] [labels=N=V,…] [replace]'",
        help="AWS roles whose instances may enrol as hosts (`tidegate agent enrol --aws`), the groups and labels that "
        "they get, and whether one may enrol again under its id; replaces the whole list, an empty value clears it",
    )
    update.add_argument(
        "--mask",
        action="append",
        metavar="COLUMN=KIND",
        help="columns that its exports hide: KIND is phone, id, card, email, or START,END, the characters that stay; "
        "replaces all, an empty value clears them",
    )
    for name, metavar, what in _GSE:
        update.add_argument(
            f"--gse-{name}",
            action="append",
            metavar=metavar,
            help=f"with TransferEngine=gse: {what}; replaces the whole list, an empty value clears it",
        )
    update.add_argument(
        "--quota",
        action="append",
        default=[],
        metavar="NAME=N",
        help=f"{', '.join(_LIMITS)}, or share.CHANNEL (give all shares); NAME=none sets the default, all=none "
        "all of them",
    )
    rotate = project.command(
        "rotate-secret", _rotate_secret, "create a new callback secret; callbacks carry both signatures"
    )
    rotate.add_argument("project_id")
    retire = project.command("retire-secret", _retire_secret, "end a rotation: callbacks carry the new signature only")
    retire.add_argument("project_id")


def _login(context: Context, args: argparse.Namespace) -> Exit | None:
    api_url = args.api_url or os.environ.get("TIDEGATE_API_URL") or _prompt("API address: ")
    warn_of_key(args.key)
    key = args.key or os.environ.get("TIDEGATE_KEY") or _prompt_secret("Key: ")
    if key == "-":
        key = _prompt_secret("Key: ") if sys.stdin.isatty() else sys.stdin.readline()
    if not api_url or not key.strip():
        raise UsageError("an API address and a key are needed: give --api-url and `--key -`, or run this in a terminal")
    client = Client(api_url, key)
    _check(client)
    ws_url = args.ws_url or os.environ.get("TIDEGATE_WS_URL")
    profile = getattr(args, "profile", None) or os.environ.get("TIDEGATE_PROFILE")
    address = client.http.api_url
    path = config.save(config.Config(api_url=address, key=key.strip(), ws_url=ws_url), profile=profile)
    context.output.record({"api_url": address, "config": str(path)})
    return None


def warn_of_key(given: str | None) -> None:
    """Prints a warning if a key was given as an argument, where other users can see it."""
    if given and given != "-":
        print(
            "warning: a key in a command line is seen by other users of this machine and kept in the shell's history: "
            "leave out --key and enter it when asked, set TIDEGATE_KEY, or send it with `--key -`",
            file=sys.stderr,
        )


def _logout(context: Context, args: argparse.Namespace) -> None:
    profile = getattr(args, "profile", None) or os.environ.get("TIDEGATE_PROFILE") or config.DEFAULT_PROFILE
    if not config.forget(profile=profile):
        raise UsageError(
            f"the profile {profile} has no stored login: nothing was removed; choose another with --profile"
        )
    context.output.record({"logged_out": profile})


def _console(context: Context, args: argparse.Namespace) -> None:
    address = f"{context.config.required_url().rstrip('/')}/#ticket={context.client.keys.sign_in_ticket().ticket}"
    context.output.record({"console": address})
    if args.open:
        webbrowser.open(address)


def _api(context: Context, args: argparse.Namespace) -> None:
    given, body = args.data, None
    if given is not None:
        text = sys.stdin.read() if given == "-" else Path(given[1:]).read_text() if given.startswith("@") else given
        try:
            body = read_written(text)
        except ValueError as error:
            raise UsageError(f"--data is not JSON: {error}") from error
    reply = context.client.http.call(args.method, args.path, body=body)
    if "json" in reply.headers.get("Content-Type", ""):
        print(json.dumps(reply.json(), indent=2, ensure_ascii=False), file=context.output.out)
    else:
        sys.stdout.buffer.write(reply.body)


def _check(client: Client) -> None:
    """Raises an error if the key is unknown, or if the API is not at this address.

    Any other answer of the API is accepted, because a key need not have the scope to list files."""
    try:
        client.files.list(limit=1)
    except Unauthorized:
        raise
    except ApiError as error:
        if error.status >= 500:
            raise
        if error.code == f"http_{error.status}":
            # Without a code it is not an answer of the API, so nothing has checked the key.
            raise ConfigError(
                f"{client.http.api_url} answers HTTP {error.status}, but not as the API does: is the address complete? "
                "`make run` prints it, and the stack's output ApiUrl has it"
            ) from error


def _prompt(prompt: str) -> str:
    if not sys.stdin.isatty():
        return ""
    print(prompt, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip()


def _prompt_secret(prompt: str) -> str:
    try:
        return getpass.getpass(prompt).strip() if sys.stdin.isatty() else ""
    except EOFError:
        # Ctrl-D at the prompt.
        return ""


def _create_project(context: Context, args: argparse.Namespace) -> None:
    created = context.client.projects.create(args.name, group=args.group, allow_private_urls=args.allow_private_urls)
    context.output.record(created)
    context.suggest(f"key create {created['project_id']} --scope read --scope write")


def _update_project(context: Context, args: argparse.Namespace) -> None:
    changes: dict[str, Any] = {
        "name": args.name,
        "allow_private_urls": args.allow_private_urls,
        "swarm": args.swarm,
        "shared_signatures": args.shared_signatures,
        "deliver_to": _without_empty(args.deliver_to),
        "read_from": _without_empty(args.read_from),
        "alarms": _without_empty(args.alarm),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    if args.group is not None:
        changes["group"] = args.group or None
    if args.quota:
        changes["quotas"] = quotas_of(args.quota)
    lists = {f"{name}s": _without_empty(getattr(args, f"gse_{name}")) for name, *_ in _GSE}
    if grant := {name: listed for name, listed in lists.items() if listed is not None}:
        changes["gse"] = grant
    if args.aws_role is not None:
        changes["aws_roles"] = [_aws_role(text) for text in args.aws_role if text]
    if args.mask is not None:
        changes["masks"] = _masks(args.mask)
    if not changes:
        raise UsageError(
            "nothing to change: give --name, --group, --allow-private-urls, --shared-signatures, --swarm, "
            "--deliver-to, --read-from, --alarm, --aws-role, --mask, --gse-target, --gse-dir, --gse-user or --quota"
        )
    context.output.record(context.client.projects.update(args.project_id, changes))


def _aws_role(text: str) -> dict[str, Any]:
    named, *options = text.split()
    account, _, role = named.partition("/")
    found: dict[str, Any] = {"account": account, "role": role}
    for option in options:
        name, equals, value = option.partition("=")
        pairs = [each.split("=", 1) for each in value.split(",")]
        if option == "replace":
            found["replace"] = True
        elif name == "groups" and equals:
            found["groups"] = value.split(",")
        elif name == "labels" and equals and all(len(pair) == 2 for pair in pairs):
            found["labels"] = dict(pairs)
        else:
            raise UsageError(f"--aws-role {text}: {option!r} is none of groups=A,B, labels=N=V,… and replace")
    return found


def _masks(given: Sequence[str]) -> dict[str, Any]:
    masks: dict[str, Any] = {}
    for each in filter(None, given):
        column, equals, kind = each.rpartition("=")
        start, comma, end = kind.partition(",")
        if not equals or (comma and not (start.isdigit() and end.isdigit())):
            raise UsageError(f"--mask {each}: write COLUMN=KIND, such as mobile=phone or name=1,0")
        masks[column] = {"start": int(start), "end": int(end)} if comma else kind
    return masks


def _without_empty(places: Sequence[str] | None) -> list[str] | None:
    return None if places is None else [place for place in places if place]


def quotas_of(given: Sequence[str]) -> dict[str, Any]:
    """Parses `["queued=50", "share.export=2", "stored_bytes=none"]` into the field `quotas` of the API."""
    quotas: dict[str, Any] = {}
    for text in given:
        name, _, number = text.partition("=")
        limit = int(number) if number.isdecimal() else None
        removed = number == "none"
        if text == "all=none":
            quotas |= dict.fromkeys(_LIMITS)
        elif (name in _LIMITS and (removed or limit is not None)) or text == "share=none":
            quotas[name] = limit
        elif name.startswith("share.") and limit is not None:
            quotas["share"] = (quotas.get("share") or {}) | {name.removeprefix("share."): limit}
        else:
            known = ", ".join(f"{one}=N" for one in (*_LIMITS, "share.CHANNEL"))
            raise UsageError(
                f"--quota {text} is not valid: give one of {known}; NAME=none sets the default, all=none all defaults, "
                "share=none removes all shares"
            )
    return quotas


def _rotate_secret(context: Context, args: argparse.Namespace) -> None:
    context.output.record({"callback_secret": context.client.projects.rotate_callback_secret(args.project_id)})


def _retire_secret(context: Context, args: argparse.Namespace) -> None:
    context.client.projects.retire_callback_secret(args.project_id)
    context.output.record({"retired": args.project_id})
