"""The options of one agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidegate_client.agent.disk.permits import Permits
from tidegate_client.swarm.host import SwarmOptions


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """`patience`: seconds without a byte after which a download is postponed and its worker takes another."""

    agent_id: str
    root: Path
    state_dir: Path
    parallel: int = 4
    container_root: Path | None = None
    permits: Permits = field(default_factory=Permits)
    limit_rate: int | None = None
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
    zone: str | None = None
    report_every: float = 2.0
    drain_seconds: float = 30.0
    patience: float = 120.0
    keep_partial_seconds: float = 24 * 3600.0
    keep_partial_bytes: int = 10 * 1024**3
