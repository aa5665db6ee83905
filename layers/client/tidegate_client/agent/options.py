from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tidegate_client.agent.disk.permits import Permits
from tidegate_client.swarm.host import SwarmOptions


@dataclass(frozen=True, slots=True)
class AgentOptions:
    """How one agent runs. `patience` is how long a download may bring no byte before others get its worker."""

    agent_id: str
    root: Path
    state_dir: Path
    parallel: int = 4
    container_root: Path | None = None
    permits: Permits = field(default_factory=Permits)
    limit_rate: int | None = None
    proxy: str | None = None
    # Where /healthz and /metrics are served; None: nowhere.
    metrics: tuple[str, int] | None = None
    # How this host takes part in swarms; None: it neither tells the API where it is nor asks any peer.
    swarm: SwarmOptions | None = None
    # Seconds of a long poll while there is no connection; each holds a function.
    wait: int = 0
    push: bool = True
    # Whether Jobs may bring new versions of the agent itself.
    self_update: bool = False
    zone: str | None = None
    report_every: float = 2.0
    drain_seconds: float = 30.0
    patience: float = 120.0
    keep_partial_seconds: float = 24 * 3600.0
    keep_partial_bytes: int = 10 * 1024**3
