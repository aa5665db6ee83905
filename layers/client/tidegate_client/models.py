"""Records of the API as the SDK returns them. Made by `python -m local.sdk_models write`, not by hand.

Fields are attributes (`export.status`) and items (`export["status"]`). A field that the server leaves out is None; one
that a newer server adds is there as an item. At the end are the shapes of what callers send: plain dicts, whose fields
the API's reference describes. What the agent reads and reports: tidegate_client/inputs.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, TypedDict, Union

from tidegate_client.inputs import *  # noqa: F403 - for those who import all shapes from here
from tidegate_client.inputs import Json
from tidegate_client.model import Model
from tidegate_client.model import Page as Page

if TYPE_CHECKING:
    from typing_extensions import NotRequired


class Submitted(Model):
    """Returned by `POST /v1/downloads`."""

    task_id: str  # id of the Task: GET /v1/downloads/{task}
    job_id: str  # id of the Job: one file, one window, all its targets
    status: str  # `Pending`: the window is open until window_closes_at
    window_closes_at: str  # when the window closes and the Job is sent, ISO 8601 UTC


class BatchSubmitted(Model):
    """Returned by `POST /v1/downloads/batch`."""

    job_id: str  # id of the Job: one file, one window, all its targets
    # one Task for each target; empty for more than 1,000 targets: list them with GET /v1/downloads?job_id=
    tasks: list[TaskRef]
    targets: int  # number of targets
    window_closes_at: str  # when the window closes and the Job is sent, ISO 8601 UTC


class TaskRef(Model):
    """Returned by `POST /v1/downloads/batch`, in `tasks`."""

    task_id: str  # id of the Task
    agent_id: str  # id of the host
    container_id: str  # a container on the host; empty for the host itself


class Task(Model):
    """Returned by `GET /v1/downloads/{task}`."""

    size: Optional[int]  # bytes that the host downloaded
    speed: Optional[int]  # bytes per second
    start_time: Optional[str]  # when the host started, by its clock
    end_time: Optional[str]  # when the host finished, by its clock
    error_code: Optional[int]  # 0 success, 115 in progress, any other value failure
    error_msg: Optional[str]  # the reason of a failure, for people
    progress: Optional[int]  # progress in percent
    staged_at: Optional[str]  # since when the host has the file and waits for activate_at
    arrived: Optional[bool]  # true for a cancelled target whose host had put the file in place; absent otherwise
    biz_id: int  # a number of your choice for a business; recorded, and a filter of lists
    app_id: int  # a number of your choice for an application; recorded, and a filter of lists
    file_path: str  # path of the file in the library
    file_name: str  # name of the file
    file_signature: str  # SHA-256 of the content, 64 hexadecimal digits
    target_user: str  # owner of the file on the host
    target_file_dir: str  # absolute path of the directory on the host
    mode: Optional[str]  # permissions of the file on the host in octal, such as `0640`
    limit_rate: Optional[int]  # limit in bytes per second on each host, for this Job
    redrive_of: Optional[str]  # the key of the Job whose targets this Job retries
    # hosts download the file at once and put it in place at this time by their clocks, all together (RFC 3339, at
    # most 7 days ahead); not with waves
    activate_at: Optional[str]
    release: Optional[str]  # the release whose content this is
    force: Optional[bool]  # replace the file even if a release put it there; the release then reports drift
    job_id: str  # id of the Job: one file, one window, all its targets
    create_time: str  # when it was created, ISO 8601 UTC
    update_time: str  # when it last changed, ISO 8601 UTC
    note: Optional[str]  # a remark for people, from the first request that has one; the console searches it
    task_id: str  # id of the Task: one target gets one file
    target_agent_id: str  # id of the host that gets the file
    target_container_id: str  # a container on that host; empty for the host itself
    # `Pending` (its window is open), `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded`
    status: str


class Job(Model):
    """Returned by `GET /v1/jobs/{job}`."""

    job_id: str  # id of the Job: one file, one window, all its targets
    key: str  # a short form of the id, for use in paths
    biz_id: int  # a number of your choice for a business; recorded, and a filter of lists
    app_id: int  # a number of your choice for an application; recorded, and a filter of lists
    file_path: str  # path of the file in the library
    file_name: str  # name of the file
    file_signature: str  # SHA-256 of the content, 64 hexadecimal digits
    target_user: str  # owner of the file on the host
    target_file_dir: str  # absolute path of the directory on the host
    mode: Optional[str]  # permissions of the file on the host in octal, such as `0640`
    limit_rate: Optional[int]  # limit in bytes per second on each host, for this Job
    redrive_of: Optional[str]  # the key of the Job whose targets this Job retries
    # hosts download the file at once and put it in place at this time by their clocks, all together (RFC 3339, at
    # most 7 days ahead); not with waves
    activate_at: Optional[str]
    release: Optional[str]  # the release whose content this is
    force: Optional[bool]  # replace the file even if a release put it there; the release then reports drift
    window_closes_at: str  # when the window closes and the Job is sent, ISO 8601 UTC
    create_time: str  # when it was created, ISO 8601 UTC
    # `Pending` (its window is open), `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded` (no
    # target failed, and none got the file, because all have newer content)
    status: str
    execute_time: Optional[str]  # when the transfer began, ISO 8601 UTC
    finish_time: Optional[str]  # when it ended, ISO 8601 UTC
    # id of the transfer; with GSE the ids of all its tasks for this Job, separated by commas
    transfer_id: Optional[str]
    file_size: Optional[int]  # size of the file in bytes; absent until it is sent
    error: Optional[Problem]  # why it failed
    cancelled_at: Optional[str]  # when it was cancelled, ISO 8601 UTC
    note: Optional[str]  # a remark for people, from the first request that has one; the console searches it
    counts: Counts  # number of targets in each state
    swarm: Optional[JobSwarm]  # where the bytes came from; absent until hosts of a swarm have reported
    speed: Optional[JobSpeed]  # how fast the transfer was; absent until hosts have reported
    waves: Optional[list[JobWave]]  # the stages in which the Job is sent
    wave: Optional[int]  # number of the current wave, from 1


class Counts(Model):
    """Returned by `GET /v1/jobs/{job}`, in `counts`."""

    total: int  # all targets of the Job
    success: int  # targets that have the file
    failed: int  # targets that failed
    timeout: int  # targets that did not finish in time
    cancelled: Optional[int]  # cancelled targets; absent if there are none
    # targets whose host has newer content for the path, neither successes nor failures; absent if there are none
    superseded: Optional[int]
    staged: Optional[int]  # targets that have the file and wait for activate_at; absent if there are none
    downloading: int  # targets that have begun
    waiting: Optional[int]  # targets that have not begun; absent if there are none


class JobSwarm(Model):
    """Where the bytes of the file came from: the sum over hosts that took part in a swarm and have ended. Returned
    by `GET /v1/jobs/{job}`, in `swarm`."""

    origin_bytes: int  # bytes that came from S3
    peer_bytes: int  # bytes that came from other hosts
    bad_pieces: int  # pieces that were rejected because their SHA-256 was wrong
    fallbacks: int  # hosts that downloaded the rest from S3, because peers did not send it
    hosts: int  # number of hosts that reported figures
    bad_peers: list[str]  # peers that sent wrong pieces
    reused_bytes: int  # bytes that hosts copied from an older version of the file instead of downloading them
    fallback_reasons: dict[str, int]  # number of hosts by the reason why they fell back to S3: see `fell_back`
    egress: Optional[float]  # bytes sent by S3 divided by the size of the file (origin_bytes ÷ file_size)


class JobSpeed(Model):
    """Totals of the hosts that reported figures. Returned by `GET /v1/jobs/{job}`, in `speed`."""

    moved_bytes: int  # bytes that the hosts downloaded in total
    mean: int  # mean speed of the hosts in bytes per second
    hosts: int  # number of hosts that reported figures


class JobWave(Model):
    """Returned by `GET /v1/jobs/{job}`, in `waves`."""

    percent: int  # percentage of all targets that have been sent the file in this wave or before
    wait_s: int  # seconds from the start of this wave to the earliest start of the next one
    max_failed_percent: int  # the Job stops if more than this percentage of the wave's targets fail
    targets: Optional[int]  # number of targets in this wave


class JobTarget(Model):
    """Returned by `GET /v1/jobs/{job}/targets`, in `items`."""

    size: Optional[int]  # bytes that the host downloaded
    speed: Optional[int]  # bytes per second
    start_time: Optional[str]  # when the host started, by its clock
    end_time: Optional[str]  # when the host finished, by its clock
    error_code: Optional[int]  # 0 success, 115 in progress, any other value failure
    error_msg: Optional[str]  # the reason of a failure, for people
    progress: Optional[int]  # progress in percent
    staged_at: Optional[str]  # since when the host has the file and waits for activate_at
    arrived: Optional[bool]  # true for a cancelled target whose host had put the file in place; absent otherwise
    agent_id: str  # id of the host
    container_id: str  # a container on the host; empty for the host itself
    # `Pending`, `Running`, `Success`, `Failed`, `Timeout`, `Cancelled` or `Superseded` (the host has newer content
    # for the path)
    status: str
    agent_state: Optional[str]  # whether the host is connected: `online` or `offline`


class JobMap(Model):
    """The state of thousands of targets in a compact form. Returned by `GET /v1/jobs/{job}/map`."""

    names: list[str]  # the targets: agent_id, and after a space the container if there is one
    # one letter for each name: W waiting, R running, S success, F failed, T timeout, C cancelled, N superseded by
    # newer content
    states: str
    next_shard: Optional[int]  # pass it as `shard` to continue; absent at the end


class Redriven(Model):
    """Returned by `POST /v1/jobs/{job}/redrive`."""

    job_id: str  # id of the new Job
    key: str  # a short form of the new Job's id, for use in paths
    targets: int  # how many targets the new Job has
    # targets that were left out, because a newer Job sent content to their path; at most 1,000
    skipped: list[SkippedTarget]
    skipped_targets: int  # how many targets were left out


class SkippedTarget(Model):
    """Returned by `POST /v1/jobs/{job}/redrive`, in `skipped`."""

    agent_id: str  # id of the host
    container_id: str  # a container on the host; empty for the host itself
    newer_job: str  # the key of the newest Job that sent content to this path since


class Agent(Model):
    """A host. Only GET /v1/agents/{agent_id} returns `current` and `peers`. Returned by `GET /v1/agents/{agent_id}`."""

    agent_id: str  # id of the host
    groups: list[str]  # groups of the host
    labels: dict[str, str]  # labels of the host, as `{name: value}`
    version: Optional[str]  # version of the agent
    zone: Optional[str]  # rack or availability zone; peers of the same zone are preferred
    free_bytes: Optional[int]  # free space on the host's target disk, in bytes
    # hooks and loopback ports that the host's operator allows releases, such as `reload,:8080`; `-`: none
    allows: Optional[str]
    last_seen: Optional[str]  # when the host last called the API, ISO 8601 UTC
    state: str  # `online` or `offline`
    duplicate_at: Optional[str]  # when a second host with this id was refused, within the last 15 minutes; else null
    last_job: Optional[LastJob]  # the newest Job for which the host asked for its transfer, and its result there
    current: Optional[list[CurrentTransfer]]  # the transfers that the host is working on
    peers: Optional[AgentPeers]  # the host's part in swarms; absent if it takes part in none


class AgentPeers(Model):
    """The agent's part in swarms, as it announced it within the last two hours. Returned by `GET
    /v1/agents/{agent_id}`, in `peers`."""

    site: str  # the data centre; a swarm stays within one site
    listen: list[str]  # addresses `host:port` at which peers can reach the host; empty if it only downloads
    upload_mbit: Optional[float]  # limit for sending to peers, in megabits per second
    reached: bool  # false if no peer could connect to the host in its last two swarms: then peers are not sent to it


class LastJob(Model):
    """The newest Job for which the host asked for its transfer; `at` is when it last did. Returned by `GET
    /v1/agents/{agent_id}`, in `last_job`."""

    job_id: str  # id of the Job: one file, one window, all its targets
    file_name: str  # name of the file
    at: str  # when, ISO 8601 UTC
    key: str  # a short form of the Job's id, for use in paths
    status: Optional[str]  # the host's status in the Job; null after the Job's records have expired


class CurrentTransfer(Model):
    """Returned by `GET /v1/agents/{agent_id}`, in `current`."""

    transfer_id: str  # id of the transfer
    job_id: Optional[str]  # id of the Job: one file, one window, all its targets
    file_name: str  # name of the file
    container_id: str  # a container on the host; empty for the host itself
    progress: Optional[int]  # progress in percent


class SignInTicket(Model):
    """Returned by `POST /v1/sign-in-tickets`."""

    ticket: str  # open the console with it: `/#ticket=…`; it works once, for a minute
    expires_at: str  # until when it is valid, ISO 8601 UTC


class HostFile(Model):
    """A file that a release has put on the host, as the host reported it. Returned by `GET
    /v1/agents/{agent_id}/files`, in `items`."""

    path: str  # path of the file on the host; of an archive, the symlink to what was unpacked
    sha256: str  # SHA-256 of the content, 64 hexadecimal digits; of an archive, of the archive
    release: str  # the release that has put it in place
    revision: int  # the revision that it belongs to
    # when the host last compared it with what it should be, ISO 8601 UTC; stored once an hour
    checked_at: Optional[str]
    drift: Optional[str]  # what was changed about it on the host; absent if nothing was


class Enrolment(Model):
    """Returned by `POST /v1/enrolments`."""

    enrolment_id: str  # id of the enrolment, which the audit trail shows as the actor
    token: str  # the token, shown only in this answer
    expires_at: str  # until when it is valid, ISO 8601 UTC


class Enrolled(Model):
    """Returned by `POST /v1/agents/enrol`."""

    project_id: str  # id of the project
    agent_id: str  # id of the host
    key_id: str  # id of the key, by which it is listed, rotated and revoked
    key: str  # the host's own key, shown only in this answer


class Release(Model):
    """A release with its desired revision. Returned by `GET /v1/releases/{name}` and `GET /v1/releases`, in `items`."""

    name: str  # the name of the release
    targets: ReleaseTargets  # the hosts that it is for
    revision: int  # the revision that hosts should have
    stable: int  # the last revision that passed; 0 if none has
    share: int  # percent of the hosts that may have the desired revision now
    withdrawn: list[int]  # revisions that failed, and converge nowhere
    reason: Optional[str]  # why it was stopped or taken back
    counts: ReleaseCounts  # hosts by state; in a list, at the last look at the roll-out
    created_at: str  # when it was created, ISO 8601 UTC
    updated_at: str  # when it was last changed, ISO 8601 UTC
    wave: int  # the present wave, from 1
    status: str  # where the roll-out is
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
    keep: Optional[int]  # former revisions whose content a host keeps (not returned by `GET /v1/releases`, in `items`)
    # put files in place again that somebody changed on a host (not returned by `GET /v1/releases`, in `items`)
    heal: Optional[bool]
    note: Optional[str]  # a remark for people (not returned by `GET /v1/releases`, in `items`)


class ReleaseCounts(Model):
    """Hosts by state, made from the hosts' own reports. Returned by `GET /v1/releases/{name}`, in `counts`."""

    desired: int  # how many hosts the release is for
    current: int  # hosts that have what they should have
    staged: int  # hosts that have the files, and wait for the activation
    failed: int  # hosts on which the revision failed
    offline: int  # hosts that are not connected, and do not have what they should have
    drifted: int  # hosts on which somebody changed a file
    behind: int  # hosts that are connected, and do not have what they should have yet
    gone: int  # hosts that were not seen for 30 days; they no longer count


class ReleaseFile(Model):
    """A file of a revision. Returned by `GET /v1/releases/{name}`, in `files`."""

    file_path: str  # path of the file in the library
    file_name: str  # name of the file on the host
    signature: str  # SHA-256 of the content, 64 hexadecimal digits
    size: int  # size in bytes
    target_file_dir: str  # absolute path of the directory on the host
    target_user: str  # owner of the file on the host
    mode: Optional[str]  # permissions of the file on the host in octal, such as `0640`
    # the file is an archive (`tar` may be compressed), unpacked to `releases/<revision>` below `target_file_dir`,
    # where the symlink `current` leads to it
    unpack: Optional[str]


class ReleaseHealth(Model):
    """How hosts find out whether they are healthy. Returned by `GET /v1/releases/{name}`, in `health`."""

    hook: Optional[str]  # a hook that the host's operator allowed by this name
    url: Optional[str]  # a page on a loopback port of the host, which its operator allowed; 2xx is healthy
    timeout_s: int  # seconds until the check counts as failed
    soak_s: int  # seconds for which a wave must hold before the next one


class ReleaseTargets(Model):
    """Returned by `GET /v1/releases/{name}`, in `targets`."""

    groups: list[str]  # hosts in any of these groups
    labels: dict[str, str]  # hosts with all of these labels
    agents: list[str]  # hosts by their ids


class ReleaseWave(Model):
    """Returned by `GET /v1/releases/{name}`, in `waves`."""

    percent: int  # percent of the hosts in this wave and those before it
    wait_s: int  # seconds for which the wave must hold, besides `soak_s`
    max_failed_percent: int  # the most hosts of the wave that may fail, in percent


class ReleaseHost(Model):
    """Returned by `GET /v1/releases/{name}/hosts`, in `items`."""

    agent_id: str  # id of the host
    revision: int  # what the host has; 0 for nothing
    state: str  # what is known of the host
    reason: Optional[str]  # why the revision failed on the host
    hook: Optional[RunResult]  # how the hook ended
    health: Optional[RunResult]  # how the health check ended
    drift: Optional[list[str]]  # files that were changed on the host, and how
    placed: Optional[int]  # the revision whose files are in place, if it is not `revision`
    checked_at: Optional[str]  # when the host last compared its files with what they should be, ISO 8601 UTC
    reported_at: Optional[str]  # when the host reported it, ISO 8601 UTC
    desired: int  # what the host should have now
    wave: int  # the wave in which it gets the desired revision, from 1


class RunResult(Model):
    """How a hook or a check ended. Returned by `GET /v1/releases/{name}/hosts`, in `items`."""

    code: int  # exit code, or HTTP status
    output: str  # the end of what it printed, without secrets


class Revision(Model):
    """A revision never changes. A rollback is a new revision with the content of an older one: numbers only rise.
    Returned by `GET /v1/releases/{name}/revisions/{number}`."""

    number: int  # the number of the revision; numbers only rise
    files: list[ReleaseFile]  # the files that should be on the hosts
    waves: list[ReleaseWave]  # stages of the roll-out; after the last one, all hosts
    activate: str  # `now`, `manual`, or a time (ISO 8601); until then hosts only stage the files
    hook: Optional[str]  # run after the files were put in place, if the host's operator allowed it by this name
    health: Optional[ReleaseHealth]  # how a host finds out whether it is healthy with the revision
    # a CloudWatch alarm by name or ARN, which an admin allowed the project: in ALARM it fails the wave; while it
    # has no data or cannot be read, the wave waits
    alarm: Optional[str]
    on_failure: str  # when a wave fails: take the revision back, or stop where it is
    keep: int  # former revisions whose content a host keeps
    heal: bool  # put files in place again that somebody changed on a host
    note: Optional[str]  # a remark for people
    created_at: str  # when it was created, ISO 8601 UTC
    created_by: str  # key_id of its creator, or `system`
    rollback_to: Optional[int]  # the revision whose content this one brings back


class Export(Model):
    """Returned by `GET /v1/task`."""

    task_id: str  # id of the export
    type: str  # format of the file: `csv`, `excel`, `jsonl` or `parquet`
    create_time: str  # when it was created, ISO 8601 UTC
    schedule_id: Optional[str]  # the recurring export that created it
    name: str  # a name for people
    operator_id: Optional[str]  # a value of your choice; recorded, and a filter of lists
    merchant_type: Optional[int]  # a value of your choice; recorded, and a filter of lists
    merchant_id: Optional[Union[int, str]]  # a value of your choice; recorded, and a filter of lists
    note: Optional[str]  # a remark for people; the console finds it
    status: str  # `pending`, `queued`, `running`, `completed`, `failed`, `cancelled`, `paused` or `expired`
    progress: ExportProgress  # rows so far, and the total if the source states it
    file_name: Optional[str]  # name of the file
    size: Optional[int]  # size in bytes
    attempts: int  # number of attempts so far
    warnings: Optional[list[str]]  # inconsistencies, such as a total that differs from the number of rows
    deliveries: Optional[list[ExportDelivery]]  # the requested copies and their state
    emails: Optional[list[ExportEmail]]  # the addresses that get an e-mail, and whether it was sent
    failed_reason: Optional[str]  # why the export failed
    unmask: Optional[bool]  # whether columns that the project masks are written as they are
    priority: Optional[int]  # 1 (first) to 10 (last)
    # why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or
    # `runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the
    # next day
    last_wait_reason: Optional[str]
    start_time: Optional[str]  # when it started, ISO 8601 UTC
    finish_time: Optional[str]  # when it ended, ISO 8601 UTC
    download_url: Optional[str]  # permanent URL of the file; needs a key, and redirects to a fresh presigned URL


class ExportProgress(Model):
    """Returned by `GET /v1/task`, in `progress`."""

    rows: int  # rows so far
    total: Optional[int]  # total number of rows, if the source states it
    percent: int  # progress in percent, 0 to 100


class ExportDelivery(Model):
    """Returned by `GET /v1/task`, in `deliveries`."""

    bucket: str  # the bucket
    key: str  # key of the copy
    state: str  # `delivered` or `failed`
    error: Optional[str]  # why the copy failed


class ExportEmail(Model):
    """Returned by `GET /v1/task`, in `emails`."""

    to: str  # the address
    state: str  # `sent`, `failed`, or `unknown`: the function ended before it knew, and the e-mail is not sent again
    error: Optional[str]  # why it was not sent, or why the result is unknown


class Placeholders(Model):
    """What a template asks for, and what its sheets look like. Returned by `GET /v1/task/placeholders`."""

    values_: list[str]  # names of its values, such as `customer` for `{customer}`
    lists: list[TemplateList]  # its lists, in the order of the sheets
    sheets: list[TemplateSheet]  # its first sheets, at most 5


class TemplateList(Model):
    """A list of a template: the rows of the sheet that are repeated, and the columns that they name. Returned by
    `GET /v1/task/placeholders`, in `lists`."""

    name: str  # title or number of its table; empty for `{.name}`, which is the first table
    sheet: str  # name of its sheet
    row: int  # the first row that is repeated, from 1
    last_row: int  # the last row that is repeated with it
    columns: list[str]  # keys, or titles of the order's `template`, that its placeholders name


class TemplateSheet(Model):
    """Returned by `GET /v1/task/placeholders`, in `sheets`."""

    name: str  # name of the sheet
    cells: list[TemplateCell]  # cells of its first 40 rows and 26 columns, for a preview
    merges: list[str]  # merged areas that begin in these rows, such as `A1:C1`


class TemplateCell(Model):
    """Returned by `GET /v1/task/placeholders`, in `sheets`."""

    row: int  # row, from 1
    column: int  # column, from 1
    text: str  # text with placeholders, a formula with `=`, or a number as it is stored; at most 200 characters
    bold: Optional[bool]  # whether it is bold
    align: Optional[str]  # horizontal alignment, if it is set
    color: Optional[str]  # colour of the text, six hexadecimal digits
    bg_color: Optional[str]  # colour of the cell, six hexadecimal digits


class ExportSchedule(Model):
    """Returned by `GET /v1/export-schedules/{schedule_id}` and `GET /v1/export-schedules`, in `items`."""

    schedule_id: str  # id of the schedule
    type: str  # format of the file: `csv`, `excel`, `jsonl` or `parquet`
    created_by: str  # key_id of its creator
    last_task_id: Optional[str]  # the export of the last run
    name: str  # a name for people
    created_at: str  # when it was created, ISO 8601 UTC
    schedule: str  # when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`
    timezone: str  # IANA name of the time zone of `schedule`, such as `Asia/Shanghai`
    status: str  # `active` or `paused`
    revision: int  # increases with every change; send it with a change to refuse it if it is old
    last_error: Optional[str]  # why the last run, or its last try, started nothing
    failed_runs: int  # runs that failed in succession; at the third, `schedule.failing` is sent
    next_run: Optional[str]  # when it runs next; absent while it is paused
    last_run: Optional[str]  # the planned time of the last run that started
    # what each run exports, as it was ordered, without given rows (not returned by `GET /v1/export-schedules`, in
    # `items`)
    order: Optional[Model]


class ExportRun(Model):
    """Returned by `GET /v1/export-schedules/{schedule_id}/runs`, in `items`."""

    due: str  # the time at which the run was due
    state: str  # `started`, or `skipped` if nothing was started or it was refused
    reason: Optional[str]  # why the run was skipped
    code: Optional[str]  # the error of a run that failed; absent if the previous one still ran
    task_id: Optional[str]  # the export that was created
    task: Optional[Export]  # the export in its current state; absent if it was deleted


class Business(Model):
    """Returned by `GET /v1/biz/{biz_id}`."""

    biz_id: str  # id of the business, for POST /v1/batches
    created_at: str  # when it was created, ISO 8601 UTC
    has_auth_code: bool  # whether an auth_code is set; the code itself is never shown
    name: str  # a name for people
    process_url: str  # gets a signed POST for every item
    before_create_url: Optional[str]  # called before a batch is created; may refuse it
    before_run_url: Optional[str]  # called before a batch runs; the batch then waits for `biz-start`
    process_stop_url: Optional[str]  # called when a batch has ended or was stopped
    rate: Optional[float]  # items per second, shared by all its batches


class Batch(Model):
    """Returned by `GET /v1/batches/{batch_id}`."""

    batch_id: str  # id of the batch
    status: str  # `created`, `waiting_biz`, `running`, `finished`, `stopping` or `stopped`
    create_time: str  # when it was created, ISO 8601 UTC
    source: Optional[BatchSource]  # a file of the library whose rows are the items, or objects of a bucket
    request_id: Optional[str]  # id of the request in the queue
    stop_reason: Optional[str]  # why it stopped
    start_time: Optional[str]  # when it started, ISO 8601 UTC
    finish_time: Optional[str]  # when it ended, ISO 8601 UTC
    redrive_of: Optional[str]  # the batch whose failed items this one retries
    biz_id: str  # id of the registered business that processes the items (POST /v1/biz)
    name: str  # a name for people
    # the items are `start_index` to `total` - 1; not needed with a list in job_data or with a source, whose rows or
    # objects are counted
    total: Optional[int]
    start_index: int  # index of the first item
    note: Optional[str]  # a remark for people; the console finds it
    rate: float  # items per second
    concurrency: Optional[int]  # parallel calls of process_url, over all runners; default: as many as the rate needs
    max_errors: Optional[int]  # stop the batch when this many items did not succeed
    retries: int  # how often an item is tried
    retry_delay: float  # seconds before an item is retried
    backoff: Optional[BatchBackoff]  # waits that grow, instead of `retry_delay`
    priority: int  # 1 (first) to 10 (last)
    on_item_failure: str  # after an item has used up its retries: `stop` the batch, or `skip` the item
    max_failed: Optional[int]  # stop the batch when more items than this did not succeed
    max_failed_percent: Optional[float]  # like `max_failed`, in percent of the total
    item_timeout: int  # seconds to wait for a result; more than 600 only with ack `async`
    # `sync`: the answer of process_url is the result; `async`: it answers 202 and the result is reported later
    ack: str
    items_per_call: int  # items sent to process_url in one call; above 1, it gets `items` and answers `results`
    runners: int  # functions that process the batch in parallel and share its rate
    report: bool  # record every item, for GET …/results?all=true; each runner then writes one more object a second
    concurrency_key: Optional[str]  # batches with the same key run one after another
    pause_windows: Optional[list[dict[str, str]]]  # times of day, in UTC, during which no items are sent
    progress_url: Optional[str]  # gets the callback `batch.progress`, as often as `progress_every_…` says
    progress_every_items: Optional[int]  # call progress_url after this many items
    progress_every_percent: Optional[float]  # call progress_url after this many percent
    waiting: Optional[str]  # `business_down`: process_url does not answer; one call at a time tests it until it does
    progress: BatchProgress  # how far the batch is
    queue_status: Optional[str]  # status of the batch's request in the queue
    channel: Optional[str]  # the channel of the queue
    # why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or
    # `runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the
    # next day
    last_wait_reason: Optional[str]


class BatchProgress(Model):
    """How far a batch is. Returned by `GET /v1/batches/{batch_id}`, in `progress`."""

    processed: int  # items that are done, whatever their result
    total: Optional[int]  # total number of items
    percent: Optional[float]  # progress in percent, 0 to 100
    errors: int  # items that did not succeed
    succeeded: int  # items that succeeded
    failed: int  # how many failed
    abandoned: int  # items that the business gave up (`abandon`)
    failed_calls: int  # failed calls of process_url, including retried ones
    retrying: int  # items that wait for a retry
    awaiting: int  # items whose asynchronous result has not been reported yet
    rate_now: float  # current number of items per second
    offset: int  # all items below this index are done
    eta: Optional[str]  # when the batch will be finished at the current rate


class BatchSource(Model):
    """Returned by `GET /v1/batches/{batch_id}`, in `source`."""

    file_id: Optional[str]  # id of the file in the library
    signature: Optional[str]  # SHA-256 of the content, 64 hexadecimal digits
    format: str  # `csv` or `ndjson`; `ndjson` if the items are objects of a bucket
    encoding: str  # encoding of the text
    delimiter: str  # what separates the values of a CSV row
    compression: Optional[str]  # `gzip` if the file is compressed
    s3_prefix: Optional[str]  # `s3://bucket/prefix`: the objects with this prefix are the items
    s3_inventory: Optional[str]  # manifest of an S3 inventory, whose objects are the items


class BatchBackoff(Model):
    """Returned by `GET /v1/batches/{batch_id}`, in `backoff`."""

    base: float  # seconds before the first retry
    factor: float  # each further retry waits this many times as long
    max: float  # the longest wait, in seconds
    jitter: float  # the part of each wait that is random: 0 (none) to 1 (all of it)


class BatchItem(Model):
    """Returned by `GET /v1/batches/{batch_id}/items`, in `items`."""

    index: int  # index of the item
    state: str  # `failed`, `abandoned` or `recovered` (succeeded after a retry)
    attempts: int  # number of attempts so far
    answer: Model  # the last answer: `result`, and `detail` with the reason (`msg`)
    job_data: Json  # the item's data, as it was sent to process_url
    batch_data: Json  # the batch's own job_data, if the items are rows of a file


class DryRunItem(Model):
    """Returned by `POST /v1/batches/{batch_id}/dry-run`, in `items`."""

    index: int  # index of the item
    answer: Model  # the answer: `result`, and `detail` with the reason (`msg`)
    job_data: Json  # the item's data, as it was sent to process_url; null if the answer would be too large


class BatchSchedule(Model):
    """Returned by `GET /v1/batch-schedules/{schedule_id}` and `GET /v1/batch-schedules`, in `items`."""

    schedule_id: str  # id of the schedule
    biz_id: str  # the business of its batches
    created_by: str  # key_id of its creator, also recorded as the creator of its batches
    revision: int  # increases with every change; send it with a change to refuse it if it is old
    last_batch_id: Optional[str]  # the batch that the last run created
    name: str  # a name for people
    created_at: str  # when it was created, ISO 8601 UTC
    schedule: str  # when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`
    timezone: str  # IANA name of the time zone of `schedule`, such as `Asia/Shanghai`
    status: str  # `active` or `paused`
    last_error: Optional[str]  # why the last run, or its last try, started nothing
    failed_runs: int  # runs that failed in succession; at the third, `schedule.failing` is sent
    next_run: Optional[str]  # when it runs next; absent while it is paused
    last_run: Optional[str]  # the planned time of the last run that started
    # the batch that each run creates, with the fields of POST /v1/batches (not returned by `GET
    # /v1/batch-schedules`, in `items`)
    batch: Optional[Model]


class BatchRun(Model):
    """Returned by `GET /v1/batch-schedules/{schedule_id}/runs`, in `items`."""

    due: str  # the time at which the run was due
    state: str  # `started`, or `skipped` if nothing was started or it was refused
    reason: Optional[str]  # why the run was skipped
    code: Optional[str]  # the error of a run that failed; absent if the previous one still ran
    batch_id: Optional[str]  # the batch that was created
    batch: Optional[Batch]  # the batch in its current state; absent if it was deleted


class File(Model):
    """Returned by `GET /v1/files/{file_id}`."""

    file_id: str  # id of the file in the library
    biz_id: int  # a number of your choice for a business; recorded, and a filter of lists
    app_id: int  # a number of your choice for an application; recorded, and a filter of lists
    file_path: str  # path of the file in the library
    file_name: str  # name of the file
    state: str  # `pending` (not uploaded yet), `coming` (a request downloads it), `verifying`, `ready` or `failed`
    created_at: str  # when it was created, ISO 8601 UTC
    signature: Optional[str]  # SHA-256 of the content, 64 hexadecimal digits
    size: Optional[int]  # size in bytes
    request_id: Optional[str]  # the request that downloads or verifies it
    error: Optional[str]  # why it failed


class FileCreated(Model):
    """Returned by `POST /v1/files`."""

    file_id: str  # id of the file in the library
    upload_url: Optional[str]  # PUT the content to this presigned URL, with all of `upload_headers`
    upload_headers: Optional[dict[str, str]]  # headers that the PUT must have; send all of them
    expires_at: Optional[str]  # until when it is valid, ISO 8601 UTC
    upload: Optional[PartsPlan]  # how to split the content into parts
    request_id: Optional[str]  # id of the request in the queue


class PartsPlan(Model):
    """Returned by `POST /v1/files`, in `upload`."""

    part_size: int  # bytes of every part except the last
    parts: Optional[int]  # the number of parts; absent if no size was announced


class Link(Model):
    """Returned by `GET /v1/files/{file_id}/url`."""

    url: str  # a presigned URL, which needs no key
    expires_at: str  # until when it is valid, ISO 8601 UTC


class Subscription(Model):
    """Returned by `GET /v1/subscriptions/{subscription_id}`."""

    subscription_id: str  # id of the subscription
    name: str  # a name for people
    source_url: str  # URL of the page, feed or manifest that lists files
    create_time: str  # when it was created, ISO 8601 UTC
    biz_id: int  # biz_id of its files
    app_id: int  # app_id of its files
    credentials: Optional[str]  # name of the stored credential for the source
    format: str  # how the source lists its files; `auto` detects it from the answer
    include: Optional[list[str]]  # globs such as `*.iso`; one with a slash is matched against the whole path
    exclude: Optional[list[str]]  # globs such as `*.iso`; one with a slash is matched against the whole path
    # the path of each file in the library, such as `/podcasts/{year}/{name}`; default: its path in the source
    file_path: Optional[str]
    # how changed files are noticed: `auto` compares what the list shows, and asks the server (HEAD) about files
    # that are listed without date and size; `head` asks about all files
    compare: str
    recursive: bool  # also read the folders below a directory index, at most 16 deep
    # what happens to files that the source no longer lists: `keep`, or `trash`: they are deleted from the library
    # after seven days, unless they are listed again
    on_delete: str
    politeness: Optional[dict[str, float]]  # limits for fetching its files
    concurrency: int  # how many of its downloads run in parallel; a change affects new ones only
    priority: Optional[int]  # priority of its scheduled scans and their downloads
    last_scan: Optional[str]  # when the source was read last, ISO 8601 UTC
    schedule: Optional[str]  # when it runs: `rate(1 day)` or `cron(0 6 ? * MON *)`
    timezone: str  # IANA name of the time zone of `schedule`, such as `Asia/Shanghai`
    status: str  # `active` or `paused`
    revision: int  # increases with every change; send it with a change to refuse it if it is old
    last_error: Optional[str]  # why the last run, or its last try, started nothing
    failed_runs: int  # runs that failed in succession; at the third, `schedule.failing` is sent
    next_run: Optional[str]  # when it runs next; absent while it is paused
    last_run: Optional[str]  # the planned time of the last run that started


class ScanRun(Model):
    """Returned by `GET /v1/subscriptions/{subscription_id}/runs`, in `items`."""

    due: str  # the time at which the run was due
    state: str  # `started`, or `skipped` if nothing was started or it was refused
    reason: Optional[str]  # why the run was skipped
    code: Optional[str]  # the error of a run that failed; absent if the previous one still ran
    request_id: Optional[str]  # the scan that was queued
    request: Optional[Request]  # the scan in its current state; absent if it was deleted


class Preview(Model):
    """The files that a scan of the source would download now. Returned by `POST /v1/subscriptions/preview`."""

    format: str  # how the source lists its files
    listed: int  # number of files that the source lists
    chosen: int  # number of files that a scan would download, after include and exclude
    items_: list[PreviewEntry]  # the first hundred of these files
    skipped: int  # entries of the list that cannot be read, and are left out
    skipped_entries: Optional[list[str]]  # why the first ten skipped entries cannot be read
    new: Optional[int]  # with `subscription_id`: files that it has not queued yet
    changed: Optional[int]  # with `subscription_id`: files that changed, as the list shows it
    gone: Optional[int]  # with `subscription_id`: files that the source does not list any more
    gone_entries: Optional[list[str]]  # URLs of the first hundred files that are gone


class PreviewEntry(Model):
    """Returned by `POST /v1/subscriptions/preview`, in `items`."""

    url: str  # URL of the file
    file_path: str  # path of the file in the library
    file_name: str  # name of the file
    size: Optional[int]  # size in bytes
    signature: Optional[str]  # SHA-256 of the content, 64 hexadecimal digits
    plan: Optional[str]  # with `subscription_id`: `new`, `changed` or `same`, as the list shows it


class Credential(Model):
    """A stored credential, without the values of its headers. Returned by `GET /v1/credentials`, in `items`."""

    name: str  # name of the credential
    origins: list[str]  # the only origins that get the headers
    headers: list[str]  # names of the headers; their values are never shown
    updated_at: str  # when it was last stored, ISO 8601 UTC
    updated_by: str  # key_id of whoever stored it


class Request(Model):
    """Returned by `GET /v1/requests/{request_id}`."""

    request_id: str  # id of the request in the queue
    type: str  # `scan`, `associate`, `check`, `download`, `extract`, `export`, `batch` or `verify`
    channel: str  # the channel of the queue
    priority: int  # 1 (first) to 10 (last)
    status: str  # `pending`, `queued`, `running`, `completed`, `failed`, `cancelled` or `paused`
    create_time: str  # when it was created, ISO 8601 UTC
    attempts: int  # number of attempts so far
    subscription_id: Optional[str]  # id of the subscription
    # why it has not started yet: `capacity`, `share`, `paused`, `mutex`, `backoff`, `admission`, or
    # `runner_hours_per_day` if that quota is used up for today; of a running batch, `quota` while it waits for the
    # next day
    last_wait_reason: Optional[str]
    error: Optional[Problem]  # why it failed: `code` and `detail`
    result: Optional[Model]  # the result; the fields depend on the type
    progress: Optional[Model]  # how far it is; the fields depend on the type
    start_time: Optional[str]  # when it started, ISO 8601 UTC
    finish_time: Optional[str]  # when it ended, ISO 8601 UTC
    name: Optional[str]  # the given name, or the name of the file


class Problem(Model):
    """Returned by `GET /v1/requests/{request_id}`, in `error`."""

    code: str  # identifies the kind of error; stable
    detail: str  # what was wrong, with which value, and what to do; for people


class LogLine(Model):
    """One step of an attempt. Returned by `GET /v1/requests/{request_id}/log`, in `items`."""

    at: str  # when, ISO 8601 UTC
    attempt: int  # number of the attempt, from 1
    event: str  # `begun`, `goes on`, `done`, `failed`, `stopped` or `died` (its function was killed)
    detail: Optional[str]  # what was done, or why it failed
    seconds: Optional[float]  # duration of the step in seconds
    code: Optional[str]  # code of the error, for a failed attempt
    stack: Optional[str]  # stack trace of the error; for admin keys only


class Bulk(Model):
    """Returned by `POST /v1/requests/bulk`."""

    changed: int  # number of requests that were changed
    skipped: int  # number of requests that were left as they are, because of their state or the quota `queued`
    next_cursor: Optional[str]  # pass it as `cursor` to get the next page; null or absent on the last page


class Ticket(Model):
    """A ticket, and the URL at which to connect with it. Returned by `POST /v1/ws-tickets`."""

    ticket: str  # pass it as `?ticket=` when you connect; valid once, for 60 seconds
    expires_at: str  # until when it is valid, ISO 8601 UTC
    ws_url: str  # URL at which to connect to the WebSocket


class Project(Model):
    """Returned by `GET /v1/projects`, in `items`."""

    project_id: str  # id of the project
    name: str  # a name for people
    group: Optional[str]  # a label of your choice for projects; it has no effect
    allow_private_urls: bool  # whether the project's URLs (sources, callbacks, process_url) may have private addresses
    created_at: str  # when it was created, ISO 8601 UTC
    gse: ProjectGse  # where the project may send files with `TransferEngine=gse`; nowhere until an admin sets it


class ProjectDetail(Project):
    """Returned by `GET /v1/projects/{project_id}`."""

    project_id: str  # id of the project
    name: str  # a name for people
    group: Optional[str]  # a label of your choice for projects; it has no effect
    allow_private_urls: bool  # whether the project's URLs (sources, callbacks, process_url) may have private addresses
    created_at: str  # when it was created, ISO 8601 UTC
    # the limits of the project; only in projects from before quotas had defaults, one may be missing, which means
    # no limit
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
    gse: ProjectGse  # where the project may send files with `TransferEngine=gse`; nowhere until an admin sets it
    # columns that exports hide, by name: `phone`, `id`, `card`, `email`, or how many characters stay visible at the
    # start and the end; a key of scope `unmask` lifts them. A change replaces all
    masks: Model
    # whether requests are also signed with the secret that all receivers share; off: only with the secret of the
    # receiver's origin
    shared_signatures: bool
    defaults: dict[str, bool]  # the quotas that have the default, because nobody set them: each `true`
    # usage of the quotas: `stored_bytes`, `queued`, `batch_schedules`, `export_schedules`, `subscriptions`,
    # `businesses`, `batches`, `unstarted_batches`, `open_uploads`, of this day (UTC) `runner_hours_per_day`,
    # `egress_bytes_per_day`, `targets_per_day`, `outgoing_calls_per_day`, and `running` by channel
    usage: Model


class ProjectAwsRole(Model):
    """An AWS role whose instances may enrol as hosts, and the groups and labels that they get. Returned by `GET
    /v1/projects/{project_id}`, in `aws_roles`."""

    account: str  # number of the AWS account, 12 digits
    role: str  # name of the role, exact and without its path
    groups: list[str]  # groups of the hosts that enrol by this role
    labels: dict[str, str]  # labels of the hosts that enrol by this role
    replace: bool  # whether an instance may enrol again under its id, such as after it lost its disk: the old key ends


class ProjectGse(Model):
    """Where the project may send files with `TransferEngine=gse`; without targets, directories or users: nowhere.
    Returned by `GET /v1/projects/{project_id}`, in `gse`."""

    # patterns (`*`, `?`, `[…]`, letter case counts) of agent ids, for hosts themselves, or of
    # `agent_id/container_id`, for containers
    targets: list[str]
    # absolute directories; files may go into them and below. Compared part by part, letter case included:
    # `/data/app` does not cover `/data/application`
    dirs: list[str]
    users: list[str]  # names of users, compared exactly


class ProjectQuotas(Model):
    """Returned by `GET /v1/projects/{project_id}`, in `quotas`."""

    # the most bytes in the library and in announced uploads; equal content counts once in the library. An upload
    # without `size` takes 5 GiB of it, and one in parts as much for each part whose length it does not name
    stored_bytes: Optional[int]
    queued: Optional[int]  # the most requests that may wait, over all channels
    running: Optional[int]  # the most slots that the project may hold in a channel; a batch takes one for each runner
    # requests per second of all keys of the project, except those of hosts; a request counts once more for each 32
    # KiB of its answer, a change of a release as ten. With the default, those of a minute can be saved up
    requests_per_s: Optional[int]
    batch_schedules: Optional[int]  # the most recurring batches that the project may have
    export_schedules: Optional[int]  # the most recurring exports that the project may have
    # hours per day (UTC) of functions that work for the project: batches, exports, ingest, samples and sync
    # exports. Each start of queued work counts as 10 seconds, each Job as about 3 minutes, less if it ends earlier,
    # each look at a roll-out as about 5 seconds. When they are used up, work waits for the next day
    runner_hours_per_day: Optional[int]
    # bytes per day (UTC) that Jobs may send out of the bucket, counted when they are dispatched: the size for each
    # host, or about twice for each 50 hosts in a swarm
    egress_bytes_per_day: Optional[int]
    targets_per_day: Optional[int]  # targets of Jobs per day (UTC), counted when they are submitted
    # calls per day (UTC) to businesses; a call counts once more for each 16 KiB of its body. When they are used up,
    # batches wait for the next day
    outgoing_calls_per_day: Optional[int]
    subscriptions: int  # the most subscriptions that the project may have; 1,000 by default
    businesses: int  # the most businesses that the project may register; 1,000 by default
    batches: int  # the most batches that the project may keep, ended ones included; 10,000 by default
    unstarted_batches: int  # the most batches that the project may have created and not started; 1,000 by default
    open_uploads: int  # the most uploads that the project may have announced and not ended; 1,000 by default
    # the most open calls that wait for a remote server (sync exports, samples, previews, dry runs); 20 by default
    slow_calls: int
    share: Optional[dict[str, int]]  # by channel, the slots that the project may hold while another project waits


class Key(Model):
    """`callback_secret` is included for keys of scope `write`. Returned by `POST /v1/projects/{project_id}/keys` and
    `POST /v1/keys`."""

    key_id: str  # id of the key, by which it is listed, rotated and revoked
    key: str  # the key itself, shown only in this answer; only its hash is stored
    # the project's `whsec_…`, which all receivers share, for keys of scope `write`; GET /v1/callback-secret returns
    # one for a single receiver (not returned by `POST /v1/keys`)
    callback_secret: Optional[str]


class KeyRecord(Model):
    """Returned by `GET /v1/keys`, in `items`."""

    key_id: str  # id of the key, by which it is listed, rotated and revoked
    scopes: list[str]  # what the key may do: `read`, `write`, `agent`, `unmask` (lift the masks of exports), `admin`
    agent_id: Optional[str]  # the host that a key of scope `agent` is for
    created_at: Optional[str]  # when it was created, ISO 8601 UTC
    name: Optional[str]  # what the key is for
    created_by: Optional[str]  # key_id of its creator
    last_used_at: Optional[str]  # when it was last used, to the hour
    expires_at: Optional[str]  # until when it is valid, ISO 8601 UTC
    state: str  # `active`, `expired` or `revoked`


class DownloadOptions(TypedDict, total=False):
    """Sent with `POST /v1/downloads`."""

    mode: Optional[str]
    swarm: Optional[str]
    limit_rate: Optional[int]
    activate_at: Optional[str]
    force: Optional[bool]
    note: Optional[str]
    callback: Optional[str]
    target_container_id: Optional[str]


class BatchDownloadOptions(TypedDict, total=False):
    """Either `targets`, or `groups` (hosts in any of them) and `labels` (hosts with all of them). Sent with `POST
    /v1/downloads/batch`."""

    mode: Optional[str]
    swarm: Optional[str]
    limit_rate: Optional[int]
    activate_at: Optional[str]
    force: Optional[bool]
    note: Optional[str]
    callback: Optional[str]
    targets: Optional[Sequence[Target]]
    groups: Optional[Sequence[str]]
    labels: Optional[Mapping[str, Any]]
    waves: Optional[Sequence[Wave]]


class Target(TypedDict):
    """Sent with `POST /v1/downloads/batch`, in `targets`."""

    agent_id: str
    container_id: NotRequired[Optional[str]]


class Wave(TypedDict):
    """A stage of a rollout: the Job is sent to `percent` of its targets in total. The next wave starts when all
    targets of this one have ended, at most `max_failed_percent` of them failed, and `wait_s` has passed since it
    was sent. Sent with `POST /v1/downloads/batch`, in `waves`."""

    percent: int
    wait_s: NotRequired[Optional[int]]
    max_failed_percent: NotRequired[Optional[int]]


class EnrolmentOptions(TypedDict, total=False):
    """Sent with `POST /v1/enrolments`."""

    groups: Optional[Sequence[str]]
    labels: Optional[Mapping[str, Any]]
    uses: Optional[int]
    expires_in: Optional[int]
    replace: Optional[bool]


class FileOptions(TypedDict, total=False):
    """Sent with `POST /v1/files`."""

    file_name: Optional[str]
    signature: Optional[str]
    size: Optional[int]
    source_url: Optional[str]
    mirrors: Optional[Sequence[str]]
    credentials: Optional[str]
    politeness: Optional[Politeness]
    channel: Optional[str]
    priority: Optional[int]
    multipart: Optional[bool]
    callback: Optional[str]


class Politeness(TypedDict, total=False):
    """Limits on reading a source. If one is left out, the operator's limit applies. Sent with `POST /v1/files`, in
    `politeness`."""

    connections: Optional[int]
    bytes_per_s: Optional[int]
    delay_s: Optional[float]
    host_downloads: Optional[int]


class RequestOptions(TypedDict, total=False):
    """Sent with `POST /v1/requests`."""

    subscription_id: Optional[str]
    priority: Optional[int]
    channel: Optional[str]
    not_before: Optional[str]
    dedupe_key: Optional[str]


class SubscriptionOptions(TypedDict, total=False):
    """Sent with `POST /v1/subscriptions`."""

    biz_id: Optional[int]
    app_id: Optional[int]
    credentials: Optional[str]
    format: Optional[str]
    include: Optional[Sequence[str]]
    exclude: Optional[Sequence[str]]
    file_path: Optional[str]
    compare: Optional[str]
    recursive: Optional[bool]
    on_delete: Optional[str]
    politeness: Optional[Politeness]
    concurrency: Optional[int]
    priority: Optional[int]
    schedule: Optional[str]
    timezone: Optional[str]


class SubscriptionChanges(SubscriptionOptions, total=False):
    """Fields that are left out stay as they are; null removes one. Sent with `PATCH
    /v1/subscriptions/{subscription_id}`."""

    paused: Optional[bool]
    revision: Optional[int]
    name: Optional[str]
    source_url: Optional[str]


class PreviewOptions(TypedDict, total=False):
    """Sent with `POST /v1/subscriptions/preview`."""

    format: Optional[str]
    include: Optional[Sequence[str]]
    exclude: Optional[Sequence[str]]
    file_path: Optional[str]
    recursive: Optional[bool]
    subscription_id: Optional[str]


class ExportOptions(TypedDict, total=False):
    """Sent with `POST /v1/task`."""

    file_name: Optional[str]
    callback: Optional[str]
    max_exec_time: Optional[int]
    priority: Optional[int]
    deliver: Optional[Sequence[Mapping[str, Any]]]
    email: Optional[Sequence[str]]
    operator_id: Optional[str]
    merchant_type: Optional[int]
    merchant_id: Optional[Union[int, str]]
    note: Optional[str]
    type: Optional[str]
    step: Optional[int]
    rows_per_file: Optional[int]
    default_width: Optional[float]
    default_height: Optional[float]
    bom: Optional[bool]
    csv_header: Optional[str]
    csv_guard: Optional[bool]
    delimiter: Optional[str]
    encoding: Optional[str]
    line_end: Optional[str]
    compression: Optional[str]
    freeze: Optional[bool]
    autofilter: Optional[bool]
    auto_width: Optional[bool]
    parallel: Optional[int]
    source_rate: Optional[int]
    source_timeout: Optional[int]
    unmask: Optional[bool]
    fill: Optional[Mapping[str, Any]]
    password: Optional[str]
    project_id: Optional[str]
    source_headers: Optional[Mapping[str, Any]]
    source_url: Optional[str]
    source: Optional[Mapping[str, Any]]
    template: Json
    title: Optional[str]
    sheet_name: Optional[str]
    summary: Optional[str]
    header: Json
    footer: Json
    header_align: Optional[str]
    footer_align: Optional[str]
    source_data: Json


class BusinessOptions(TypedDict, total=False):
    """Sent with `POST /v1/biz`."""

    before_create_url: Optional[str]
    before_run_url: Optional[str]
    process_stop_url: Optional[str]
    rate: Optional[float]
    auth_code: Optional[str]


class BatchOptions(TypedDict, total=False):
    """Sent with `POST /v1/batches`."""

    job_data: Json
    total: Optional[int]
    start_index: Optional[int]
    note: Optional[str]
    concurrency: Optional[int]
    max_errors: Optional[int]
    retries: Optional[int]
    retry_delay: Optional[float]
    backoff: Optional[Mapping[str, Any]]
    priority: Optional[int]
    on_item_failure: Optional[str]
    max_failed: Optional[int]
    max_failed_percent: Optional[float]
    item_timeout: Optional[int]
    ack: Optional[str]
    items_per_call: Optional[int]
    runners: Optional[int]
    report: Optional[bool]
    concurrency_key: Optional[str]
    pause_windows: Optional[Sequence[Mapping[str, Any]]]
    progress_url: Optional[str]
    progress_every_items: Optional[int]
    progress_every_percent: Optional[float]
    source: Optional[Mapping[str, Any]]


class GseGrant(TypedDict, total=False):
    """Lists that are left out stay as they are. An empty list grants nothing. Sent with `PATCH
    /v1/projects/{project_id}`, in `gse`."""

    targets: Optional[Sequence[str]]
    dirs: Optional[Sequence[str]]
    users: Optional[Sequence[str]]


class Quotas(TypedDict, total=False):
    """Quotas that are left out stay as they are; null sets the default. Sent with `PATCH /v1/projects/{project_id}`,
    in `quotas`."""

    stored_bytes: Optional[int]
    queued: Optional[int]
    running: Optional[int]
    requests_per_s: Optional[int]
    batch_schedules: Optional[int]
    export_schedules: Optional[int]
    runner_hours_per_day: Optional[int]
    egress_bytes_per_day: Optional[int]
    targets_per_day: Optional[int]
    outgoing_calls_per_day: Optional[int]
    subscriptions: Optional[int]
    businesses: Optional[int]
    batches: Optional[int]
    unstarted_batches: Optional[int]
    open_uploads: Optional[int]
    slow_calls: Optional[int]
    share: Optional[Mapping[str, int]]


# The name of 1.1.
Selection = PreviewOptions
