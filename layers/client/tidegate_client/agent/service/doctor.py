"""`tidegate agent doctor`: checks whether this host can receive files."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import NamedTuple

from tidegate_client.agent.disk.directories import resolve_inside
from tidegate_client.agent.disk.owners import owner_on_host, require_chown
from tidegate_client.agent.options import AgentOptions
from tidegate_client.agent.refusals import RefusedOwner, RefusedPath
from tidegate_client.client import Client
from tidegate_client.errors import TidegateError

LEAST_FREE = 1024**3
# S3 refuses presigned URLs if the clocks differ by 15 minutes.
MOST_SKEW = 300.0


class Finding(NamedTuple):
    check: str
    ok: bool
    detail: str


def examine(client: Client, options: AgentOptions, now: Callable[[], float] = time.time) -> Iterator[Finding]:
    """Yields the findings. Changes nothing on the host, and leaves the inbox as it is."""
    yield _api(client, options.agent_id)
    yield _clock(client, now)
    yield _writable("root", options.root)
    yield _writable("state directory", options.state_dir)
    yield _space(options.root)
    if options.container_root:
        found = options.container_root.is_dir()
        yield Finding("container root", found, f"{options.container_root} is {'' if found else 'not '}a directory")
    for directory in options.permits.directories:
        yield _allowed(options.root, directory)
    yield from map(_user, sorted(options.permits.users))
    if not options.permits.users:
        yield _any_user()


def _api(client: Client, agent_id: str) -> Finding:
    try:
        waiting = client.agents.transfers(agent_id, wait=0)
    except TidegateError as error:
        return Finding("API", False, str(error))
    return Finding("API", True, f"{client.http.api_url} accepts the key of {agent_id}; {len(waiting)} transfers wait")


def _clock(client: Client, now: Callable[[], float]) -> Finding:
    try:
        reply = client.http.send("GET", "/healthz")
        api_time = parsedate_to_datetime(reply.headers["Date"]).timestamp()
    except (TidegateError, KeyError, ValueError) as error:
        return Finding("clock", False, f"the API's clock cannot be read: {error}")
    skew = now() - api_time
    ok = abs(skew) <= MOST_SKEW
    advice = "" if ok else "; synchronise it with NTP: S3 refuses URLs if the clocks differ by 15 minutes"
    return Finding("clock", ok, f"differs by {skew:+.0f} s from the API's{advice}")


def _writable(name: str, directory: Path) -> Finding:
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Finding(name, True, f"{directory} can be written")
    except OSError as error:
        return Finding(name, False, f"{directory} cannot be written: {error.strerror}")


def _space(root: Path) -> Finding:
    free = shutil.disk_usage(root).free
    ok = free >= LEAST_FREE
    advice = "" if ok else f"; make room for at least {LEAST_FREE / 1024**3:.0f} GiB"
    return Finding("free space", ok, f"{free / 1024**3:.1f} GiB free at {root}{advice}")


def _allowed(root: Path, directory: str) -> Finding:
    try:
        real = resolve_inside(root, directory)
    except RefusedPath as error:
        return Finding("allowed directory", False, str(error))
    return Finding(
        "allowed directory",
        real.is_dir(),
        f"{directory} is {real}" + ("" if real.is_dir() else ", which does not exist; create it"),
    )


def _any_user() -> Finding:
    try:
        require_chown((os.geteuid() + 1, 0))
    except RefusedOwner as error:
        return Finding("owners", False, str(error))
    return Finding("owners", True, "files can be given to any user of this host")


def _user(user: str) -> Finding:
    try:
        require_chown(owner_on_host(user))
    except RefusedOwner as error:
        return Finding("owners", False, str(error))
    return Finding("owners", True, f"files can be given to {user}")
