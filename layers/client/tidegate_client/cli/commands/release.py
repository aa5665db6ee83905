"""The command release: put, show, list, hosts, drift, revisions, rollback, pause, resume, activate, gate, delete."""

from __future__ import annotations

import argparse
from typing import Any

from tidegate_client.cli.commands.fleet import label
from tidegate_client.cli.context import Context, Group, Subparsers
from tidegate_client.errors import UsageError
from tidegate_client.resources.releases import Releases

_COLUMNS = ("name", "status", "revision", "stable", "share", "reason")
_HOSTS = ("agent_id", "state", "revision", "desired", "wave", "reason", "reported_at")
_STATES = ("current", "staged", "failed", "drifted", "behind", "offline", "gone")


def register(subparsers: Subparsers) -> None:
    what = "what should be on which hosts, and the way back"
    release = Group(subparsers, "release", what, lambda client: client.releases, "name")
    _add_put(release.command("put", _put, "make this the desired revision of a release"))
    release.call("show", Releases.get, "show a release: its revision, status and hosts by state")
    release.call("pause", Releases.pause, "let hosts take and activate nothing new")
    release.call("resume", Releases.resume, "go on after a pause, or with a revision that failed")
    release.call("activate", Releases.activate, "let hosts put a staged revision in place")
    release.call("delete", Releases.delete, "delete a release; its files stay on the hosts")
    release.pages("list", Releases.list, _COLUMNS, "list releases")
    text = "list the hosts of a release with what they have"
    release.pages("hosts", Releases.hosts, _HOSTS, text, "name", state={"choices": _STATES})
    text = "list hosts on which somebody changed a file"
    release.pages("drift", Releases.drift, ("agent_id", "revision", "drift", "reported_at"), text, "name")
    columns = ("number", "created_at", "created_by", "rollback_to", "note")
    release.pages("revisions", Releases.revisions, columns, "list the revisions of a release", "name")
    text = "go back to the last revision that passed, on all hosts at once"
    release.call("rollback", Releases.rollback, text, to={"type": int, "metavar": "N", "help": "another revision"})
    gate = release.command("gate", _gate, "decide the current wave yourself: it passes or fails")
    gate.add_argument("name")
    verdict = gate.add_mutually_exclusive_group(required=True)
    verdict.add_argument("--pass", action="store_true", dest="passes", help="do not wait for the soak time")
    verdict.add_argument("--fail", action="store_false", dest="passes", help="the wave has failed")
    gate.add_argument("--reason")


def _add_put(put: argparse.ArgumentParser) -> None:
    put.add_argument("name")
    for option, what in (
        ("file", "a file of the library (its id) and its directory on the hosts"),
        ("tar", "an archive, unpacked to DIR/releases/REVISION, where the symlink DIR/current leads to it"),
        ("zip", "a zip file, unpacked in the same way"),
    ):
        put.add_argument(f"--{option}", action="append", metavar="FILE=DIR", help=f"{what} (repeatable)")
    put.add_argument("--user", required=True, help="owner of the files on the hosts")
    put.add_argument("--mode", help="permissions of the files in octal, as in 0640")
    put.add_argument("--group", action="append", metavar="NAME", help="hosts of this group (repeatable)")
    put.add_argument("--label", action="append", type=label, metavar="NAME=VALUE", help="hosts with this label")
    put.add_argument("--target", action="append", metavar="HOST", help="a host by its id (repeatable)")
    put.add_argument(
        "--wave",
        action="append",
        type=_wave,
        metavar="PERCENT[:WAIT[:MAX_FAILED]]",
        help="a stage: percent of the hosts, seconds that it must stay healthy, percent that may fail (repeatable)",
    )
    put.add_argument("--hook", metavar="NAME", help="a hook of the hosts, run after the files are in place")
    put.add_argument("--health", metavar="URL|NAME", help="a page on a loopback port, or a hook of the hosts")
    put.add_argument(
        "--health-timeout", type=int, metavar="SECONDS", help="seconds until the check counts as failed (default 30)"
    )
    put.add_argument(
        "--soak", type=int, metavar="SECONDS", help="seconds for which a wave must stay healthy (default 0)"
    )
    put.add_argument(
        "--alarm", metavar="NAME|ARN", help="a CloudWatch alarm that fails a wave; an admin allows it to the project"
    )
    put.add_argument("--activate", metavar="now|manual|TIME", help="when hosts put the files in place (default now)")
    put.add_argument("--on-failure", choices=("rollback", "stop"), help="what a failed wave does (default rollback)")
    put.add_argument("--keep", type=int, metavar="N", help="former revisions whose content hosts keep (default 2)")
    put.add_argument("--heal", action="store_true", help="put files in place again that somebody changed")
    put.add_argument("--note", help="a remark for people")


def _wave(text: str) -> dict[str, int]:
    parts = text.split(":")
    if not 1 <= len(parts) <= 3 or not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not PERCENT[:WAIT[:MAX_FAILED]], as in 10:300:5")
    return dict(zip(("percent", "wait_s", "max_failed_percent"), map(int, parts)))


def _put(context: Context, args: argparse.Namespace) -> None:
    modes = {"mode": args.mode} if args.mode else {}
    files = [_file("file", text, args.user) | modes for text in args.file or ()]
    for kind in ("tar", "zip"):
        files += [_file(kind, text, args.user) | {"unpack": kind} for text in getattr(args, kind) or ()]
    if not files:
        raise UsageError("which files? Give --file, --tar or --zip")
    body: dict[str, Any] = {
        "files": files,
        "targets": {"groups": args.group or [], "labels": dict(args.label or ()), "agents": args.target or []},
        "waves": args.wave or [],
        "heal": args.heal,
    }
    if not any(body["targets"].values()):
        raise UsageError("for which hosts? Give --group, --label or --target")
    if args.health:
        kind = "url" if args.health.startswith("http://") else "hook"
        seconds = {"timeout_s": args.health_timeout, "soak_s": args.soak}
        body["health"] = {kind: args.health} | {name: value for name, value in seconds.items() if value is not None}
    elif args.soak is not None or args.health_timeout is not None:
        raise UsageError("--soak and --health-timeout need --health")
    more = {name: getattr(args, name) for name in ("hook", "alarm", "activate", "on_failure", "keep", "note")}
    body |= {name: value for name, value in more.items() if value is not None}
    context.output.record(context.client.releases.put(args.name, body))


def _file(option: str, text: str, user: str) -> dict[str, str]:
    file_id, sign, directory = text.partition("=")
    if not sign or not directory.startswith("/"):
        raise UsageError(f"--{option} {text} is not FILE=/directory/on/the/hosts")
    return {"file_id": file_id, "target_file_dir": directory, "target_user": user}


def _gate(context: Context, args: argparse.Namespace) -> None:
    context.output.record(context.client.releases.gate(args.name, passes=args.passes, reason=args.reason))
