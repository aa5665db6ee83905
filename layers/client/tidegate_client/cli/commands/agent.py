"""The command agent, which runs the agent on this host, and its subcommands such as install, doctor and enrol."""

from __future__ import annotations

import argparse
import getpass
import hashlib
import itertools
import os
import random
import re
import socket
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate_client.cli.commands import agent_service
from tidegate_client.cli.context import Context, Exit, Subparsers, add_command, exit_for, rate
from tidegate_client.cli.output import log_to_stderr
from tidegate_client.client import Client
from tidegate_client.config import further_login, state_path
from tidegate_client.errors import Conflict, RateLimited, ServerError, TidegateError, Unreachable, UsageError
from tidegate_client.rates import DailyRate, RateWindow

if TYPE_CHECKING:
    from tidegate_client.agent.options import AgentOptions, Grant
    from tidegate_client.models import Enrolled
    from tidegate_client.swarm.host import SwarmOptions

LOOPBACK = "127.0.0.1"
AGENT_ID = "TIDEGATE_AGENT_ID"
# How often an enrolment by an AWS role is tried while the API or STS cannot answer, each time with a new signature.
_AWS_TRIES = 5


def register(subparsers: Subparsers) -> None:
    agent = add_command(
        subparsers,
        "agent",
        _run,
        "receive files on this host; SIGTERM finishes running downloads, a second SIGTERM stops at once",
    )
    _add_options(agent)
    inner = agent.add_subparsers(metavar="COMMAND", dest="agent_command")
    install = add_command(inner, "install", _install, "install it as a hardened systemd service")
    install.add_argument("--print", action="store_true", dest="print_only", help="print the unit and change nothing")
    install.add_argument("--no-start", action="store_true", help="write the unit, but do not enable and start it")
    install.add_argument(
        "--name", default=agent_service.NAME, help=f"name of the service (default {agent_service.NAME})"
    )
    uninstall = add_command(inner, "uninstall", agent_service.uninstall, "stop and remove the service")
    uninstall.add_argument("--purge", action="store_true", help="remove its key and its journal too")
    uninstall.add_argument("--name", default=agent_service.NAME)
    status = add_command(
        inner,
        "status",
        agent_service.status,
        "show the state of the agents on this host; exit code 1 if one is unhealthy",
    )
    status.add_argument("--name", default=agent_service.NAME)
    doctor = add_command(inner, "doctor", _doctor, "check whether this host can receive files")
    for parser in (install, status, doctor):
        _add_options(parser)
    new_key = add_command(inner, "new-release-key", _new_release_key, "make the keys that sign versions of the agent")
    new_key.add_argument("key", type=Path, metavar="FILE", help="for the private key; the public key gets FILE.pub")
    new_key.add_argument("--passphrase", action="store_true", help="ask for a passphrase that protects the private key")
    sign = add_command(inner, "sign-release", _sign_release, "sign a wheel of tidegate-client, for --self-update")
    sign.add_argument("wheel", type=Path, metavar="WHEEL")
    sign.add_argument("--key", type=Path, required=True, metavar="FILE", help="the private key of new-release-key")
    sign.add_argument("--out", type=Path, metavar="FILE", help="the signed release (default: WHEEL.signed)")
    enrol = add_command(
        inner,
        "enrol",
        _enrol,
        "exchange a token, or this instance's AWS role, for this host's key, and store it for `agent` and "
        "`agent install`",
    )
    proof = enrol.add_mutually_exclusive_group(required=True)
    proof.add_argument("--token", help="from `tidegate fleet token`; '-' reads it from stdin")
    proof.add_argument(
        "--aws",
        action="store_true",
        help="by the AWS role of this instance, which an admin allows the project of --project; its id in Tidegate is "
        "the instance id",
    )
    enrol.add_argument("--url", help="the API's address (default: TIDEGATE_API_URL, or the stored one)")
    enrol.add_argument("--agent-id", default=argparse.SUPPRESS)
    enrol.add_argument(
        "--service",
        action="store_true",
        help="store it for the service of the package tidegate-agent, in /etc/tidegate (as root)",
    )
    enrol.add_argument("--zone", default=argparse.SUPPRESS)


def _add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that may be given before or after the subcommand.

    Their defaults are in AgentOptions, not here."""
    add: Any = lambda *names, **more: parser.add_argument(*names, default=argparse.SUPPRESS, **more)  # noqa: E731
    add("--agent-id", help="the name of this host in Tidegate")
    add("--root", type=Path, help="all files are put below this directory")
    add(
        "--container-root",
        action="append",
        metavar="[PROFILE=]DIR",
        help="files for container C are put below DIR/C; without it they are refused",
    )
    add(
        "--allow-dir",
        action="append",
        metavar="[PROFILE=]DIR",
        help="accept files only below DIR (repeatable); with PROFILE=: files of that login of --also",
    )
    add(
        "--allow-user",
        action="append",
        metavar="[PROFILE=]USER",
        help="accept files only for USER (repeatable), or for any user: '*'",
    )
    add("--parallel", type=_positive, metavar="N", help="downloads at once (default 4)")
    add(
        "--limit-rate",
        action="append",
        type=_rate_of_profile,
        metavar="[PROFILE=][HH:MM-HH:MM=]RATE",
        help="bytes a second for all downloads together, as in 500K or 10M; with PROFILE=: for those of that login; "
        "with times of the host's day: then, as in 22:00-06:00=none (repeatable)",
    )
    add(
        "--peer-listen",
        action="append",
        type=_listen,
        metavar="HOST:PORT",
        help="address at which other hosts of a Job fetch pieces from this one (repeatable); "
        "needs pip install 'tidegate-client[swarm]'",
    )
    add("--site", help="location of this host; hosts of one site exchange pieces (default with --peer-listen: default)")
    add(
        "--zone",
        help="zone within the site: pieces come from hosts of the same zone first; `tidegate fleet list` shows it "
        "(default on EC2: the availability zone)",
    )
    add("--peer-upload-rate", type=rate, metavar="RATE", help="bytes a second to all peers together, as in 500K or 50M")
    add("--no-peers", action="store_true", help="take part in no swarm: download everything from S3")
    add("--proxy", metavar="URL", help="proxy for the API and the files (default: HTTPS_PROXY, HTTP_PROXY, NO_PROXY)")
    add(
        "--metrics",
        type=_listen,
        metavar="[HOST:]PORT",
        help="serve /metrics and /healthz there (default host: loopback)",
    )
    add("--log-format", choices=("text", "json"), help="format of the log on stderr (default: text; with --json: json)")
    add("--state-dir", type=Path, help="directory for the journal (default: below $XDG_STATE_HOME or ~/.local/state)")
    add(
        "--also",
        action="append",
        metavar="PROFILE",
        help="serve the project of this stored login too, with its own "
        "--allow-dir PROFILE=DIR and --allow-user PROFILE=USER (repeatable)",
    )
    add(
        "--self-update",
        action="store_true",
        help="install signed new versions of the agent that an admin sends to /.tidegate/agent; needs --release-key",
    )
    add("--release-key", type=Path, metavar="FILE", help="public key by which new versions must be signed")
    add("--allow-downgrade", action="store_true", help="let --self-update install a lower version too")
    add(
        "--allow-hook",
        action="append",
        metavar="NAME=[USER:]PATH",
        help="let releases run this program after they put files in place, or as their health check (repeatable)",
    )
    add(
        "--allow-check",
        action="append",
        type=_positive,
        metavar="PORT",
        help="let releases check the health of this host by HTTP on this loopback port (repeatable)",
    )
    add(
        "--check-rate",
        type=_check_rate,
        metavar="RATE",
        help="bytes a second at which files of releases are read again to find changed ones (default 1M; 0: never)",
    )
    add("--no-push", action="store_true", help="open no WebSocket: poll, and receive new files up to two minutes later")
    add(
        "--wait",
        type=int,
        choices=range(21),
        metavar="0-20",
        help="seconds of a long poll while there is no WebSocket (default 0)",
    )
    add(
        "--drain-seconds",
        type=float,
        metavar="S",
        help="how long running downloads may continue after SIGTERM (default 30)",
    )


def _check_rate(text: str) -> int:
    return 0 if text == "0" else rate(text)


def _split(text: str) -> tuple[str, str]:
    """Splits PROFILE=VALUE. The profile is "" if the text names none.

    A text with a '/' before the '=' names no profile, because the name of a directory may contain a '='."""
    profile, equals, value = text.partition("=")
    return (profile, value) if equals and "/" not in profile else ("", text)


def _rate_of_profile(text: str) -> tuple[str, int | RateWindow]:
    if window := re.fullmatch(r"(?:(.+)=)?(\d\d:\d\d-\d\d:\d\d)=(.+)", text):
        try:
            return window[1] or "", RateWindow.parse(window[2], window[3])
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    profile, value = _split(text)
    return profile, rate(value)


def _rates(given: Iterable[tuple[str, int | RateWindow]]) -> dict[str, list[Any]]:
    """Returns the rate of each login: a number, or a DailyRate if it depends on the time of day."""
    rates = _by_profile(given)
    for profile, values in rates.items():
        windows = tuple(one for one in values if isinstance(one, RateWindow))
        if not windows:
            continue
        for at, one in enumerate(windows):
            if any(one.has(other.begin) or other.has(one.begin) for other in windows[:at]):
                raise UsageError(f"--limit-rate {one} overlaps another window")
        usual = [one for one in values if not isinstance(one, RateWindow)]
        daily = DailyRate(usual[0] if usual else None, windows)
        rates[profile] = [daily, *usual[1:]]
    return rates


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _listen(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise argparse.ArgumentTypeError(f"{text!r} is neither PORT nor HOST:PORT, with a port from 1 to 65535")
    return host.strip("[]") or LOOPBACK, int(port)


def _options(context: Context, args: argparse.Namespace) -> AgentOptions:
    from tidegate_client.agent.options import AgentOptions
    from tidegate_client.agent.releases import allowed_hook

    # `agent enrol --service` stores the id beside the key.
    if not hasattr(args, "agent_id") and (known := os.environ.get(AGENT_ID)):
        args.agent_id = known
    given = vars(args)
    required = {"agent_id": "give the name of this host in Tidegate", "root": "give the directory for all files"}
    for name, meaning in required.items():
        if name not in given:
            raise UsageError(f"--{name.replace('_', '-')} is missing: {meaning}")
    root: Path = args.root
    if not root.is_dir():
        raise UsageError(f"--root {root} is not a directory; create it first")
    grants = _grants(given)
    first = grants.pop("")
    names = ("parallel", "proxy", "metrics", "wait", "drain_seconds", "zone", "check_rate")
    return AgentOptions(
        agent_id=args.agent_id,
        root=root.absolute(),
        container_root=first.container_root,
        limit_rate=first.limit_rate,
        also=grants,
        state_dir=given.get("state_dir") or _state_dir(context, args),
        permits=first.permits,
        swarm=_swarm(given),
        push=not given.get("no_push", False),
        self_update=given.get("self_update", False),
        release_key=given.get("release_key"),
        allow_downgrade=given.get("allow_downgrade", False),
        hooks=dict(map(allowed_hook, given.get("allow_hook") or ())),
        check_ports=frozenset(given.get("allow_check") or ()),
        **{name: given[name] for name in names if given.get(name) is not None},
    )


def _grants(given: dict[str, Any]) -> dict[str, Grant]:
    """Returns the permits by login: those of each login of --also, and under "" those of the first login."""
    from tidegate_client.agent.disk import Permits
    from tidegate_client.agent.options import Grant, no_permits

    directories, users, roots = (
        _by_profile(map(_split, given.get(name) or ())) for name in ("allow_dir", "allow_user", "container_root")
    )
    rates = _rates(given.get("limit_rate") or ())
    profiles = ["", *(given.get("also") or ())]
    if "default" in profiles:
        raise UsageError("--also default: this is the name of the agent's first login; store the other under a name")
    for option, values in {
        "--allow-dir": directories,
        "--allow-user": users,
        "--container-root": roots,
        "--limit-rate": rates,
    }.items():
        if unknown := sorted(values.keys() - profiles):
            raise UsageError(f"{option} {unknown[0]}=… names a login that is not served: add --also {unknown[0]}")
    for one in [directory for values in directories.values() for directory in values]:
        if not one.startswith("/") or ".." in Path(one).parts:
            raise UsageError(f"--allow-dir {one} is not an absolute path without '..'")
    for option, single in (("--container-root", roots), ("--limit-rate", rates)):
        if twice := [profile for profile, values in single.items() if len(values) > 1]:
            raise UsageError(f"{option} is given twice{f' for {twice[0]}' if twice[0] else ''}")
    grants = {}
    for profile in profiles:
        permits = Permits(tuple(directories.get(profile, ())), frozenset(users.get(profile, ())))
        if profile and not (permits.directories and permits.users):
            permits = no_permits(profile)
        root = roots.get(profile, [None])[0]
        grants[profile] = Grant(permits, Path(root).absolute() if root else None, rates.get(profile, [None])[0])
    return grants


def _by_profile(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for profile, value in pairs:
        found.setdefault(profile, []).append(value)
    return found


def _swarm(given: dict[str, Any]) -> SwarmOptions | None:
    """Returns the swarm options; None if the agent takes part in no swarm.

    It takes part in no swarm with --no-peers, or if neither --peer-listen nor --site is given."""
    from tidegate_client.swarm.host import SwarmOptions

    listen = tuple(given.get("peer_listen") or ())
    if given.get("no_peers") or not (listen or given.get("site")):
        return None
    site, zone = given.get("site") or "default", given.get("zone") or ""
    return SwarmOptions(listen, site, zone, given.get("peer_upload_rate"))


def _state_dir(context: Context, args: argparse.Namespace) -> Path:
    """Returns a state directory that is used only for this agent, this API and this root.

    So no result is reported to another API."""
    identity = f"{context.config.required_url()}\n{args.root.resolve()}\n{args.agent_id}"
    return state_path() / "agents" / hashlib.sha256(identity.encode()).hexdigest()[:16]


def _run(context: Context, args: argparse.Namespace) -> Exit | None:
    # Imported here, because the agent needs Unix and the other commands do not.
    from tidegate_client.agent.aws import availability_zone
    from tidegate_client.agent.daemon import Agent, make_group
    from tidegate_client.agent.service import (
        call_on_stop_signals,
        notify_systemd,
        pause_as_service,
        restore_stop_signals,
    )
    from tidegate_client.agent.update import Releases, replace_process, start_current_release
    from tidegate_client.http import make_pool

    if not getattr(args, "zone", None) and (zone := availability_zone()):
        args.zone = zone
    options = _options(context, args)
    if options.self_update:
        start_current_release(
            Releases(options.state_dir),
            sys.argv[1:],
            lambda: notify_systemd("READY=1\nWATCHDOG=1"),
            allow_downgrade=options.allow_downgrade,
        )
    log_format = getattr(args, "log_format", None) or ("json" if context.output.as_json else "text")
    log_to_stderr("tidegate.agent", as_json=log_format == "json")
    # No retries within a call: the agent has a longer back-off of its own.
    pool = make_pool(options.proxy, maxsize=4)
    client = context.client_with(attempts=0, pool=pool)
    others = {name: further_login(name) for name in getattr(args, "also", ())}
    agent = make_group(client, others, options) if others else Agent(client, options)
    call_on_stop_signals(agent.stop)
    agent.run()
    if agent.restarting:
        replace_process(Releases(options.state_dir), None, sys.argv[1:])
    if agent.failure:
        context.output.error(agent.failure)
        restore_stop_signals()
        pause_as_service()
        return exit_for(agent.failure)
    return None


def _enrol(context: Context, args: argparse.Namespace) -> None:
    from tidegate_client import config
    from tidegate_client.agent.update import version

    url = args.url or context.config.required_url()
    agent_id = getattr(args, "agent_id", None)
    profile = getattr(args, "profile", None) or config.DEFAULT_PROFILE
    if not args.service:
        _refuse_to_replace_a_login(profile)
    about = {"version": version(), "zone": getattr(args, "zone", None), "claim": config.host_claim()}
    # Without a key: a stored one may belong to another project.
    with Client(url) as client:
        if args.aws:
            enrolled = _enrol_by_aws(client, context.config.project_id, agent_id, about)
        else:
            token = sys.stdin.readline().strip() if args.token == "-" else args.token  # noqa: S105
            enrolled = client.agents.enrol(token, agent_id or socket.gethostname(), **about)
    agent_id = enrolled["agent_id"]
    shown = {name: enrolled[name] for name in ("project_id", "agent_id", "key_id")}
    if args.service:
        login_of_service = [("TIDEGATE_API_URL", url), ("TIDEGATE_KEY", enrolled["key"]), (AGENT_ID, agent_id)]
        path = agent_service.store_login(login_of_service)
        context.output.record(shown)
        context.output.note(f"the key is stored in {path}; next: systemctl enable --now {agent_service.NAME}")
        return
    path = config.save(config.Config(url, enrolled["key"], project_id=enrolled["project_id"]), profile=profile)
    context.output.record(shown)
    command = "tidegate agent" if profile == config.DEFAULT_PROFILE else f"tidegate --profile {profile} agent"
    context.output.note(f"the key is stored in {path}; next: {command} install --agent-id {agent_id} --root DIR")


def _refuse_to_replace_a_login(profile: str) -> None:
    """Raises an error if the profile is a person's login. A person's key is shown once, and must not be overwritten."""
    try:
        login = further_login(profile)
        if not login.key:
            return
        # Refused for the key of a host, which may be replaced.
        Client(login.required_url(), login.key, attempts=0).http.call("GET", "/v1/me")
    except TidegateError:
        return
    raise UsageError(
        f"the profile {profile} is your own login, which this would replace: choose another, as in"
        " `tidegate --profile host agent enrol …`, then `tidegate --profile host agent …`"
    )


def _enrol_by_aws(client: Client, project_id: str | None, agent_id: str | None, about: dict[str, Any]) -> Enrolled:
    from tidegate_client.agent.aws import credentials, signed_identity

    if not project_id:
        raise UsageError("--project is missing: give the id of the project that allows this instance's role")
    for attempt in itertools.count(1):
        identity = signed_identity(credentials(), client.http.api_url, project_id)
        try:
            return client.agents.enrol_by_aws(identity, agent_id, **about)
        except (Unreachable, ServerError, RateLimited, Conflict) as error:
            if attempt == _AWS_TRIES or getattr(error, "code", None) == "agent_exists":
                raise
            # Many instances may start at once.
            time.sleep(random.uniform(1, 2**attempt))  # noqa: S311
    raise AssertionError


def _new_release_key(context: Context, args: argparse.Namespace) -> None:
    from tidegate_client.agent.update import create_key

    passphrase = getpass.getpass("Passphrase: ") if args.passphrase else ""
    if args.passphrase and (not passphrase or getpass.getpass("Again: ") != passphrase):
        raise UsageError("the passphrases are empty or differ: nothing was written")
    public = create_key(args.key, passphrase)
    context.output.record({"private_key": str(args.key), "public_key": str(public)})
    context.output.note(f"keep {args.key} offline; each host gets {public} by tidegate agent install --release-key")


def _sign_release(context: Context, args: argparse.Namespace) -> None:
    from tidegate_client.agent.update import is_encrypted, sign

    key = args.key.read_bytes()
    version, signed = sign(args.wheel.read_bytes(), key, getpass.getpass("Passphrase: ") if is_encrypted(key) else "")
    out = args.out or args.wheel.with_name(f"{args.wheel.name}.signed")
    out.write_bytes(signed)
    context.output.record({"version": version, "signed": str(out), "sha256": hashlib.sha256(signed).hexdigest()})


def _install(context: Context, args: argparse.Namespace) -> Exit | None:
    return agent_service.install(context, args, _options(context, args))


def _doctor(context: Context, args: argparse.Namespace) -> Exit:
    from tidegate_client.agent.service import examine
    from tidegate_client.http import make_pool

    options = _options(context, args)
    client = context.client_with(attempts=0, pool=make_pool(options.proxy, maxsize=1))
    findings = list(examine(client, options))
    rows = [{"check": one.check, "result": "ok" if one.ok else "FAILED", "detail": one.detail} for one in findings]
    context.output.table(rows, ("check", "result", "detail"))
    return Exit.OK if all(one.ok for one in findings) else Exit.FAILED
