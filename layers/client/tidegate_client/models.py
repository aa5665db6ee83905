"""Records of the API as the SDK returns them. Made by `python -m local.sdk_models write`, not by hand.

Fields are attributes (`export.status`) and items (`export["status"]`). A field that the server leaves out is None; one
that a newer server adds is there as an item. What callers send, and what the agent reads, are plain dicts with a
declared shape: tidegate_client/inputs.py."""

from __future__ import annotations

from typing import Optional, Union

from tidegate_client.inputs import (
    FileOptions,
    GseGrant,
    Json,
    Politeness,
    Presence,
    Quotas,
    Selection,
    SubscriptionChanges,
    SubscriptionOptions,
    SwarmFigures,
    Target,
    Transfer,
    TransferResult,
    Wave,
)
from tidegate_client.model import Model, Page

__all__ = [
    "Agent",
    "AgentPeers",
    "Batch",
    "BatchBackoff",
    "BatchItem",
    "BatchProgress",
    "BatchRun",
    "BatchSchedule",
    "BatchSource",
    "BatchSubmitted",
    "Bulk",
    "Business",
    "Counts",
    "Credential",
    "CurrentTransfer",
    "DryRunItem",
    "Enrolled",
    "Enrolment",
    "Export",
    "ExportDelivery",
    "ExportEmail",
    "ExportProgress",
    "ExportRun",
    "ExportSchedule",
    "File",
    "FileCreated",
    "FileOptions",
    "GseGrant",
    "HostFile",
    "Job",
    "JobMap",
    "JobSpeed",
    "JobSwarm",
    "JobTarget",
    "JobWave",
    "Json",
    "Key",
    "KeyRecord",
    "LastJob",
    "Link",
    "LogLine",
    "Model",
    "Page",
    "PartsPlan",
    "Placeholders",
    "Politeness",
    "Presence",
    "Preview",
    "PreviewEntry",
    "Problem",
    "Project",
    "ProjectAwsRole",
    "ProjectDetail",
    "ProjectGse",
    "ProjectQuotas",
    "Quotas",
    "Redriven",
    "Release",
    "ReleaseCounts",
    "ReleaseFile",
    "ReleaseHealth",
    "ReleaseHost",
    "ReleaseTargets",
    "ReleaseWave",
    "Request",
    "Revision",
    "RunResult",
    "ScanRun",
    "Selection",
    "SignInTicket",
    "SkippedTarget",
    "Submitted",
    "Subscription",
    "SubscriptionChanges",
    "SubscriptionOptions",
    "SwarmFigures",
    "Target",
    "Task",
    "TaskRef",
    "TemplateCell",
    "TemplateList",
    "TemplateSheet",
    "Ticket",
    "Transfer",
    "TransferResult",
    "Wave",
]


class Submitted(Model):
    """Returned by `POST /v1/downloads`."""

    # id of the Task: GET /v1/downloads/{task}
    task_id: str
    # id of the Job: one file, one window, all its targets
    job_id: str
    # `Pending`: the window is open until window_closes_at
    status: str
    # when the window closes and the Job is sent, ISO 8601 UTC
    window_closes_at: str


class BatchSubmitted(Model):
    """Returned by `POST /v1/downloads/batch`."""

    # id of the Job: one file, one window, all its targets
    job_id: str
    # one Task for each target; empty for more than 1,000 targets: list them with GET /v1/downloads?job_id=
    tasks: list[TaskRef]
    # number of targets
    targets: int
    # when the window closes and the Job is sent, ISO 8601 UTC
    window_closes_at: str


class TaskRef(Model):
    """Returned by `POST /v1/downloads/batch`, in `tasks`."""

    # id of the Task
    task_id: str
    # id of the host
    agent_id: str
    # a container on the host; empty for the host itself
    container_id: str


class Task(Model):
    """Returned by `GET /v1/downloads/{task}`."""

    # bytes that the host downloaded
    size: Optional[int]
    # bytes per second
    speed: Optional[int]
    # when the host started, by its clock
    start_time: Optional[str]
    # when the host finished, by its clock
    end_time: Optional[str]
    # 0 success, 115 in progress, any other value failure
    error_code: Optional[int]
    # the reason of a failure, for people
    error_msg: Optional[str]
    # progress in percent
    progress: Optional[int]
    # since when the host has the file and waits for activate_at
    staged_at: Optional[str]
    # true for a cancelled target whose host had put the file in place; absent otherwise
    arrived: Optional[bool]
    # a number of your choice for a business; recorded, and a filter of lists
    biz_id: int
    # a number of your choice for an application; recorded, and a filter of lists
    app_id: int
    # path of the file in the library
    file_path: str
    # name of the file
    file_name: str
    # SHA-256 of the content, 64 hexadecimal digits
    file_signature: str
    # owner of the file on the host
    target_user: str
    # absolute path of the directory on the host
    target_file_dir: str
    # permissions of the file on the host in octal, such as `0640`
    mode: Optional[str]
    # limit in bytes per second on each host, for this Job
    limit_rate: Optional[int]
    # the key of the Job whose targets this Job retries
    redrive_of: Optional[str]
    # hosts download the file at once and put it in place at this time by their clocks, all together (RFC 3339, at
    # most 7 days ahead); not with waves
    activate_at: Optional[str]
    # the release whose content this is
    release: Optional[str]
    # replace the file also where a release has it, which then shows it as drift
    force: Optional[bool]
    # id of the Job: one file, one window, all its targets
    job_id: str
    # when it was created, ISO 8601 UTC
    create_time: str
    # when it last changed, ISO 8601 UTC
    update_time: str
    # id of the Task: one target gets one file
    task_id: str
    # id of the host that gets the file
    target_agent_id: str
    # a container on that host; empty for the host itself
    target_container_id: str
    # the note of its Job
    note: Optional[str]
    # `Pending` (its window is open), `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded`
    status: str


class Job(Model):
    """Returned by `GET /v1/jobs/{job}`."""

    # id of the Job: one file, one window, all its targets
    job_id: str
    # a short form of the id, for use in paths
    key: str
    # a number of your choice for a business; recorded, and a filter of lists
    biz_id: int
    # a number of your choice for an application; recorded, and a filter of lists
    app_id: int
    # path of the file in the library
    file_path: str
    # name of the file
    file_name: str
    # SHA-256 of the content, 64 hexadecimal digits
    file_signature: str
    # owner of the file on the host
    target_user: str
    # absolute path of the directory on the host
    target_file_dir: str
    # permissions of the file on the host in octal, such as `0640`
    mode: Optional[str]
    # limit in bytes per second on each host, for this Job
    limit_rate: Optional[int]
    # the key of the Job whose targets this Job retries
    redrive_of: Optional[str]
    # hosts download the file at once and put it in place at this time by their clocks, all together (RFC 3339, at
    # most 7 days ahead); not with waves
    activate_at: Optional[str]
    # the release whose content this is
    release: Optional[str]
    # replace the file also where a release has it, which then shows it as drift
    force: Optional[bool]
    # when the window closes and the Job is sent, ISO 8601 UTC
    window_closes_at: str
    # when it was created, ISO 8601 UTC
    create_time: str
    # `Pending` (its window is open), `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded` (no
    # target failed, and none got the file, because all have newer content)
    status: str
    # when the transfer began, ISO 8601 UTC
    execute_time: Optional[str]
    # when it ended, ISO 8601 UTC
    finish_time: Optional[str]
    # id of the transfer; with GSE the ids of all its tasks for this Job, separated by commas
    transfer_id: Optional[str]
    # size of the file in bytes; absent until it is sent
    file_size: Optional[int]
    # why it failed
    error: Optional[Problem]
    # when it was cancelled, ISO 8601 UTC
    cancelled_at: Optional[str]
    # a remark for people, of the first request that has one; the console finds it
    note: Optional[str]
    # number of targets in each state
    counts: Counts
    # where the bytes came from; absent until hosts of a swarm have reported
    swarm: Optional[JobSwarm]
    # how fast the transfer was; absent until hosts have reported
    speed: Optional[JobSpeed]
    # the stages in which the Job is sent
    waves: Optional[list[JobWave]]
    # number of the current wave, from 1
    wave: Optional[int]


class Counts(Model):
    """Returned by `GET /v1/jobs/{job}`, in `counts`."""

    # all targets of the Job
    total: int
    # targets that have the file
    success: int
    # targets that failed
    failed: int
    # targets that have begun
    downloading: int
    # targets that did not finish in time
    timeout: int
    # targets that have not begun; absent if there are none
    waiting: Optional[int]
    # targets that have the file and wait for activate_at; absent if there are none
    staged: Optional[int]
    # cancelled targets; absent if there are none
    cancelled: Optional[int]
    # targets whose host has newer content for the path, neither successes nor failures; absent if there are none
    superseded: Optional[int]


class JobSwarm(Model):
    """Where the bytes of the file came from: the sum over hosts that took part in a swarm and have ended. Returned
    by `GET /v1/jobs/{job}`, in `swarm`."""

    # bytes that came from S3
    origin_bytes: int
    # bytes that came from other hosts
    peer_bytes: int
    # pieces that were rejected because their SHA-256 was wrong
    bad_pieces: int
    # hosts that downloaded the rest from S3, because peers did not send it
    fallbacks: int
    # number of hosts that reported figures
    hosts: int
    # peers that sent wrong pieces
    bad_peers: list[str]
    # bytes that hosts copied from an older version of the file instead of downloading them
    reused_bytes: int
    # number of hosts by the reason why they fell back to S3: see `fell_back`
    fallback_reasons: dict[str, int]
    # bytes sent by S3 divided by the size of the file (origin_bytes ÷ file_size)
    egress: Optional[float]


class JobSpeed(Model):
    """Totals of the hosts that reported figures. Returned by `GET /v1/jobs/{job}`, in `speed`."""

    # bytes that the hosts downloaded in total
    moved_bytes: int
    # mean speed of the hosts in bytes per second
    mean: int
    # number of hosts that reported figures
    hosts: int


class JobWave(Model):
    """Returned by `GET /v1/jobs/{job}`, in `waves`."""

    # the targets to which the Job was sent after this wave, in percent of all
    percent: int
    # seconds from the start of this wave to the earliest start of the next one
    wait_s: int
    # the most targets of the wave that may fail, in percent, for the Job to continue
    max_failed_percent: int
    # number of targets in this wave
    targets: Optional[int]


class JobTarget(Model):
    """Returned by `GET /v1/jobs/{job}/targets`, in `items`."""

    # bytes that the host downloaded
    size: Optional[int]
    # bytes per second
    speed: Optional[int]
    # when the host started, by its clock
    start_time: Optional[str]
    # when the host finished, by its clock
    end_time: Optional[str]
    # 0 success, 115 in progress, any other value failure
    error_code: Optional[int]
    # the reason of a failure, for people
    error_msg: Optional[str]
    # progress in percent
    progress: Optional[int]
    # since when the host has the file and waits for activate_at
    staged_at: Optional[str]
    # true for a cancelled target whose host had put the file in place; absent otherwise
    arrived: Optional[bool]
    # id of the host
    agent_id: str
    # a container on the host; empty for the host itself
    container_id: str
    # `Pending`, `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded` (the host has newer content
    # for the path)
    status: str
    # whether the host is connected: `online` or `offline`
    agent_state: Optional[str]


class JobMap(Model):
    """The state of thousands of targets in a compact form. Returned by `GET /v1/jobs/{job}/map`."""

    # the targets: agent_id, and after a space the container if there is one
    names: list[str]
    # one letter for each name: W waiting, R running, S success, F failed, T timeout, C cancelled, N superseded by
    # newer content
    states: str
    # pass it as `shard` to continue; absent at the end
    next_shard: Optional[int]


class Redriven(Model):
    """Returned by `POST /v1/jobs/{job}/redrive`."""

    # id of the new Job
    job_id: str
    # a short form of the new Job's id, for use in paths
    key: str
    # how many targets the new Job has
    targets: int
    # targets that were left out, because a newer Job sent content to their path; at most 1,000
    skipped: list[SkippedTarget]
    # how many targets were left out
    skipped_targets: int


class SkippedTarget(Model):
    """Returned by `POST /v1/jobs/{job}/redrive`, in `skipped`."""

    # id of the host
    agent_id: str
    # a container on the host; empty for the host itself
    container_id: str
    # the key of the newest Job that sent content to this path since
    newer_job: str


class Agent(Model):
    """A host. Only GET /v1/agents/{agent_id} returns `current` and `peers`. Returned by `GET /v1/agents/{agent_id}`."""

    # id of the host
    agent_id: str
    # groups of the host
    groups: list[str]
    # labels of the host, as `{name: value}`
    labels: dict[str, str]
    # rack or availability zone; peers of the same zone are preferred
    zone: Optional[str]
    # version of the agent
    version: Optional[str]
    # `online` or `offline`
    state: str
    # when the host last called the API, ISO 8601 UTC
    last_seen: Optional[str]
    # free space on the host's target disk, in bytes
    free_bytes: Optional[int]
    # hooks and loopback ports that the host's operator allows releases, such as `reload,:8080`; `-`: none
    allows: Optional[str]
    # when a second host with this id was refused, within the last 15 minutes; else null
    duplicate_at: Optional[str]
    # the newest Job for which the host asked for its transfer, and its result there
    last_job: Optional[LastJob]
    # the transfers that the host is working on
    current: Optional[list[CurrentTransfer]]
    # the host's part in swarms; absent if it takes part in none
    peers: Optional[AgentPeers]


class AgentPeers(Model):
    """The agent's part in swarms, as it announced it within the last two hours. Returned by `GET
    /v1/agents/{agent_id}`, in `peers`."""

    # the data centre; a swarm stays within one site
    site: str
    # addresses `host:port` at which peers can reach the host; empty if it only downloads
    listen: list[str]
    # false if no peer could connect to the host in its last two swarms: then peers are not sent to it
    reached: bool
    # limit for sending to peers, in megabits per second
    upload_mbit: Optional[float]


class LastJob(Model):
    """The newest Job for which the host asked for its transfer; `at` is when it last did. Returned by `GET
    /v1/agents/{agent_id}`, in `last_job`."""

    # id of the Job: one file, one window, all its targets
    job_id: str
    # a short form of the Job's id, for use in paths
    key: str
    # name of the file
    file_name: str
    # the host's status in the Job; null after the Job's records have expired
    status: Optional[str]
    # when, ISO 8601 UTC
    at: str


class CurrentTransfer(Model):
    """Returned by `GET /v1/agents/{agent_id}`, in `current`."""

    # id of the transfer
    transfer_id: str
    # id of the Job: one file, one window, all its targets
    job_id: Optional[str]
    # name of the file
    file_name: str
    # a container on the host; empty for the host itself
    container_id: str
    # progress in percent
    progress: Optional[int]


class SignInTicket(Model):
    """Returned by `POST /v1/sign-in-tickets`."""

    # open the console with it: `/#ticket=…`; it works once, for a minute
    ticket: str
    # until when it is valid, ISO 8601 UTC
    expires_at: str


class HostFile(Model):
    """A file that a release has put on the host, as the host reported it. Returned by `GET
    /v1/agents/{agent_id}/files`, in `items`."""

    # path of the file on the host; of an archive, the symlink to what was unpacked
    path: str
    # SHA-256 of the content, 64 hexadecimal digits; of an archive, of the archive
    sha256: str
    # the release that has put it in place
    release: str
    # the revision that it belongs to
    revision: int
    # when the host last compared it with what it should be, ISO 8601 UTC; stored once an hour
    checked_at: Optional[str]
    # what was changed about it on the host; absent if nothing was
    drift: Optional[str]


class Enrolment(Model):
    """Returned by `POST /v1/enrolments`."""

    # id of the enrolment, which the audit trail shows as the actor
    enrolment_id: str
    # the token, shown only in this answer
    token: str
    # until when it is valid, ISO 8601 UTC
    expires_at: str


class Enrolled(Model):
    """Returned by `POST /v1/agents/enrol`."""

    # id of the project
    project_id: str
    # id of the host
    agent_id: str
    # id of the key, by which it is listed, rotated and revoked
    key_id: str
    # the host's own key, shown only in this answer
    key: str


class Release(Model):
    """A release with its desired revision. Returned by `GET /v1/releases/{name}` and `GET /v1/releases`, in `items`."""

    # the name of the release
    name: str
    # the hosts that it is for
    targets: ReleaseTargets
    # the revision that hosts should have
    revision: int
    # the last revision that passed; 0 if none has
    stable: int
    # percent of the hosts that may have the desired revision now
    share: int
    # revisions that failed, and converge nowhere
    withdrawn: list[int]
    # why it was stopped or taken back
    reason: Optional[str]
    # when it was created, ISO 8601 UTC
    created_at: str
    # when it was last changed, ISO 8601 UTC
    updated_at: str
    # where the roll-out is
    status: str
    # the present wave, from 1
    wave: int
    # hosts by state
    counts: ReleaseCounts
    # the files that should be on the hosts (not returned by `GET /v1/releases`, in `items`)
    files: Optional[list[ReleaseFile]]
    # stages of the roll-out; after the last one, all hosts (not returned by `GET /v1/releases`, in `items`)
    waves: Optional[list[ReleaseWave]]
    # `now`, `manual`, or a time (ISO 8601); until then hosts only stage the files (not returned by `GET
    # /v1/releases`, in `items`)
    activate: Optional[str]
    # run after the files were put in place, if the host's operator allowed it by this name (not returned by `GET
    # /v1/releases`, in `items`)
    hook: Optional[str]
    # how a host finds out whether it is healthy with the revision (not returned by `GET /v1/releases`, in `items`)
    health: Optional[ReleaseHealth]
    # a CloudWatch alarm by name or ARN, which an admin allowed the project: in ALARM it fails the wave; while it
    # has no data or cannot be read, the wave waits (not returned by `GET /v1/releases`, in `items`)
    alarm: Optional[str]
    # when a wave fails: take the revision back, or stop where it is (not returned by `GET /v1/releases`, in
    # `items`)
    on_failure: Optional[str]
    # former revisions whose content a host keeps (not returned by `GET /v1/releases`, in `items`)
    keep: Optional[int]
    # put files in place again that somebody changed on a host (not returned by `GET /v1/releases`, in `items`)
    heal: Optional[bool]
    # a remark for people (not returned by `GET /v1/releases`, in `items`)
    note: Optional[str]


class ReleaseCounts(Model):
    """Hosts by state, made from the hosts' own reports. Returned by `GET /v1/releases/{name}`, in `counts`."""

    # how many hosts the release is for
    desired: int
    # hosts that have what they should have
    current: int
    # hosts that have the files, and wait for the activation
    staged: int
    # hosts on which the revision failed
    failed: int
    # hosts that are not connected, and not there yet
    offline: int
    # hosts on which somebody changed a file
    drifted: int
    # hosts that are connected, and not there yet
    behind: int
    # hosts that were not seen for 30 days; they no longer count
    gone: int


class ReleaseFile(Model):
    """A file of a revision. Returned by `GET /v1/releases/{name}`, in `files`."""

    # path of the file in the library
    file_path: str
    # name of the file on the host
    file_name: str
    # SHA-256 of the content, 64 hexadecimal digits
    signature: str
    # size in bytes
    size: int
    # absolute path of the directory on the host
    target_file_dir: str
    # owner of the file on the host
    target_user: str
    # permissions of the file on the host in octal, such as `0640`
    mode: Optional[str]
    # the file is an archive (`tar` may be compressed), unpacked to `releases/<revision>` below `target_file_dir`,
    # where the symlink `current` leads to it
    unpack: Optional[str]


class ReleaseHealth(Model):
    """How hosts find out whether they are healthy. Returned by `GET /v1/releases/{name}`, in `health`."""

    # a hook that the host's operator allowed by this name
    hook: Optional[str]
    # a page on a loopback port of the host, which its operator allowed; 2xx is healthy
    url: Optional[str]
    # seconds until the check counts as failed
    timeout_s: int
    # seconds for which a wave must hold before the next one
    soak_s: int


class ReleaseTargets(Model):
    """Returned by `GET /v1/releases/{name}`, in `targets`."""

    # hosts in any of these groups
    groups: list[str]
    # hosts with all of these labels
    labels: dict[str, str]
    # hosts by their ids
    agents: list[str]


class ReleaseWave(Model):
    """Returned by `GET /v1/releases/{name}`, in `waves`."""

    # percent of the hosts in this wave and those before it
    percent: int
    # seconds for which the wave must hold, besides `soak_s`
    wait_s: int
    # the most hosts of the wave that may fail, in percent
    max_failed_percent: int


class ReleaseHost(Model):
    """Returned by `GET /v1/releases/{name}/hosts`, in `items`."""

    # id of the host
    agent_id: str
    # what the host has; 0 for nothing
    revision: int
    # what is known of the host
    state: str
    # why the revision failed on the host
    reason: Optional[str]
    # how the hook ended
    hook: Optional[RunResult]
    # how the health check ended
    health: Optional[RunResult]
    # files that were changed on the host, and how
    drift: Optional[list[str]]
    # the revision whose files are in place, if it is not `revision`
    placed: Optional[int]
    # when the host last compared its files with what they should be, ISO 8601 UTC
    checked_at: Optional[str]
    # when the host reported it, ISO 8601 UTC
    reported_at: Optional[str]
    # what the host should have now
    desired: int
    # the wave in which it gets the desired revision, from 1
    wave: int


class RunResult(Model):
    """How a hook or a check ended. Returned by `GET /v1/releases/{name}/hosts`, in `items`."""

    # exit code, or HTTP status
    code: int
    # the end of what it printed, without secrets
    output: str


class Revision(Model):
    """Immutable. A rollback is a new revision with the content of an older one, so numbers only rise. Returned by
    `GET /v1/releases/{name}/revisions/{number}`."""

    # the number of the revision; numbers only rise
    number: int
    # the files that should be on the hosts
    files: list[ReleaseFile]
    # stages of the roll-out; after the last one, all hosts
    waves: list[ReleaseWave]
    # `now`, `manual`, or a time (ISO 8601); until then hosts only stage the files
    activate: str
    # run after the files were put in place, if the host's operator allowed it by this name
    hook: Optional[str]
    # how a host finds out whether it is healthy with the revision
    health: Optional[ReleaseHealth]
    # a CloudWatch alarm by name or ARN, which an admin allowed the project: in ALARM it fails the wave; while it
    # has no data or cannot be read, the wave waits
    alarm: Optional[str]
    # when a wave fails: take the revision back, or stop where it is
    on_failure: str
    # former revisions whose content a host keeps
    keep: int
    # put files in place again that somebody changed on a host
    heal: bool
    # a remark for people
    note: Optional[str]
    # when it was created, ISO 8601 UTC
    created_at: str
    # key_id of its creator, or `system`
    created_by: str
    # the revision whose content this one brings back
    rollback_to: Optional[int]


class Export(Model):
    """Returned by `GET /v1/task`."""

    # id of the export
    task_id: str
    # format of the file: `csv`, `excel`, `jsonl` or `parquet`
    type: str
    # when it was created, ISO 8601 UTC
    create_time: str
    # the recurring export that created it
    schedule_id: Optional[str]
    # a name for people
    name: str
    # a value of your choice; recorded, and a filter of lists
    operator_id: Optional[str]
    # a value of your choice; recorded, and a filter of lists
    merchant_type: Optional[int]
    # a value of your choice; recorded, and a filter of lists
    merchant_id: Optional[Union[int, str]]
    # a remark for people; the console finds it
    note: Optional[str]
    # `pending`, `queued`, `running`, `completed`, `failed`, `cancelled`, `paused` or `expired`
    status: str
    # rows so far, and the total if the source states it
    progress: ExportProgress
    # name of the file
    file_name: Optional[str]
    # size in bytes
    size: Optional[int]
    # number of attempts so far
    attempts: int
    # inconsistencies, such as a total that differs from the number of rows
    warnings: Optional[list[str]]
    # the requested copies and their state
    deliveries: Optional[list[ExportDelivery]]
    # the addresses that get an e-mail, and whether it was sent
    emails: Optional[list[ExportEmail]]
    # why the export failed
    failed_reason: Optional[str]
    # whether columns that the project masks are written as they are
    unmask: Optional[bool]
    # 1 (first) to 10 (last)
    priority: Optional[int]
    # why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or
    # `runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the
    # next day
    last_wait_reason: Optional[str]
    # when it started, ISO 8601 UTC
    start_time: Optional[str]
    # when it ended, ISO 8601 UTC
    finish_time: Optional[str]
    # permanent URL of the file; needs a key, and redirects to a fresh presigned URL
    download_url: Optional[str]


class ExportProgress(Model):
    """Returned by `GET /v1/task`, in `progress`."""

    # rows so far
    rows: int
    # total number of rows, if the source states it
    total: Optional[int]
    # progress in percent, 0 to 100
    percent: int


class ExportDelivery(Model):
    """Returned by `GET /v1/task`, in `deliveries`."""

    # the bucket
    bucket: str
    # key of the copy
    key: str
    # `delivered` or `failed`
    state: str
    # why the copy failed
    error: Optional[str]


class ExportEmail(Model):
    """Returned by `GET /v1/task`, in `emails`."""

    # the address
    to: str
    # `sent`, `failed`, or `unknown`: the function ended before it knew, and the e-mail is not sent again
    state: str
    # why it was not sent, or why the result is unknown
    error: Optional[str]


class Placeholders(Model):
    """What a template asks for, and what its sheets look like. Returned by `GET /v1/task/placeholders`."""

    # names of its values, such as `customer` for `{customer}`
    values_: list[str]
    # its lists, in the order of the sheets
    lists: list[TemplateList]
    # its first sheets, at most 5
    sheets: list[TemplateSheet]


class TemplateList(Model):
    """A list of a template: the rows of the sheet that are repeated, and the columns that they name. Returned by
    `GET /v1/task/placeholders`, in `lists`."""

    # title or number of its table; empty for `{.name}`, which is the first table
    name: str
    # name of its sheet
    sheet: str
    # the first row that is repeated, from 1
    row: int
    # the last row that is repeated with it
    last_row: int
    # keys, or titles of the order's `template`, that its placeholders name
    columns: list[str]


class TemplateSheet(Model):
    """Returned by `GET /v1/task/placeholders`, in `sheets`."""

    # name of the sheet
    name: str
    # cells of its first 40 rows and 26 columns, for a preview
    cells: list[TemplateCell]
    # merged areas that begin in these rows, such as `A1:C1`
    merges: list[str]


class TemplateCell(Model):
    """Returned by `GET /v1/task/placeholders`, in `sheets`."""

    # row, from 1
    row: int
    # column, from 1
    column: int
    # text with placeholders, a formula with `=`, or a number as it is stored; at most 200 characters
    text: str
    # whether it is bold
    bold: Optional[bool]
    # horizontal alignment, if it is set
    align: Optional[str]
    # colour of the text, six hexadecimal digits
    color: Optional[str]
    # colour of the cell, six hexadecimal digits
    bg_color: Optional[str]


class ExportSchedule(Model):
    """Returned by `GET /v1/export-schedules/{schedule_id}` and `GET /v1/export-schedules`, in `items`."""

    # id of the schedule
    schedule_id: str
    # format of the file: `csv`, `excel`, `jsonl` or `parquet`
    type: str
    # key_id of its creator
    created_by: str
    # the export of the last run
    last_task_id: Optional[str]
    # a name for people
    name: str
    # when it was created, ISO 8601 UTC
    created_at: str
    # when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`
    schedule: str
    # IANA name of the time zone of `schedule`, such as `Asia/Shanghai`
    timezone: str
    # `active` or `paused`
    status: str
    # increases with every change; send it with a change to refuse it if it is old
    revision: int
    # why the last run, or its last try, started nothing
    last_error: Optional[str]
    # runs that failed in succession; at the third, `schedule.failing` is sent
    failed_runs: int
    # when it runs next; absent while it is paused
    next_run: Optional[str]
    # the planned time of the last run that started
    last_run: Optional[str]
    # what each run exports, as it was ordered, without given rows (not returned by `GET /v1/export-schedules`, in
    # `items`)
    order: Optional[Model]


class ExportRun(Model):
    """Returned by `GET /v1/export-schedules/{schedule_id}/runs`, in `items`."""

    # the time at which the run was due
    due: str
    # `started`; or `skipped`, if nothing was, or it was refused
    state: str
    # why the run was skipped
    reason: Optional[str]
    # the error of a run that failed; absent if the previous one still ran
    code: Optional[str]
    # the export that was created
    task_id: Optional[str]
    # the export in its current state; absent if it was deleted
    task: Optional[Export]


class Business(Model):
    """Returned by `GET /v1/biz/{biz_id}`."""

    # id of the business, for POST /v1/batches
    biz_id: str
    # when it was created, ISO 8601 UTC
    created_at: str
    # whether an auth_code is set; the code itself is never shown
    has_auth_code: bool
    # a name for people
    name: str
    # gets a signed POST for every item
    process_url: str
    # called before a batch is created; may refuse it
    before_create_url: Optional[str]
    # called before a batch runs; the batch then waits for `biz-start`
    before_run_url: Optional[str]
    # called when a batch has ended or was stopped
    process_stop_url: Optional[str]
    # items per second, shared by all its batches
    rate: Optional[float]


class Batch(Model):
    """Returned by `GET /v1/batches/{batch_id}`."""

    # id of the batch
    batch_id: str
    # `created`, `waiting_biz`, `running`, `finished`, `stopping` or `stopped`
    status: str
    # when it was created, ISO 8601 UTC
    create_time: str
    # a file of the library whose rows are the items, or objects of a bucket
    source: Optional[BatchSource]
    # id of the request in the queue
    request_id: Optional[str]
    # why it stopped
    stop_reason: Optional[str]
    # when it started, ISO 8601 UTC
    start_time: Optional[str]
    # when it ended, ISO 8601 UTC
    finish_time: Optional[str]
    # the batch whose failed items this one retries
    redrive_of: Optional[str]
    # id of the registered business that processes the items (POST /v1/biz)
    biz_id: str
    # a name for people
    name: str
    # the items are `start_index` to `total` - 1; not needed with a list in job_data or with a source, whose rows or
    # objects are counted
    total: Optional[int]
    # index of the first item
    start_index: int
    # a remark for people; the console finds it
    note: Optional[str]
    # items per second
    rate: float
    # parallel calls of process_url, over all runners; default: as many as the rate needs
    concurrency: Optional[int]
    # stop the batch when this many items did not succeed
    max_errors: Optional[int]
    # how often an item is tried
    retries: int
    # seconds before an item is retried
    retry_delay: float
    # waits that grow, instead of `retry_delay`
    backoff: Optional[BatchBackoff]
    # 1 (first) to 10 (last)
    priority: int
    # after an item has used up its retries: `stop` the batch, or `skip` the item
    on_item_failure: str
    # stop the batch when more items than this did not succeed
    max_failed: Optional[int]
    # like `max_failed`, in percent of the total
    max_failed_percent: Optional[float]
    # seconds to wait for a result; more than 600 only with ack `async`
    item_timeout: int
    # `sync`: the answer of process_url is the result; `async`: it answers 202 and the result is reported later
    ack: str
    # items sent to process_url in one call; above 1, it gets `items` and answers `results`
    items_per_call: int
    # functions that process the batch in parallel and share its rate
    runners: int
    # record every item, for GET …/results?all=true: one object more for each second of a runner
    report: bool
    # batches with the same key run one after another
    concurrency_key: Optional[str]
    # times of day, in UTC, during which no items are sent
    pause_windows: Optional[list[dict[str, str]]]
    # gets the callback `batch.progress`, as often as the next two fields say
    progress_url: Optional[str]
    # call progress_url after this many items
    progress_every_items: Optional[int]
    # call progress_url after this many percent
    progress_every_percent: Optional[float]
    # `business_down`: process_url does not answer; one call at a time tests it until it does
    waiting: Optional[str]
    # how far the batch is
    progress: BatchProgress
    # status of the batch's request in the queue
    queue_status: Optional[str]
    # the channel of the queue
    channel: Optional[str]
    # why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or
    # `runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the
    # next day
    last_wait_reason: Optional[str]


class BatchProgress(Model):
    """Returned by `GET /v1/batches/{batch_id}`, in `progress`."""

    # items that are done, whatever their result
    processed: int
    # total number of items
    total: Optional[int]
    # progress in percent, 0 to 100
    percent: Optional[float]
    # items that did not succeed
    errors: int
    # items that succeeded
    succeeded: int
    # how many failed
    failed: int
    # items that the business gave up (`abandon`)
    abandoned: int
    # failed calls of process_url, including retried ones
    failed_calls: int
    # items that wait for a retry
    retrying: int
    # items whose asynchronous result has not been reported yet
    awaiting: int
    # current number of items per second
    rate_now: float
    # all items below this index are done
    offset: int
    # when the batch will be finished at the current rate
    eta: Optional[str]


class BatchSource(Model):
    """Returned by `GET /v1/batches/{batch_id}`, in `source`."""

    # id of the file in the library
    file_id: Optional[str]
    # SHA-256 of the content, 64 hexadecimal digits
    signature: Optional[str]
    # `csv` or `ndjson`, as which objects of a bucket are listed
    format: str
    # encoding of the text
    encoding: str
    # what separates the values of a CSV row
    delimiter: str
    # `gzip` if the file is compressed
    compression: Optional[str]
    # the objects whose keys begin so are the items
    s3_prefix: Optional[str]
    # manifest of the S3 inventory whose objects are the items
    s3_inventory: Optional[str]


class BatchBackoff(Model):
    """Returned by `GET /v1/batches/{batch_id}`, in `backoff`."""

    # seconds before the first retry
    base: float
    # each further retry waits this many times as long
    factor: float
    # no retry waits longer, in seconds
    max: float
    # how much of each wait is left to chance: 0 (nothing) to 1 (all of it)
    jitter: float


class BatchItem(Model):
    """Returned by `GET /v1/batches/{batch_id}/items`, in `items`."""

    # index of the item
    index: int
    # `failed`, `abandoned` or `recovered` (succeeded after a retry)
    state: str
    # number of attempts so far
    attempts: int
    # the last answer: `result`, and `detail` with the reason (`msg`)
    answer: Model
    # the item's data, as it was sent to process_url
    job_data: Json
    # the batch's own job_data, if the items are rows of a file
    batch_data: Json


class DryRunItem(Model):
    """Returned by `POST /v1/batches/{batch_id}/dry-run`, in `items`."""

    # index of the item
    index: int
    # the answer: `result`, and `detail` with the reason (`msg`)
    answer: Model
    # the item's data, as it was sent to process_url; null if the answer would be too large
    job_data: Json


class BatchSchedule(Model):
    """Returned by `GET /v1/batch-schedules/{schedule_id}` and `GET /v1/batch-schedules`, in `items`."""

    # id of the schedule
    schedule_id: str
    # the business of its batches
    biz_id: str
    # key_id of its creator, also recorded as the creator of its batches
    created_by: str
    # increases with every change; send it with a change to refuse it if it is old
    revision: int
    # the batch that the last run created
    last_batch_id: Optional[str]
    # a name for people
    name: str
    # when it was created, ISO 8601 UTC
    created_at: str
    # when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`
    schedule: str
    # IANA name of the time zone of `schedule`, such as `Asia/Shanghai`
    timezone: str
    # `active` or `paused`
    status: str
    # why the last run, or its last try, started nothing
    last_error: Optional[str]
    # runs that failed in succession; at the third, `schedule.failing` is sent
    failed_runs: int
    # when it runs next; absent while it is paused
    next_run: Optional[str]
    # the planned time of the last run that started
    last_run: Optional[str]
    # the batch that each run creates, with the fields of POST /v1/batches (not returned by `GET
    # /v1/batch-schedules`, in `items`)
    batch: Optional[Model]


class BatchRun(Model):
    """Returned by `GET /v1/batch-schedules/{schedule_id}/runs`, in `items`."""

    # the time at which the run was due
    due: str
    # `started`; or `skipped`, if nothing was, or it was refused
    state: str
    # why the run was skipped
    reason: Optional[str]
    # the error of a run that failed; absent if the previous one still ran
    code: Optional[str]
    # the batch that was created
    batch_id: Optional[str]
    # the batch in its current state; absent if it was deleted
    batch: Optional[Batch]


class File(Model):
    """Returned by `GET /v1/files/{file_id}`."""

    # id of the file in the library
    file_id: str
    # a number of your choice for a business; recorded, and a filter of lists
    biz_id: int
    # a number of your choice for an application; recorded, and a filter of lists
    app_id: int
    # path of the file in the library
    file_path: str
    # name of the file
    file_name: str
    # `pending` (not uploaded yet), `coming` (a request downloads it), `verifying`, `ready` or `failed`
    state: str
    # when it was created, ISO 8601 UTC
    created_at: str
    # SHA-256 of the content, 64 hexadecimal digits
    signature: Optional[str]
    # size in bytes
    size: Optional[int]
    # the request that downloads or verifies it
    request_id: Optional[str]
    # why it failed
    error: Optional[str]


class FileCreated(Model):
    """Returned by `POST /v1/files`."""

    # id of the file in the library
    file_id: str
    # PUT the content to this presigned URL, with all of `upload_headers`
    upload_url: Optional[str]
    # headers that the PUT must have; send all of them
    upload_headers: Optional[dict[str, str]]
    # until when it is valid, ISO 8601 UTC
    expires_at: Optional[str]
    # how to split the content into parts
    upload: Optional[PartsPlan]
    # id of the request in the queue
    request_id: Optional[str]


class PartsPlan(Model):
    """Returned by `POST /v1/files`, in `upload`."""

    # bytes of every part except the last
    part_size: int
    # the number of parts; absent if no size was announced
    parts: Optional[int]


class Link(Model):
    """Returned by `GET /v1/files/{file_id}/url`."""

    # a presigned URL, which needs no key
    url: str
    # until when it is valid, ISO 8601 UTC
    expires_at: str


class Subscription(Model):
    """Returned by `GET /v1/subscriptions/{subscription_id}`."""

    # id of the subscription
    subscription_id: str
    # a name for people
    name: str
    # URL of the page, feed or manifest that lists files
    source_url: str
    # when it was created, ISO 8601 UTC
    create_time: str
    # biz_id of its files
    biz_id: int
    # app_id of its files
    app_id: int
    # name of the stored credential for the source
    credentials: Optional[str]
    # how the source lists its files; `auto` detects it from the answer
    format: str
    # globs such as `*.iso`; one with a slash is matched against the whole path
    include: Optional[list[str]]
    # globs such as `*.iso`; one with a slash is matched against the whole path
    exclude: Optional[list[str]]
    # the path of each file in the library, such as `/podcasts/{year}/{name}`; default: its path in the source
    file_path: Optional[str]
    # how changed files are noticed: `auto` compares what the list shows, and asks the server (HEAD) about files of
    # which it shows neither date nor size; `head` asks about all
    compare: str
    # also read the folders below a directory index, at most 16 deep
    recursive: bool
    # what happens to files that the source does not list any more: `keep`, or `trash`: they are deleted from the
    # library after seven days, unless they are listed again
    on_delete: str
    # how gently its files are fetched
    politeness: Optional[dict[str, float]]
    # how many of its downloads run in parallel; a change affects new ones only
    concurrency: int
    # priority of its scheduled scans and their downloads
    priority: Optional[int]
    # when the source was read last, ISO 8601 UTC
    last_scan: Optional[str]
    # when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`
    schedule: Optional[str]
    # IANA name of the time zone of `schedule`, such as `Asia/Shanghai`
    timezone: str
    # `active` or `paused`
    status: str
    # increases with every change; send it with a change to refuse it if it is old
    revision: int
    # why the last run, or its last try, started nothing
    last_error: Optional[str]
    # runs that failed in succession; at the third, `schedule.failing` is sent
    failed_runs: int
    # when it runs next; absent while it is paused
    next_run: Optional[str]
    # the planned time of the last run that started
    last_run: Optional[str]


class ScanRun(Model):
    """Returned by `GET /v1/subscriptions/{subscription_id}/runs`, in `items`."""

    # the time at which the run was due
    due: str
    # `started`; or `skipped`, if nothing was, or it was refused
    state: str
    # why the run was skipped
    reason: Optional[str]
    # the error of a run that failed; absent if the previous one still ran
    code: Optional[str]
    # the scan that was queued
    request_id: Optional[str]
    # the scan in its current state; absent if it was deleted
    request: Optional[Request]


class Preview(Model):
    """The files that a scan of the source would download now. Returned by `POST /v1/subscriptions/preview`."""

    # how the source lists its files
    format: str
    # number of files that the source lists
    listed: int
    # number of files that a scan would download, after include and exclude
    chosen: int
    # the first hundred of them
    items_: list[PreviewEntry]
    # entries of the list that cannot be read, and are left out
    skipped: int
    # why, for the first ten of them
    skipped_entries: Optional[list[str]]
    # with `subscription_id`: files that it has not queued yet
    new: Optional[int]
    # with `subscription_id`: files that changed, as the list shows it
    changed: Optional[int]
    # with `subscription_id`: files that the source does not list any more
    gone: Optional[int]
    # URLs of the first hundred of them
    gone_entries: Optional[list[str]]


class PreviewEntry(Model):
    """Returned by `POST /v1/subscriptions/preview`, in `items`."""

    # URL of the file
    url: str
    # path of the file in the library
    file_path: str
    # name of the file
    file_name: str
    # size in bytes
    size: Optional[int]
    # SHA-256 of the content, 64 hexadecimal digits
    signature: Optional[str]
    # with `subscription_id`: `new`, `changed` or `same`, as the list shows it
    plan: Optional[str]


class Credential(Model):
    """A stored credential, without the values of its headers. Returned by `GET /v1/credentials`, in `items`."""

    # name of the credential
    name: str
    # the only origins that get the headers
    origins: list[str]
    # names of the headers; their values are never shown
    headers: list[str]
    # when it was last stored, ISO 8601 UTC
    updated_at: str
    # key_id of whoever stored it
    updated_by: str


class Request(Model):
    """Returned by `GET /v1/requests/{request_id}`."""

    # id of the request in the queue
    request_id: str
    # `scan`, `associate`, `check`, `download`, `extract`, `export`, `batch` or `verify`
    type: str
    # the channel of the queue
    channel: str
    # 1 (first) to 10 (last)
    priority: int
    # `pending`, `queued`, `running`, `completed`, `failed`, `cancelled` or `paused`
    status: str
    # when it was created, ISO 8601 UTC
    create_time: str
    # number of attempts so far
    attempts: int
    # id of the subscription
    subscription_id: Optional[str]
    # why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or
    # `runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the
    # next day
    last_wait_reason: Optional[str]
    # why it failed: `code` and `detail`
    error: Optional[Problem]
    # the result; the fields depend on the type
    result: Optional[Model]
    # how far it is; the fields depend on the type
    progress: Optional[Model]
    # when it started, ISO 8601 UTC
    start_time: Optional[str]
    # when it ended, ISO 8601 UTC
    finish_time: Optional[str]
    # the given name, or the name of the file
    name: Optional[str]


class Problem(Model):
    """Returned by `GET /v1/requests/{request_id}`, in `error`."""

    # identifies the kind of error; stable
    code: str
    # what was wrong, with which value, and what to do; for people
    detail: str


class LogLine(Model):
    """One step of an attempt. Returned by `GET /v1/requests/{request_id}/log`, in `items`."""

    # when, ISO 8601 UTC
    at: str
    # number of the attempt, from 1
    attempt: int
    # `begun`, `goes on`, `done`, `failed`, `stopped` or `died` (its function was killed)
    event: str
    # what was done, or why it failed
    detail: Optional[str]
    # duration of the step in seconds
    seconds: Optional[float]
    # code of the error, for a failed attempt
    code: Optional[str]
    # stack trace of the error; for admin keys only
    stack: Optional[str]


class Bulk(Model):
    """Returned by `POST /v1/requests/bulk`."""

    # number of requests that were changed
    changed: int
    # number of requests that were left as they are, because of their state or the quota `queued`
    skipped: int
    # pass it as `cursor` to get the next page; null or absent on the last page
    next_cursor: Optional[str]


class Ticket(Model):
    """A ticket, and the URL at which to connect with it. Returned by `POST /v1/ws-tickets`."""

    # pass it as `?ticket=` when you connect; valid once, for 60 seconds
    ticket: str
    # until when it is valid, ISO 8601 UTC
    expires_at: str
    # URL at which to connect to the WebSocket
    ws_url: str


class Project(Model):
    """Returned by `GET /v1/projects`, in `items`."""

    # id of the project
    project_id: str
    # a name for people
    name: str
    # a label of your choice for projects; it has no effect
    group: Optional[str]
    # whether the project's URLs (sources, callbacks, process_url) may have private addresses
    allow_private_urls: bool
    # when it was created, ISO 8601 UTC
    created_at: str
    # where the project may send files with `TransferEngine=gse`; nowhere until an admin sets it
    gse: ProjectGse


class ProjectDetail(Project):
    """Returned by `GET /v1/projects/{project_id}`."""

    # id of the project
    project_id: str
    # a name for people
    name: str
    # a label of your choice for projects; it has no effect
    group: Optional[str]
    # whether the project's URLs (sources, callbacks, process_url) may have private addresses
    allow_private_urls: bool
    # when it was created, ISO 8601 UTC
    created_at: str
    # limits of the project, as they are in force; one without a value has no limit, which only projects have that
    # were created before quotas had defaults
    quotas: ProjectQuotas
    # `auto`: hosts of a site also send the file to each other, except those in an availability zone of the bucket's
    # region, which S3 serves for free; `on`: those too; `off`: every host downloads it from S3
    swarm: str
    # where the project's exports may be copied: patterns of `bucket/key`, such as `acme-reports/shop/*`
    deliver_to: list[str]
    # what the project's exports and batches may read directly: `s3://bucket/key*`, `dynamodb://table`,
    # `athena://workgroup/database`, or `athena://workgroup` for every database that the stack allows
    read_from: list[str]
    # CloudWatch alarms of the operator's account that may stop the project's releases: patterns (`*`, `?`, `[…]`,
    # letter case counts) of names
    alarms: list[str]
    # AWS roles whose instances may enrol as hosts without a token; none until an admin sets it
    aws_roles: list[ProjectAwsRole]
    # where the project may send files with `TransferEngine=gse`; nowhere until an admin sets it
    gse: ProjectGse
    # columns that exports hide, by name: `phone`, `id`, `card`, `email`, or how many characters stay visible at the
    # start and the end; a key of scope `unmask` lifts them. A change replaces all
    masks: Model
    # whether requests are also signed with the secret that all receivers share; off: only with the secret of the
    # receiver's origin
    shared_signatures: bool
    # the quotas that have the default, because nobody set them: each `true`
    defaults: dict[str, bool]
    # usage of the quotas: `stored_bytes`, `queued`, `export_schedules`, `batch_schedules`, `subscriptions`,
    # `businesses`, `batches`, `unstarted_batches`, `open_uploads`, of this day (UTC) `runner_hours_per_day`,
    # `egress_bytes_per_day`, `targets_per_day` and `outgoing_calls_per_day`, and `running` by channel
    usage: Model


class ProjectAwsRole(Model):
    """An AWS role whose instances may enrol as hosts, and the groups and labels that they get. Returned by `GET
    /v1/projects/{project_id}`, in `aws_roles`."""

    # number of the AWS account, 12 digits
    account: str
    # name of the role, exact and without its path
    role: str
    # groups of the hosts that enrol by this role
    groups: list[str]
    # labels of the hosts that enrol by this role
    labels: dict[str, str]
    # whether an instance may enrol again under its id, such as after it lost its disk: the old key ends
    replace: bool


class ProjectGse(Model):
    """Where the project may send files with `TransferEngine=gse`; without targets, directories or users: nowhere.
    Returned by `GET /v1/projects/{project_id}`, in `gse`."""

    # patterns (`*`, `?`, `[…]`, letter case counts) of agent ids, for hosts themselves, or of
    # `agent_id/container_id`, for containers
    targets: list[str]
    # absolute directories; files may go into them and below. Compared part by part, letter case included:
    # `/data/app` does not cover `/data/application`
    dirs: list[str]
    # names of users, compared exactly
    users: list[str]


class ProjectQuotas(Model):
    """Returned by `GET /v1/projects/{project_id}`, in `quotas`."""

    # the most bytes in the library and in announced uploads; equal content counts once in the library. An upload
    # without `size` takes 5 GiB of it, and one in parts as much for each part whose length it does not name
    stored_bytes: Optional[int]
    # the most requests that may wait, over all channels
    queued: Optional[int]
    # the most slots that the project may hold in a channel; a batch takes one for each runner
    running: Optional[int]
    # requests per second of all keys of the project, except those of hosts; a request counts once more for each 32
    # KiB of its answer. With the default, those of a minute can be saved up
    requests_per_s: Optional[int]
    # the most recurring batches that the project may have
    batch_schedules: Optional[int]
    # the most recurring exports that the project may have
    export_schedules: Optional[int]
    # hours per day (UTC) of functions that work for the project: batches, exports, ingest, samples and sync
    # exports. Each start of queued work counts as 10 seconds, each Job as about 3 minutes, less if it ends earlier.
    # When they are used up, work waits for the next day
    runner_hours_per_day: Optional[int]
    # bytes per day (UTC) that Jobs may send out of the bucket, counted when they are dispatched: the size for each
    # host, or about twice for each 50 hosts in a swarm
    egress_bytes_per_day: Optional[int]
    # targets of Jobs per day (UTC), counted when they are submitted
    targets_per_day: Optional[int]
    # calls per day (UTC) to businesses; a call counts once more for each 16 KiB of its body. When they are used up,
    # batches wait for the next day
    outgoing_calls_per_day: Optional[int]
    # the most subscriptions that the project may have; 1,000 by default
    subscriptions: int
    # the most businesses that the project may register; 1,000 by default
    businesses: int
    # the most batches that the project may keep, ended ones included; 10,000 by default
    batches: int
    # the most batches that the project may have created and not started; 1,000 by default
    unstarted_batches: int
    # the most uploads that the project may have announced and not ended; 1,000 by default
    open_uploads: int
    # the most open calls that wait for a remote server (sync exports, samples, previews, dry runs); 20 by default
    slow_calls: int
    # by channel, the slots that the project may hold while another project waits
    share: Optional[dict[str, int]]


class Key(Model):
    """`callback_secret` is included for keys of scope `write`. Returned by `POST /v1/projects/{project_id}/keys` and
    `POST /v1/keys`."""

    # id of the key, by which it is listed, rotated and revoked
    key_id: str
    # the key itself, shown only in this answer; only its hash is stored
    key: str
    # the project's `whsec_…`, which all receivers share, for keys of scope `write`; GET /v1/callback-secret returns
    # one for a single receiver (not returned by `POST /v1/keys`)
    callback_secret: Optional[str]


class KeyRecord(Model):
    """Returned by `GET /v1/keys`, in `items`."""

    # id of the key, by which it is listed, rotated and revoked
    key_id: str
    # what the key may do: `read`, `write`, `agent`, `unmask` (lift the masks of exports), `admin`
    scopes: list[str]
    # the host that a key of scope `agent` is for
    agent_id: Optional[str]
    # when it was created, ISO 8601 UTC
    created_at: Optional[str]
    # what the key is for
    name: Optional[str]
    # key_id of its creator
    created_by: Optional[str]
    # when it was last used, to the hour
    last_used_at: Optional[str]
    # until when it is valid, ISO 8601 UTC
    expires_at: Optional[str]
    # `active`, `expired` or `revoked`
    state: str
