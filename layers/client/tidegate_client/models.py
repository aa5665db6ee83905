"""The shapes of the API's answers: fields are attributes (`export.status`), and items too (`export["status"]`).

A field that the server leaves out is None. One that a newer server adds is there as an item. What callers send, and
what the agent reads, are plain dicts with a declared shape.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NotRequired, TypedDict

from tidegate_client.model import Model, Page

__all__ = ["Model", "Page"]

# What callers of the API put there themselves, in whatever shape.
Json = dict[str, object] | list[object] | str | float | bool | None


class Project(Model):
    project_id: str
    name: str
    group: str | None


class Quotas(TypedDict, total=False):
    stored_bytes: int | None
    queued: int | None
    requests_per_s: int | None
    share: dict[str, int] | None


class ProjectDetail(Project):
    allow_private_urls: bool
    swarm: str
    deliver_to: list[str]
    read_from: list[str]
    quotas: Quotas
    usage: Model


class Key(Model):
    """`callback_secret` comes with keys of scope write."""

    key_id: str
    key: str
    callback_secret: str | None


class KeyRecord(Model):
    key_id: str
    name: str | None
    scopes: list[str]
    agent_id: str | None
    created_at: str | None
    created_by: str | None
    expires_at: str | None
    last_used_at: str | None
    state: str


class PartsPlan(Model):
    part_size: int
    parts: int | None


class FileCreated(Model):
    file_id: str
    upload: PartsPlan | None
    upload_url: str | None
    upload_headers: dict[str, str] | None
    expires_at: str | None
    request_id: str | None


class File(Model):
    file_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    signature: str | None
    size: int | None
    state: str
    created_at: str
    request_id: str | None
    error: str | None


class Link(Model):
    url: str
    expires_at: str


class Target(TypedDict):
    agent_id: str
    container_id: NotRequired[str]


class Submitted(Model):
    task_id: str
    job_id: str
    status: str
    window_closes_at: str


class TaskRef(Model):
    task_id: str
    agent_id: str
    container_id: str


class BatchSubmitted(Model):
    job_id: str
    # Empty above 1,000 targets.
    tasks: list[TaskRef]
    targets: int | None
    window_closes_at: str


class Task(Model):
    task_id: str
    job_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    file_signature: str
    target_agent_id: str
    target_container_id: str
    status: str
    error_code: int | None
    error_msg: str | None
    create_time: str
    update_time: str


class Wave(TypedDict):
    percent: int
    wait_s: NotRequired[int]
    max_failed_percent: NotRequired[int]
    targets: NotRequired[int | None]


class Redriven(Model):
    job_id: str
    key: str
    targets: int


class Counts(Model):
    total: int
    success: int
    failed: int
    # Hosts that have begun.
    downloading: int
    timeout: int
    # These two only if there are any.
    waiting: int | None
    cancelled: int | None


class JobSwarm(Model):
    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fallbacks: int
    hosts: int
    bad_peers: list[str]
    reused_bytes: int


class JobMap(Model):
    names: list[str]
    states: str
    next_shard: int | None


class Job(Model):
    job_id: str
    key: str | None
    status: str
    file_path: str
    file_name: str
    file_signature: str
    target_file_dir: str
    target_user: str
    transfer_id: str | None
    create_time: str
    execute_time: str | None
    finish_time: str | None
    counts: Counts
    # moved_bytes, mean (bytes a second) and hosts, once hosts have told.
    speed: dict[str, int] | None
    cancelled_at: str | None
    redrive_of: str | None
    limit_rate: int | None
    waves: list[Wave] | None
    wave: int | None
    error_msg: str | None
    swarm: JobSwarm | None


class JobTarget(Model):
    agent_id: str
    container_id: str
    status: str
    error_code: int | None
    error_msg: str | None
    progress: int | None
    # Of a host that has not reported yet: online or offline.
    agent_state: str | None
    size: int | None
    speed: int | None
    start_time: str | None
    end_time: str | None


class SwarmFigures(TypedDict):
    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fell_back: str
    bad_peers: list[str]
    # Bytes found in an older version of the file; told only to an API that speaks of blocks.
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
    # Of this host in the Job; None once the Job's records have expired.
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
    # The newest Job that it has fetched its transfer of.
    last_job: LastJob | None
    # What it has to fetch; on one agent, not in lists.
    current: list[dict[str, object]] | None
    # Its part in swarms; likewise.
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
    # Rises with every window for one path on one host.
    sequence: NotRequired[int | None]
    # Octal permissions, as in "0640".
    mode: NotRequired[str | None]
    # Bytes a second that this host may use for the Job, beside its own limit.
    limit_rate: NotRequired[int | None]
    # Over how many seconds to spread reports: the Job has many hosts.
    spread_s: NotRequired[int | None]


class TransferResult(TypedDict):
    transfer_id: str
    container_id: str
    error_code: int
    error_msg: NotRequired[str]
    progress: NotRequired[int]
    swarm: NotRequired[SwarmFigures]
    # Bytes that this transfer moved, bytes a second, and times by the host's clock.
    size: NotRequired[int]
    speed: NotRequired[int]
    start_time: NotRequired[str]
    end_time: NotRequired[str]


class ExportProgress(Model):
    rows: int
    total: int | None
    percent: float | None


class Export(Model):
    task_id: str
    name: str
    type: str
    status: str
    progress: ExportProgress
    file_name: str | None
    size: int | None
    attempts: int
    warnings: list[str] | None
    deliveries: list[dict[str, str]] | None
    failed_reason: str | None
    create_time: str
    finish_time: str | None


class ExportSchedule(Model):
    """A recurring export; times are UTC."""

    schedule_id: str
    name: str
    type: str
    schedule: str
    status: str
    next_run: str | None
    last_task_id: str | None
    created_at: str
    created_by: str


class ExportRun(Model):
    """One moment of a recurring export: `started`, or `skipped` with the reason."""

    due: str
    state: str
    task_id: str | None
    reason: str | None
    task: Export | None


class BatchProgress(Model):
    processed: int
    total: int | None
    percent: float | None
    errors: int
    succeeded: int
    failed: int
    abandoned: int
    failed_calls: int
    retrying: int
    awaiting: int
    rate_now: float
    offset: int | None
    eta: str | None


class Batch(Model):
    batch_id: str
    biz_id: str
    name: str
    status: str
    progress: BatchProgress
    stop_reason: str | None
    redrive_of: str | None


class BatchSchedule(Model):
    """A recurring batch; times are UTC."""

    schedule_id: str
    schedule: str
    enabled: bool
    biz_id: str
    name: str
    next_run: str | None
    last_batch_id: str | None
    last_error: str | None
    created_at: str


class BatchItem(Model):
    index: int
    state: str
    attempts: int
    answer: dict[str, object]
    job_data: Json
    batch_data: Json


class DryRunItem(Model):
    """`answer` is what the business said, or why there is no answer."""

    index: int
    answer: dict[str, object]
    job_data: Json


class Business(Model):
    biz_id: str
    name: str
    process_url: str


class Problem(Model):
    code: str
    detail: str


class Bulk(Model):
    changed: int
    skipped: int
    next_cursor: str | None


class LogLine(Model):
    """One line of a request's execution log; `stack` is for keys of scope admin."""

    at: str
    attempt: int
    event: str
    detail: str | None
    seconds: float | None
    code: str | None
    stack: str | None


class Request(Model):
    request_id: str
    type: str
    status: str
    channel: str
    priority: int
    subscription_id: str | None
    attempts: int
    last_wait_reason: str | None
    error: Problem | None
    result: Model | None
    progress: Model | None
    create_time: str
    start_time: str | None
    finish_time: str | None


class Politeness(TypedDict, total=False):
    """How gently a source is read."""

    connections: int | None
    bytes_per_s: int | None
    delay_s: float | None
    host_downloads: int | None


class Selection(TypedDict, total=False):
    """How a source is read, and which of its files are taken under which path."""

    format: str | None
    include: Sequence[str] | None
    exclude: Sequence[str] | None
    file_path: str | None


class SubscriptionOptions(Selection, total=False):
    biz_id: int | None
    app_id: int | None
    credentials: str | None
    concurrency: int | None
    priority: int | None
    politeness: Politeness | None


class SubscriptionChanges(SubscriptionOptions, total=False):
    name: str
    source_url: str
    schedule: str | None


class FileOptions(TypedDict, total=False):
    """Of `files.create`; with a `source_url` the file is ingested from there."""

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


class Subscription(Model):
    subscription_id: str
    name: str
    source_url: str
    schedule: str | None
    biz_id: int
    app_id: int
    credentials: str | None
    format: str | None
    include: list[str] | None
    exclude: list[str] | None
    file_path: str | None
    priority: int | None
    # connections, bytes_per_s, delay_s: how gently its files are fetched.
    concurrency: int
    politeness: Politeness | None
    status: str | None
    create_time: str
    last_scan: str | None
    next_run: str | None


class Credential(Model):
    name: str
    origins: list[str]
    headers: list[str]
    updated_at: str
    updated_by: str


class PreviewEntry(Model):
    url: str
    file_path: str
    file_name: str
    size: int | None
    signature: str | None


class Preview(Model):
    format: str
    listed: int
    chosen: int
    items_: list[PreviewEntry]


class Ticket(Model):
    ticket: str
    expires_at: str
    ws_url: str | None
