"""Tasks, Jobs and their targets."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from tidegate_client.model import Model


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
    # Empty if there are more than 1,000 targets.
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
    # When the host puts the file in place, and when it reported the file as staged.
    activate_at: str | None
    staged_at: str | None
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
    # Hosts that have started the download.
    downloading: int
    timeout: int
    # These are present only if they are not zero. `staged` hosts have the file and wait for `activate_at`.
    waiting: int | None
    staged: int | None
    cancelled: int | None


class JobSwarm(Model):
    origin_bytes: int
    peer_bytes: int
    bad_pieces: int
    fallbacks: int
    hosts: int
    bad_peers: list[str]
    reused_bytes: int
    # Hosts by the reason why they fell back: ladder, alone, deadline, no_peers, bad_pieces, broken.
    fallback_reasons: dict[str, int] | None
    # Origin bytes as a multiple of the file's size.
    egress: float | None


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
    file_size: int | None
    counts: Counts
    # moved_bytes, mean (bytes a second) and hosts; present once hosts have reported.
    speed: dict[str, int] | None
    cancelled_at: str | None
    redrive_of: str | None
    limit_rate: int | None
    # When the hosts put the file in place; None: on arrival.
    activate_at: str | None
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
    staged_at: str | None
    # online or offline; for a host that has not reported yet.
    agent_state: str | None
    size: int | None
    speed: int | None
    start_time: str | None
    end_time: str | None
