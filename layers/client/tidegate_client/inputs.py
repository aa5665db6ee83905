"""Plain dicts with a declared shape: what callers send, and what the agent reads and reports.

Import them from `tidegate_client.models`, which has the records of the API too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Union

if TYPE_CHECKING:
    from typing_extensions import NotRequired

# Data that callers store with a batch: any JSON.
Json = Union[dict[str, object], list[object], str, float, bool, None]


class Target(TypedDict):
    agent_id: str
    container_id: NotRequired[str]


class Wave(TypedDict):
    percent: int
    wait_s: NotRequired[int]
    max_failed_percent: NotRequired[int]


class Politeness(TypedDict, total=False):
    """Limits for reading a source."""

    connections: int | None
    bytes_per_s: int | None
    delay_s: float | None
    host_downloads: int | None


class Selection(TypedDict, total=False):
    """How a source is read, which of its files are taken, and their paths in the library."""

    format: str | None
    include: Sequence[str] | None
    exclude: Sequence[str] | None
    file_path: str | None
    recursive: bool | None


class SubscriptionOptions(Selection, total=False):
    timezone: str | None
    biz_id: int | None
    app_id: int | None
    credentials: str | None
    compare: str | None
    on_delete: str | None
    concurrency: int | None
    priority: int | None
    politeness: Politeness | None


class SubscriptionChanges(SubscriptionOptions, total=False):
    name: str
    source_url: str
    schedule: str | None
    paused: bool
    revision: int


class FileOptions(TypedDict, total=False):
    """Options of `files.create`. With a `source_url` the file is ingested from there."""

    file_name: str | None
    signature: str | None
    size: int | None
    multipart: bool | None
    callback: str | None
    source_url: str | None
    mirrors: Sequence[str] | None
    channel: str | None
    credentials: str | None
    priority: int | None
    politeness: Politeness | None


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
    # The release that the content is for: it is kept aside until the release is switched.
    release: NotRequired[str | None]
    # Replace the file also where a release has it.
    force: NotRequired[bool | None]
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


class GseGrant(TypedDict, total=False):
    # Patterns of agent ids, or of `agent_id/container_id`.
    targets: list[str]
    dirs: list[str]
    users: list[str]


class Quotas(TypedDict, total=False):
    stored_bytes: int | None
    queued: int | None
    running: int | None
    requests_per_s: int | None
    runner_hours_per_day: int | None
    egress_bytes_per_day: int | None
    targets_per_day: int | None
    outgoing_calls_per_day: int | None
    export_schedules: int | None
    batch_schedules: int | None
    subscriptions: int | None
    businesses: int | None
    batches: int | None
    unstarted_batches: int | None
    open_uploads: int | None
    slow_calls: int | None
    share: dict[str, int] | None
