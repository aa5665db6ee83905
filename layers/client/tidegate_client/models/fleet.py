"""Hosts with an agent, and what an agent reads and reports."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from tidegate_client.model import Model


class SwarmFigures(TypedDict):
    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fell_back: str
    bad_peers: list[str]
    # Bytes taken from an older version of the file; only if the transfer had block hashes.
    reused_bytes: NotRequired[int]


class Presence(TypedDict):
    listen: list[str]
    site: str
    zone: str
    pin: str
    upload_mbit: float | None
    reached: bool


class AgentPeers(Model):
    site: str
    listen: list[str]
    reached: bool
    upload_mbit: float | None


class LastJob(Model):
    job_id: str
    key: str
    file_name: str
    # This host's status in the Job; None once the Job's records have expired.
    status: str | None
    at: str


class Agent(Model):
    agent_id: str
    groups: list[str]
    labels: dict[str, str]
    state: str
    zone: str | None
    version: str | None
    last_seen: str | None
    free_bytes: int | None
    # The newest Job whose transfer this host has fetched.
    last_job: LastJob | None
    # Its open transfers; only in `agents.get`, not in lists.
    current: list[dict[str, object]] | None
    # How it takes part in swarms; only in `agents.get`.
    peers: AgentPeers | None


class Enrolment(Model):
    enrolment_id: str
    token: str
    expires_at: str


class Enrolled(Model):
    project_id: str
    agent_id: str
    key_id: str
    key: str


class Transfer(TypedDict):
    transfer_id: str
    container_id: str
    url: str
    expires_at: str
    file_name: str
    target_file_dir: str
    target_user: str
    signature: str
    size: NotRequired[int | None]
    swarm: NotRequired[dict[str, Any] | None]
    job_id: NotRequired[str | None]
    # Increases with every window for one path on one host.
    sequence: NotRequired[int | None]
    # Octal permissions, as in "0640".
    mode: NotRequired[str | None]
    # Bytes a second that this host may use for the Job, beside its own limit.
    limit_rate: NotRequired[int | None]
    # Seconds over which the hosts of a large Job spread their reports.
    spread_s: NotRequired[int | None]
    # When to put the file in place, when the Job ends, and when the agent reported the file as staged.
    activate_at: NotRequired[str | None]
    activate_until: NotRequired[str | None]
    staged_at: NotRequired[str | None]


class TransferResult(TypedDict):
    transfer_id: str
    container_id: str
    error_code: int
    error_msg: NotRequired[str]
    progress: NotRequired[int]
    swarm: NotRequired[SwarmFigures]
    # Bytes downloaded, bytes a second, and times by the host's clock.
    size: NotRequired[int]
    speed: NotRequired[int]
    start_time: NotRequired[str]
    end_time: NotRequired[str]
    # With error_code 115: the host has the whole file, and waits for `activate_at`.
    staged_at: NotRequired[str]
