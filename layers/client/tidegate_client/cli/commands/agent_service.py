"""The commands agent install, uninstall and status: the systemd service on this host."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate_client.cli.context import Context, Exit
from tidegate_client.config import further_login, further_login_variable, state_path
from tidegate_client.errors import UsageError
from tidegate_client.http import ALLOW_HTTP, checked_address
from tidegate_client.rates import DailyRate, Rate

if TYPE_CHECKING:
    from tidegate_client.agent.disk import Permits
    from tidegate_client.agent.options import AgentOptions
    from tidegate_client.agent.service import Health, Service

NAME = "tidegate-agent"
DEFAULT_METRICS = "127.0.0.1:9469"
# The agent writes its health every second.
STALE_SECONDS = 30.0


def install(context: Context, args: argparse.Namespace, options: AgentOptions) -> Exit | None:
    """Writes and starts the systemd service; with --print, only prints its unit."""
    from tidegate_client.swarm.port import no_port_reason

    service = service_for(context, args, options)
    if args.print_only:
        context.output.line(service.unit())
        return None
    release_key = _release_key(options)
    for directory in service.writable:
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory; create it first: the service is not permitted to")
    # The key is in a file of its own, because every user can read units.
    _write(service.environment_path, service.environment_text(), 0o600)
    if release_key:
        # A copy that only root can change: the file that was given may lie in a user's directory.
        _write(service.release_key_path, release_key, 0o600)
    _write(service.unit_path, service.unit(), 0o644)
    if not args.no_start:
        _systemctl("daemon-reload")
        _systemctl("enable", "--now", service.unit_path.name)
        # So that an agent that is already running uses the new unit.
        _systemctl("restart", service.unit_path.name)
    context.output.note(f"installed {service.unit_path}; `tidegate agent status` shows its state")
    if options.swarm and options.swarm.listen and (reason := no_port_reason()):
        context.output.note(f"{reason}, then: systemctl restart {service.name}")
    return None


def store_login(environment: Sequence[tuple[str, str]]) -> Path:
    """Stores a login where the installed package's service reads it; returns the path.

    The environment variables that the agent reads too (proxies, plain HTTP) are stored with it."""
    from tidegate_client.agent.service import Service

    service = Service(NAME, "", (), [*environment, *_inherited()], ())
    _write(service.environment_path, service.environment_text(), 0o600)
    return service.environment_path


def _inherited() -> list[tuple[str, str]]:
    """Returns the environment variables that the agent reads.

    A name may be in lower or in upper case; lower case wins, as in the agent."""
    names = ("HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", ALLOW_HTTP)
    found = ((name, os.environ.get(name.lower()) or os.environ.get(name)) for name in names)
    return [(name, value) for name, value in found if value]


def _release_key(options: AgentOptions) -> str | None:
    """Returns the text of the release key, which is read once; None without --self-update."""
    from tidegate_client.agent.update import parse_keys

    if not options.self_update:
        return None
    if options.release_key is None:
        raise UsageError("--self-update needs --release-key FILE, the public key by which releases are signed")
    content = options.release_key.read_bytes()
    parse_keys(content)
    return content.decode("ascii", "ignore")


def service_for(context: Context, args: argparse.Namespace, options: AgentOptions) -> Service:
    """Returns the systemd service for these options. Raises UsageError if the options are not safe or not complete."""
    from tidegate_client.agent.disk import Fence
    from tidegate_client.agent.service import Service

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", args.name):
        raise UsageError(f"--name {args.name} is not valid: use 1 to 64 letters, digits, '-' and '_'")
    for name, grant in options.also.items():
        if grant.permits.refusal:
            raise UsageError(
                f"--also {name} needs permits of its own: --allow-dir {name}=DIR and --allow-user {name}=USER "
                "('*': any user)"
            )
    if options.root == Path("/") and not options.permits.directories:
        raise UsageError(
            "--root / is not safe alone: name the directories that may receive files with --allow-dir DIR (repeatable)"
        )
    config = context.config
    environment = [("TIDEGATE_API_URL", checked_address(config.required_url())), ("TIDEGATE_KEY", config.key or "")]
    if not config.key:
        raise UsageError(
            "no key: run `tidegate agent enrol`, or set TIDEGATE_KEY to a key of scope `agent` for this host"
        )
    for profile in getattr(args, "also", ()):
        other = further_login(profile)
        environment += [(further_login_variable(profile), f"{checked_address(other.required_url())} {other.key or ''}")]
    environment += _inherited()
    if options.proxy:
        environment += [("HTTPS_PROXY", options.proxy), ("HTTP_PROXY", options.proxy)]
    writable: list[Path] = []
    for permits, container_root in (
        (options.permits, options.container_root),
        *((grant.permits, grant.container_root) for grant in options.also.values()),
    ):
        with Fence(options.root, permits.directories, container_root) as fence:
            writable += [path for path in fence.writable if path not in writable]
    changes_user = any(hook.user for hook in options.hooks.values())
    service = Service(
        args.name, options.agent_id, (), environment, writable, options.drain_seconds, changes_user=changes_user
    )
    return replace(service, command=_command(args, options, service.state_dir, service.release_key_path))


def _command(args: argparse.Namespace, options: AgentOptions, state_dir: Path, release_key: Path) -> list[str]:
    from tidegate_client.agent.options import AgentOptions
    from tidegate_client.agent.update import program

    words = [*program(), "agent", "--agent-id", options.agent_id]
    words += ["--root", str(options.root), "--state-dir", str(state_dir)]
    words += _grant_words("", options.permits, options.container_root, options.limit_rate)
    words += ["--parallel", str(options.parallel), "--drain-seconds", f"{options.drain_seconds:g}"]
    if options.zone:
        words += ["--zone", options.zone]
    for profile, grant in options.also.items():
        words += ["--also", profile]
        words += _grant_words(f"{profile}=", grant.permits, grant.container_root, grant.limit_rate)
    if options.self_update:
        words += ["--self-update", "--release-key", str(release_key)]
        words += ["--allow-downgrade"] if options.allow_downgrade else []
    for name, hook in options.hooks.items():
        words += ["--allow-hook", f"{name}={hook.user}:{hook.path}" if hook.user else f"{name}={hook.path}"]
    words += [word for port in sorted(options.check_ports) for word in ("--allow-check", str(port))]
    if options.check_rate != AgentOptions.check_rate:
        words += ["--check-rate", str(options.check_rate or 0)]
    if not options.push:
        words += ["--no-push"]
    if options.wait:
        words += ["--wait", str(options.wait)]
    if options.swarm:
        for host, number in options.swarm.listen:
            words += ["--peer-listen", f"[{host}]:{number}" if ":" in host else f"{host}:{number}"]
        words += ["--site", options.swarm.site]
        words += ["--peer-upload-rate", f"{options.swarm.upload_rate:.0f}"] if options.swarm.upload_rate else []
    host, port = options.metrics or DEFAULT_METRICS.split(":")
    words += ["--metrics", f"[{host}]:{port}" if ":" in host else f"{host}:{port}"]
    return [*words, "--log-format", getattr(args, "log_format", None) or "text"]


def _grant_words(prefix: str, permits: Permits, container_root: Path | None, limit_rate: Rate) -> list[str]:
    words = [word for directory in permits.directories for word in ("--allow-dir", f"{prefix}{directory}")]
    words += [word for user in sorted(permits.users) for word in ("--allow-user", f"{prefix}{user}")]
    words += ["--container-root", f"{prefix}{container_root}"] if container_root else []
    rates = limit_rate.words() if isinstance(limit_rate, DailyRate) else [str(limit_rate)] if limit_rate else []
    return words + [word for one in rates for word in ("--limit-rate", f"{prefix}{one}")]


def _write(path: Path, text: str, mode: int) -> None:
    try:
        _replace_file(path, text, mode)
    except PermissionError as error:
        raise PermissionError(error.errno, f"{error.strerror}; run this as root", str(path)) from error


def _replace_file(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        os.fchmod(descriptor, mode)
        file.write(text)
    new.replace(path)


def _systemctl(*words: str) -> None:
    program = shutil.which("systemctl")
    if not program:
        raise UsageError(
            "this host has no systemctl: use --print, and start the agent with the service manager of this host"
        )
    done = subprocess.run([program, *words], capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise UsageError(f"systemctl {' '.join(words)} failed: {done.stderr.strip() or done.stdout.strip()}")


def uninstall(context: Context, args: argparse.Namespace) -> Exit | None:
    """Stops and removes the service. The key and the journal of the agent are kept unless --purge is given."""
    from tidegate_client.agent.service import Service

    service = Service(args.name, "", (), (), ())
    if not service.unit_path.exists():
        raise UsageError(
            f"{service.unit_path} does not exist: nothing to uninstall; give --name if the service has another name"
        )
    _systemctl("disable", "--now", service.unit_path.name)
    service.unit_path.unlink()
    _systemctl("daemon-reload")
    if args.purge:
        service.environment_path.unlink(missing_ok=True)
        service.release_key_path.unlink(missing_ok=True)
        shutil.rmtree(service.state_dir, ignore_errors=True)
    kept = "" if args.purge else f"; its key ({service.environment_path}) and journal ({service.state_dir}) are kept"
    context.output.note(f"removed {service.unit_path}{kept}")
    return None


def status(context: Context, args: argparse.Namespace) -> Exit:
    """Prints the state of the agents on this host. The exit code is 1 if an agent is unhealthy."""
    from tidegate_client.agent.service import read_health

    found = [(where, health) for where in _state_dirs(args) if (health := read_health(where))]
    if not found:
        raise UsageError(
            f"neither an agent of this user nor a readable service {args.name} was found: run this as root to "
            "see a service, or give the --state-dir that the agent was started with"
        )
    rows = [_row(where, health) for where, health in found]
    columns = (
        "agent_id",
        "state",
        "connected",
        "active",
        "untold_results",
        "last_poll_seconds",
        "free_bytes",
        "problems",
        "warnings",
    )
    context.output.table(rows, columns)
    return Exit.OK if all(row["state"] == "healthy" for row in rows) else Exit.FAILED


def _state_dirs(args: argparse.Namespace) -> list[Path]:
    from tidegate_client.agent.service import STATE_BASE

    if given := getattr(args, "state_dir", None):
        found = [given]
    else:
        own = state_path() / "agents"
        found = [STATE_BASE / args.name, *(sorted(own.iterdir()) if own.is_dir() else ())]
    # Agents of further projects (--also) have directories within the first one's.
    return [one for directory in found for one in (directory, *sorted(directory.glob("also-*")))]


def _row(where: Path, health: Health) -> dict[str, object]:
    age = time.time() - health["time"]
    state = "healthy" if health["healthy"] else "unhealthy"
    problems = list(health["problems"])
    if not _is_running(health["pid"]):
        state, problems = "stopped", []
    elif abs(age) > STALE_SECONDS:
        state = "unhealthy"
        problems.append(
            f"its health file is {age:.0f} s old; expected is 1 s: the agent hangs, or the clock was changed"
        )
    # An agent of an older version writes no warnings.
    shown = {"problems": "; ".join(problems) or None, "warnings": "; ".join(health.get("warnings", ())) or None}
    return {**health, "state": state, **shown, "state_dir": str(where)}


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
