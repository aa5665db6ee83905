"""The options with which an agent is started."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate_client.agent.disk import Permits
from tidegate_client.rates import Rate
from tidegate_client.swarm.host import SwarmOptions

if TYPE_CHECKING:
    from tidegate_client.agent.releases import Hook


@dataclass(frozen=True)
class Grant:
    """The permits of one more project that the agent serves (`--also`). The project may do only what is listed here.

    `limit_rate` applies to this project's downloads, in addition to the host's own limit."""

    permits: Permits
    container_root: Path | None = None
    limit_rate: Rate = None


@dataclass(frozen=True)
class AgentOptions:
    """The options of one agent.

    `patience`: after this many seconds without a byte, a download is postponed and its worker takes another
    transfer."""

    agent_id: str
    root: Path
    state_dir: Path
    parallel: int = 4
    container_root: Path | None = None
    permits: Permits = field(default_factory=Permits)
    # The host's limit, for all projects together.
    limit_rate: Rate = None
    # The limit of this project, if it differs from the host's.
    own_limit_rate: Rate = None
    # Further logins by name.
    also: Mapping[str, Grant] = field(default_factory=dict)
    proxy: str | None = None
    # Host and port of /healthz and /metrics; None: they are not served.
    metrics: tuple[str, int] | None = None
    # How this host takes part in swarms; None: not at all.
    swarm: SwarmOptions | None = None
    # Seconds of a long poll while there is no WebSocket. Each long poll occupies a Lambda function.
    wait: int = 0
    push: bool = True
    # Whether Jobs may install new versions of the agent itself.
    self_update: bool = False
    # The file with the public keys; one of them must have signed a new version.
    release_key: Path | None = None
    allow_downgrade: bool = False
    # Programs that releases may run on this host, by name, and loopback ports on which they may check its health.
    hooks: Mapping[str, Hook] = field(default_factory=dict)
    check_ports: frozenset[int] = frozenset()
    # Bytes a second at which files of releases are read again to find changes. None: only files whose metadata changed.
    check_rate: int | None = 1024**2
    zone: str | None = None
    report_every: float = 2.0
    drain_seconds: float = 30.0
    patience: float = 120.0
    keep_partial_seconds: float = 24 * 3600.0
    keep_partial_bytes: int = 10 * 1024**3


def no_permits(profile: str) -> Permits:
    """Returns permits that refuse everything, for a login of `--also` without --allow-dir and --allow-user."""
    return Permits(
        refusal=f"this host grants the project of the login {profile!r} nothing: start its agent with "
        f"--allow-dir {profile}=DIR and --allow-user {profile}=USER"
    )
