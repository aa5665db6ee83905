"""The shapes of the API's answers. They are dicts, so a field added by the server is simply there."""

from __future__ import annotations

from typing import Any, Generic, NotRequired, TypedDict, TypeVar

T = TypeVar("T")


class Page(TypedDict, Generic[T]):
    items: list[T]
    next_cursor: str | None


class Project(TypedDict):
    project_id: str
    name: str
    group: NotRequired[str]


class Quotas(TypedDict, total=False):
    stored_bytes: int | None
    queued: int | None
    requests_per_s: int | None
    share: dict[str, int] | None


class ProjectDetail(Project):
    allow_private_urls: bool
    quotas: Quotas
    usage: dict[str, Any]


class Key(TypedDict):
    """`callback_secret` comes with keys of scope write."""

    key_id: str
    key: str
    callback_secret: NotRequired[str | None]


class KeyRecord(TypedDict):
    key_id: str
    name: str | None
    scopes: list[str]
    agent_id: str | None
    created_at: str | None
    created_by: str | None
    expires_at: str | None
    last_used_at: str | None
    state: str


class PartsPlan(TypedDict):
    part_size: int
    parts: NotRequired[int]


class FileCreated(TypedDict):
    file_id: str
    upload: NotRequired[PartsPlan]
    upload_url: NotRequired[str]
    upload_headers: NotRequired[dict[str, str]]
    expires_at: NotRequired[str]
    request_id: NotRequired[str]


class File(TypedDict):
    file_id: str
    biz_id: int
    app_id: int
    file_path: str
    file_name: str
    signature: NotRequired[str]
    size: NotRequired[int]
    state: str
    created_at: str
    request_id: NotRequired[str]
    error: NotRequired[str]


class Link(TypedDict):
    url: str
    expires_at: str


class Target(TypedDict):
    agent_id: str
    container_id: NotRequired[str]


class Submitted(TypedDict):
    task_id: str
    job_id: str
    status: str
    window_closes_at: str


class TaskRef(TypedDict):
    task_id: str
    agent_id: str
    container_id: str


class BatchSubmitted(TypedDict):
    job_id: str
    tasks: list[TaskRef]
    window_closes_at: str


class Task(TypedDict):
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
    error_code: NotRequired[int | None]
    error_msg: NotRequired[str | None]
    create_time: str
    update_time: str


class Counts(TypedDict):
    total: int
    success: int
    failed: int
    downloading: int
    timeout: int


class Job(TypedDict):
    job_id: str
    key: NotRequired[str]
    status: str
    file_path: str
    file_name: str
    file_signature: str
    target_file_dir: str
    target_user: str
    transfer_id: NotRequired[str | None]
    create_time: str
    execute_time: NotRequired[str | None]
    finish_time: NotRequired[str | None]
    counts: Counts
    error_msg: NotRequired[str | None]


class JobTarget(TypedDict):
    agent_id: str
    container_id: str
    status: str
    error_code: NotRequired[int | None]
    error_msg: NotRequired[str | None]
    progress: NotRequired[int]
    size: NotRequired[int | None]
    speed: NotRequired[int | None]
    start_time: NotRequired[str | None]
    end_time: NotRequired[str | None]


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
    job_id: NotRequired[str | None]
    # Rises with every window for one path on one host.
    sequence: NotRequired[int | None]
    # Octal permissions, as in "0640".
    mode: NotRequired[str | None]


class TransferResult(TypedDict):
    transfer_id: str
    container_id: str
    error_code: int
    error_msg: NotRequired[str]
    progress: NotRequired[int]
    # Bytes that this transfer moved, bytes a second, and times by the host's clock.
    size: NotRequired[int]
    speed: NotRequired[int]
    start_time: NotRequired[str]
    end_time: NotRequired[str]


class ExportProgress(TypedDict):
    rows: int
    total: NotRequired[int | None]
    percent: NotRequired[float | None]


class Export(TypedDict):
    task_id: str
    name: str
    type: str
    status: str
    progress: ExportProgress
    file_name: NotRequired[str | None]
    size: NotRequired[int | None]
    attempts: int
    failed_reason: NotRequired[str | None]
    create_time: str
    finish_time: NotRequired[str | None]


class BatchProgress(TypedDict):
    processed: int
    total: NotRequired[int | None]
    percent: NotRequired[float | None]
    errors: int
    rate_now: float
    offset: NotRequired[int]


class Batch(TypedDict):
    batch_id: str
    biz_id: str
    name: str
    status: str
    progress: BatchProgress
    stop_reason: NotRequired[str | None]


class Business(TypedDict):
    biz_id: str
    name: str
    process_url: str


class Request(TypedDict):
    request_id: str
    type: str
    status: str
    channel: str
    priority: int
    subscription_id: NotRequired[str | None]
    attempts: int
    last_wait_reason: NotRequired[str | None]
    error: NotRequired[dict[str, Any] | None]
    create_time: str
    start_time: NotRequired[str | None]
    finish_time: NotRequired[str | None]


class Subscription(TypedDict):
    subscription_id: str
    name: str
    source_url: str
    schedule: NotRequired[str | None]
    status: NotRequired[str]
    last_scan: NotRequired[str | None]


class Ticket(TypedDict):
    ticket: str
    expires_at: str
    ws_url: NotRequired[str]
