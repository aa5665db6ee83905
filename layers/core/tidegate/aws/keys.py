"""All keys and index entries of the table. No other module builds a key.

Sections, in the order of the import contract:

- the due index: work that the compensation poll, a schedule or the daily clean-up must look at
- projects: projects, API keys, credentials, quotas, audit, idempotency
- http: what all functions send to one address
- files: files and their contents
- notifications: notices, callbacks, WebSocket connections and watches
- compensation: the poll
- queue: requests, channels, slots, waiting places, retention, schedules
- distribution: Jobs, Tasks, targets, transfers, agent inboxes
- the fleet: hosts, their presence and enrolment
- releases: what should be on which hosts, and what is
- exports: exports and their mail
- batches: businesses, batches, their logs and results
- ingest: subscriptions, unfinished downloads, limits of a host

A pk starts with its project, so two projects share no partition. Items without a project belong to `_system`.

A function with a singular name returns the key of one item. A function with a plural name returns the partition of a
list. The docstring of such a function says what the item, or the items of the partition, contain.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from tidegate.common.ids import digest

SYSTEM = "_system"
META = "META"


def _key(project_id: str, kind: str, *parts: str, sk: str = META) -> dict[str, str]:
    return {"pk": "#".join(("P", project_id, kind, *parts)), "sk": sk}


def partition(project_id: str, kind: str, *parts: str) -> str:
    """Returns the hash key of a partition of the table or of an index."""
    return "#".join(("P", project_id, kind, *parts))


# --- the due index

DUE_ATTRIBUTES = ("due_pk", "due_at", "due_kind")
# Shard 0 is always read; the others only while it lists them (`DueShards` in `aws/table.py`).
DUE_SHARDS = 64
SHARD_KIND = "shard"


def due(_record_id: str, at: float, kind: str) -> dict[str, str | int]:
    """Returns the attributes that put a record into the sparse index of due work.

    `_record_id` is not used. The record goes to shard 0. If a process writes many due records, `DueShards` moves them
    to a shard of the process.
    """
    return {"due_pk": due_partition(0), "due_at": int(at), "due_kind": kind}


def due_partition(shard: int) -> str:
    return f"DUE#{shard}"


def due_shard(shard: int) -> dict[str, str]:
    """The entry in shard 0 that names another shard, in which there may be due records."""
    return _key(SYSTEM, "DUE_SHARD", str(shard))


# --- projects


def projects_list() -> str:
    return partition(SYSTEM, "PROJECTS")


def project(project_id: str) -> dict[str, str]:
    return _key(project_id, "PROJECT")


def project_name(name: str) -> dict[str, str]:
    return _key(SYSTEM, "PROJECT_NAME", name)


def usage(project_id: str) -> dict[str, str]:
    return _key(project_id, "USAGE")


def batch_usage(project_id: str) -> dict[str, str]:
    """Counts of a project's batches.

    Not part of `usage`, because the start of a batch changes both items in one transaction.
    """
    return _key(project_id, "USAGE", sk="BATCHES")


def upload_usage(project_id: str) -> dict[str, str]:
    """Counts of a project's uploads.

    Not part of `usage`, because the end of an upload changes both items in one transaction.
    """
    return _key(project_id, "USAGE", sk="UPLOADS")


def day_usage(project_id: str, day: str) -> dict[str, str]:
    """What the project used on one day, in UTC."""
    return _key(project_id, "USAGE", sk=f"DAY#{day}")


def rate_window(project_id: str, window: int) -> dict[str, str]:
    """Which functions served the project during a window of a few seconds."""
    return _key(project_id, "RATE", sk=str(window))


def agent_rate_window(key_id: str, window: int) -> dict[str, str]:
    """Which functions served the key of a host during a window of a few seconds."""
    return _key(SYSTEM, "AGENT_RATE", key_id, sk=str(window))


def socket_rate_window(key_id: str, window: int) -> dict[str, str]:
    """Which functions served a key's WebSocket connections during a window of a few seconds."""
    return _key(SYSTEM, "SOCKET_RATE", key_id, sk=str(window))


def slow_calls(project_id: str) -> dict[str, str]:
    """Slots for those calls of the project that wait for a remote server."""
    return _key(project_id, "SLOW_CALLS")


def waiting_polls(project_id: str, agent_id: str) -> dict[str, str]:
    """Slots for the polls of one host. Only a poll that waits takes a slot."""
    return _key(project_id, "WAITING_POLLS", agent_id)


def api_keys_list(project_id: str) -> str:
    """The API keys of a project. Admin keys belong to no project and are listed under the system."""
    return partition(project_id or SYSTEM, "KEYS")


def api_key(key_id: str) -> dict[str, str]:
    return _key(SYSTEM, "KEY", key_id)


def agent_life(project_id: str, agent_id: str) -> dict[str, str]:
    """How often the host was deleted or replaced. Never removed, because older keys of the host must stay refused."""
    return _key(project_id, "AGENT_LIFE", agent_id)


def agent_keys(project_id: str, agent_id: str) -> str:
    return partition(project_id, "AGENT_KEYS", agent_id)


def agent_key(project_id: str, agent_id: str, key_id: str) -> dict[str, str]:
    """One API key of a host.

    The item is in the table and not in an index, so that a deletion of the host reads consistently and misses no new
    key.
    """
    return {"pk": agent_keys(project_id, agent_id), "sk": key_id}


def agent_keys_named(project_id: str) -> dict[str, str]:
    """The progress of a migration. The migration adds an `agent_key` for each older API key of a host."""
    return _key(project_id, "AGENT_KEYS_NAMED")


def key_connections(record_id: str) -> str:
    return partition(SYSTEM, "KEY_CONNECTIONS", record_id)


def key_connection(record_id: str, connection_id: str) -> dict[str, str]:
    """A WebSocket connection of an API key.

    The item is in the table and not in an index, so that a revocation reads all connections consistently.
    """
    return {"pk": key_connections(record_id), "sk": connection_id}


def credentials(project_id: str) -> str:
    return partition(project_id, "CREDENTIALS")


def credential(project_id: str, name: str) -> dict[str, str]:
    """The public part of a stored credential; its headers are in Secrets Manager."""
    return {"pk": credentials(project_id), "sk": name}


# Every submit writes an audit line: under load, these are more writes than one partition of an index takes.
AUDIT_SPREAD = 8


def audit_trail(project_id: str, record_id: str) -> str:
    return partition(project_id, "AUDIT", digest(record_id, length=32))


def audit_list(project_id: str, spread: int) -> str:
    return partition(project_id, "AUDITS", *([str(spread)] if spread else []))


def audit_by_actor(project_id: str, actor: str, spread: int) -> str:
    return partition(project_id, "AUDIT_BY", actor, str(spread))


def idempotency(project_id: str, idempotency_key: str) -> dict[str, str]:
    # The form in which Powertools stored it.
    hashed = hashlib.md5(json.dumps(idempotency_key).encode(), usedforsecurity=False).hexdigest()
    return _key(project_id, "IDEMPOTENCY", digest(idempotency_key, length=32), sk=f"idempotent#{hashed}")


def idempotent_answers(project_id: str, answer_id: str) -> str:
    return partition(project_id, "IDEMPOTENT_ANSWER", answer_id)


def idempotent_answer(project_id: str, answer_id: str, number: int) -> dict[str, str]:
    """One piece of an answer that is too large for the record of its Idempotency-Key."""
    return _key(project_id, "IDEMPOTENT_ANSWER", answer_id, sk=f"{number:04d}")


# --- http


def host_usage(address: str, kind: str, window: int) -> dict[str, str]:
    return _key(SYSTEM, "HOST_USAGE", kind, address, sk=str(window))


# --- files


def files_list(project_id: str) -> str:
    return partition(project_id, "FILES")


def open_uploads(project_id: str) -> str:
    return partition(project_id, "OPEN_UPLOADS")


def open_upload(project_id: str, file_id: str) -> dict[str, str]:
    """The bytes that an announced upload reserves. All open uploads of a project are in one partition, oldest first."""
    return {"pk": open_uploads(project_id), "sk": file_id}


def files_at_path(project_id: str, biz_id: str, app_id: str, file_path: str) -> str:
    return partition(project_id, "PATH", digest(biz_id, app_id, file_path, length=32))


def file(project_id: str, file_id: str) -> dict[str, str]:
    return _key(project_id, "FILE", file_id)


def content(project_id: str, signature: str) -> dict[str, str]:
    return _key(project_id, "CONTENT", signature)


# --- notifications


def notice(project_id: str, notice_id: str) -> dict[str, str]:
    return _key(project_id, "NOTICE", notice_id)


def callbacks_list(project_id: str) -> str:
    return partition(project_id, "CALLBACKS")


def callbacks_of(project_id: str, record_id: str) -> str:
    return partition(project_id, "CALLBACKS_OF", digest(record_id, length=32))


def callback(project_id: str, delivery_id: str) -> dict[str, str]:
    return _key(project_id, "CALLBACK", delivery_id)


# The record for all hosts of a project together. No host has this name, because they are written in lower case.
ALL_HOSTS = "ALL"


def circuit(project_id: str, host: str) -> dict[str, str]:
    return _key(project_id, "CIRCUIT", host)


def ticket(ticket: str) -> dict[str, str]:
    return _key(SYSTEM, "TICKET", digest(ticket))


def connection(connection_id: str) -> dict[str, str]:
    return _key(SYSTEM, "CONNECTION", connection_id)


def watches_of_connection(connection_id: str) -> str:
    return partition(SYSTEM, "CONNECTION", connection_id)


WATCH_PREFIX = "BY#"


def watched(project_id: str, record_id: str) -> dict[str, str]:
    return _key(project_id, "WATCH", digest(record_id, length=32))


def watch(project_id: str, followed_id: str, record_id: str, connection_id: str) -> dict[str, str]:
    by = f"{WATCH_PREFIX}{connection_id}#{digest(record_id, length=16)}"
    return _key(project_id, "WATCH", digest(followed_id, length=32), sk=by)


# --- compensation


def compensation() -> dict[str, str]:
    return _key(SYSTEM, "COMPENSATION")


def compensated(generation: int) -> dict[str, str]:
    """A marker that the work started by one poll has been counted."""
    return _key(SYSTEM, "COMPENSATED", str(generation))


def sweep_cursor() -> dict[str, str]:
    """The place in the bucket where the next sweep starts."""
    return _key(SYSTEM, "SWEEP")


def stopped_sweep() -> dict[str, str]:
    """The last clean-up that stopped itself."""
    return _key(SYSTEM, "SWEEP_STOPPED")


def store_identity() -> dict[str, str]:
    """The marker that is in the table and in the bucket. It shows that this table and this bucket belong together."""
    return _key(SYSTEM, "IDENTITY")


def freeze() -> dict[str, str]:
    return _key(SYSTEM, "FREEZE")


def lane(name: str) -> dict[str, str]:
    return _key(SYSTEM, "LANE", name)


# --- queue


def requests_list(project_id: str) -> str:
    return partition(project_id, "REQUESTS")


def request(project_id: str, request_id: str) -> dict[str, str]:
    return _key(project_id, "REQUEST", request_id)


def request_log(project_id: str, request_id: str) -> str:
    return partition(project_id, "REQUEST_LOG", request_id)


def request_log_line(project_id: str, request_id: str, at: str, line_id: str) -> dict[str, str]:
    return {"pk": request_log(project_id, request_id), "sk": f"{at}#{line_id}"}


def dedupe(project_id: str, dedupe_key: str) -> dict[str, str]:
    """The request to which a caller gave this `dedupe_key`."""
    return _key(project_id, "DEDUPE", digest(dedupe_key, length=32))


def subscription_requests(project_id: str, subscription_id: str) -> str:
    return partition(project_id, "SUBSCRIPTION", subscription_id, "REQUESTS")


# Every transition of a request changes the counts: under load, these are more writes than one item takes.
STATS_SPREAD = 4


def requests_stats(project_id: str) -> str:
    return partition(project_id, "REQUEST_STATS")


def request_stats(project_id: str, hour: str, type: str, request_id: str) -> dict[str, str]:
    spread = int(digest(request_id, length=8), 16) % STATS_SPREAD
    return {"pk": requests_stats(project_id), "sk": f"{hour}#{type}#{spread}"}


def type_of_stats(sk: str) -> str:
    return sk.split("#")[1]


def channels() -> str:
    return partition(SYSTEM, "CHANNELS")


def channel(name: str) -> dict[str, str]:
    return {"pk": channels(), "sk": name}


def admission_runs(channel_name: str) -> dict[str, str]:
    """The runs of a channel's admission.

    Not in the channel's record, because the end of every request writes that record.
    """
    return _key(SYSTEM, "ADMISSION_RUNS", channel_name)


def standings(channel_name: str) -> str:
    return partition(SYSTEM, "STANDINGS", channel_name)


def standing(channel_name: str, project_id: str) -> dict[str, str]:
    return {"pk": standings(channel_name), "sk": project_id}


def waiting(channel_name: str, project_id: str) -> str:
    return partition(SYSTEM, "WAITING", channel_name, project_id)


def waiting_place(channel_name: str, project_id: str, rank: int, request_id: str) -> dict[str, str]:
    """A waiting request. Requests are sorted in the order of admission, because `rank` combines priority and age."""
    return {"pk": waiting(channel_name, project_id), "sk": f"{rank:015d}#{request_id}"}


def waiting_by_age(channel_name: str) -> str:
    return partition(SYSTEM, "WAITING_BY_AGE", channel_name)


def shared_waiting(channel_name: str) -> str:
    """The old queue that all projects shared.

    Requests from before each project had its own queue may still wait there.
    """
    return partition(SYSTEM, "WAITING", channel_name)


def shared_waiting_place(channel_name: str, priority: int, since: str, request_id: str) -> dict[str, str]:
    return {"pk": shared_waiting(channel_name), "sk": f"{priority:02d}#{since}#{request_id}"}


def slots(channel_name: str) -> str:
    return partition(SYSTEM, "SLOTS", channel_name)


def slot(channel_name: str, request_id: str) -> dict[str, str]:
    return {"pk": slots(channel_name), "sk": request_id}


def mutex(project_id: str, name: str) -> dict[str, str]:
    return _key(project_id, "MUTEX", name)


# Every request that ends is written to one of these partitions; only the daily clean-up reads them.
RETENTION_SHARDS = 16


def retained(record_id: str, until: float) -> dict[str, str | int]:
    """Returns the attributes by which the daily clean-up finds a record when its retention is over."""
    shard = int(digest(record_id, length=8), 16) % RETENTION_SHARDS
    return {"due_pk": retention_partition(shard), "due_at": int(until), "due_kind": "retention"}


def retention_partition(shard: int) -> str:
    return f"RETAIN#{shard}"


@dataclass(frozen=True, slots=True)
class ScheduleKeys:
    """Makes the keys of one capability's schedules.

    `due_pk`: a partition of the due index, which is read once a minute. One partition takes several hundred writes a
    second, and each run of a schedule is one write.
    """

    name: str
    listed: str
    due_pk: str
    due_kind: str

    def list(self, project_id: str) -> str:
        return partition(project_id, self.listed)

    def record(self, project_id: str, schedule_id: str) -> dict[str, str]:
        return _key(project_id, self.name, schedule_id)

    def order(self, project_id: str, schedule_id: str) -> dict[str, str]:
        """The order that each run of the schedule starts.

        A separate item, because it can be large and no list shows it.
        """
        return _key(project_id, self.name, schedule_id, sk="ORDER")

    def runs(self, project_id: str, schedule_id: str) -> str:
        return partition(project_id, self.name, schedule_id, "RUNS")

    def run(self, project_id: str, schedule_id: str, due: str) -> dict[str, str]:
        return {"pk": self.runs(project_id, schedule_id), "sk": due}

    def due(self, at: float) -> dict[str, str | int]:
        return {"due_pk": self.due_pk, "due_at": int(at), "due_kind": self.due_kind}


EXPORT_SCHEDULES = ScheduleKeys("EXPORT-SCHEDULE", "EXPORT-SCHEDULES", "EXPORT-SCHEDULE#0", "export-schedule")
BATCH_SCHEDULES = ScheduleKeys("BATCH_SCHEDULE", "BATCH_SCHEDULES", "BATCH_SCHEDULES", "batch_schedule")
SUBSCRIPTIONS = ScheduleKeys("SUBSCRIPTION", "SUBSCRIPTIONS", "SCAN#0", "scan")


# --- distribution


def jobs_list(project_id: str) -> str:
    return partition(project_id, "JOBS")


def jobs_at_path(project_id: str, biz_id: int, app_id: int, file_path: str) -> str:
    return partition(project_id, "JOBPATH", digest(str(biz_id), str(app_id), file_path, length=32))


def job(project_id: str, job_key: str) -> dict[str, str]:
    return _key(project_id, "JOB", job_key)


def cancelled_job(project_id: str, job_key: str) -> dict[str, str]:
    """The time when a Job was cancelled.

    Kept longer than the Job, because a message with the Job's targets may come later.
    """
    return _key(project_id, "CANCELLED_JOB", job_key)


def path_sequence(project_id: str, target_file_dir: str, file_name: str) -> dict[str, str]:
    """The last sequence number that a path on hosts got. Extra slashes in the path make no difference."""
    return _key(project_id, "SEQUENCE", _path_digest(target_file_dir, file_name))


def jobs_to_path(project_id: str, target_file_dir: str, file_name: str) -> str:
    """The Jobs that deliver to a path on hosts. They may deliver different files of the library."""
    return partition(project_id, "JOBS_TO_PATH", _path_digest(target_file_dir, file_name))


def job_to_path(
    project_id: str, target_file_dir: str, file_name: str, sequence: int, job_key: str = ""
) -> dict[str, str]:
    """A Job that delivers to a path, sorted by sequence.

    Without `job_key`: a key before all Jobs with this sequence.
    """
    path = _path_digest(target_file_dir, file_name)
    return _key(project_id, "JOBS_TO_PATH", path, sk=f"{sequence:020d}#{job_key}")


def _path_digest(target_file_dir: str, file_name: str) -> str:
    parts = [part for part in (*target_file_dir.split("/"), file_name) if part not in ("", ".")]
    return digest(*parts, length=32)


def chunks(project_id: str, job_key: str) -> str:
    return partition(project_id, "CHUNKS", job_key)


def chunk(project_id: str, job_key: str, chunk_id: str) -> dict[str, str]:
    return _key(project_id, "CHUNKS", job_key, sk=chunk_id)


def job_callbacks(project_id: str, job_key: str) -> str:
    return partition(project_id, "JOBCALLBACKS", job_key)


def job_callback(project_id: str, job_key: str, chunk_id: str) -> dict[str, str]:
    return _key(project_id, "JOBCALLBACKS", job_key, sk=chunk_id)


def shard(project_id: str, job_key: str, number: int) -> dict[str, str]:
    return _key(project_id, "SHARD", job_key, str(number))


def transfers(project_id: str, job_key: str) -> str:
    return partition(project_id, "TRANSFERS", job_key)


def transfer(project_id: str, job_key: str, number: int) -> dict[str, str]:
    return _key(project_id, "TRANSFERS", job_key, sk=f"{number:05d}")


TASK_SPREAD = 8


def task(project_id: str, uuid: str) -> dict[str, str]:
    return _key(project_id, "TASK", uuid)


def task_spread(uuid: str) -> int:
    return int(digest(uuid, length=8), 16) % TASK_SPREAD


def tasks_of_job(project_id: str, job_key: str, spread: int) -> str:
    """One of the partitions with the Tasks of a Job. One partition would not take 100,000 Tasks within seconds."""
    return partition(project_id, "JOBTASKS", job_key, str(spread))


def tasks_list(project_id: str, spread: int) -> str:
    return partition(project_id, "TASKS", str(spread))


def inbox(project_id: str, agent_id: str) -> str:
    return partition(project_id, "INBOX", agent_id)


def job_inbox_entries(project_id: str, job_key: str, shard_number: int) -> str:
    return partition(project_id, "ORDERS", job_key, str(shard_number))


def inbox_entry(project_id: str, job_key: str, shard_number: int, agent_id: str, container_id: str) -> dict[str, str]:
    """A transfer in an agent's inbox: what the agent is to fetch, and what it reported."""
    target = digest(agent_id, container_id, length=32)
    return _key(project_id, "ORDERS", job_key, str(shard_number), sk=target)


def staging(project_id: str, agent_id: str, signature: str) -> dict[str, str]:
    return _key(project_id, "STAGING", agent_id, signature)


# --- the fleet

AGENT_SPREAD = 8


def agents(project_id: str, spread: int) -> str:
    return partition(project_id, "AGENTS", str(spread))


def agent(project_id: str, agent_id: str) -> dict[str, str]:
    """A host. Hosts are spread over partitions, because after an outage thousands of them connect within seconds."""
    spread = int(digest(agent_id, length=8), 16) % AGENT_SPREAD
    return {"pk": agents(project_id, spread), "sk": agent_id}


def presence(project_id: str, agent_id: str) -> dict[str, str]:
    return _key(project_id, "PRESENCE", agent_id)


def enrolment(token_id: str) -> dict[str, str]:
    return _key(SYSTEM, "ENROLMENT", token_id)


def spent_signature(signature: str) -> dict[str, str]:
    """A marker that a host's signed AWS identity was used. Each signature is accepted only once."""
    return _key(SYSTEM, "SPENT_SIGNATURE", signature)


# --- releases


def releases(project_id: str) -> str:
    return partition(project_id, "RELEASES")


def release(project_id: str, name: str) -> dict[str, str]:
    return {"pk": releases(project_id), "sk": name}


def last_revision(project_id: str, name: str) -> dict[str, str]:
    """The last revision number of a deleted release. A new release with the same name continues from this number."""
    return _key(project_id, "LAST_REVISION", name)


def revisions(project_id: str, name: str) -> str:
    return partition(project_id, "REVISIONS", name)


def revision(project_id: str, name: str, number: int) -> dict[str, str]:
    return {"pk": revisions(project_id, name), "sk": f"{number:010d}"}


def host_releases(project_id: str, agent_id: str) -> str:
    return partition(project_id, "HOST_RELEASES", agent_id)


def host_release(project_id: str, agent_id: str, name: str) -> dict[str, str]:
    """The state of a release on one host."""
    return {"pk": host_releases(project_id, agent_id), "sk": name}


def release_hosts(project_id: str, name: str) -> str:
    return partition(project_id, "RELEASE_HOSTS", name)


# --- exports


def export_mail(project_id: str, task_id: str, address: str) -> dict[str, str]:
    """A marker that the sending of an e-mail about the export has begun, so that the mail is not sent twice."""
    return _key(project_id, "EXPORT", task_id) | {"sk": f"MAIL#{digest(address.lower(), length=32)}"}


def exports_list(project_id: str) -> str:
    return partition(project_id, "EXPORTS")


def export(project_id: str, task_id: str) -> dict[str, str]:
    return _key(project_id, "EXPORT", task_id)


# --- batches


def businesses_list(project_id: str) -> str:
    return partition(project_id, "BIZS")


def business(project_id: str, biz_id: str) -> dict[str, str]:
    return _key(project_id, "BIZ", biz_id)


def business_rates(project_id: str, biz_id: str) -> str:
    """The runners that call a business now, and the rate that each of them wants."""
    return partition(project_id, "BIZ_RATE", biz_id)


def business_rate(project_id: str, biz_id: str, batch_id: str, runner: int = 0) -> dict[str, str]:
    return _key(project_id, "BIZ_RATE", biz_id, sk=f"{batch_id}#{runner:02d}" if runner else batch_id)


def batches_list(project_id: str) -> str:
    return partition(project_id, "BATCHES")


def batch(project_id: str, batch_id: str) -> dict[str, str]:
    return _key(project_id, "BATCH", batch_id)


# The prefix of the sort keys of a batch's runners, which sort in the order of the runners.
BATCH_PROGRESS = "PROGRESS"


def batch_progress(project_id: str, batch_id: str, runner: int = 0) -> dict[str, str]:
    return _key(project_id, "BATCH", batch_id, sk=f"{BATCH_PROGRESS}#{runner:02d}" if runner else BATCH_PROGRESS)


def batch_data(project_id: str, batch_id: str) -> dict[str, str]:
    return _key(project_id, "BATCH", batch_id, sk="DATA")


def batch_deleted(project_id: str, batch_id: str) -> dict[str, str]:
    """A deleted batch whose objects, log lines and results are not all deleted yet."""
    return _key(project_id, "BATCH", batch_id, sk="DELETED")


def batch_logs(project_id: str, batch_id: str) -> str:
    return partition(project_id, "BATCH_LOG", batch_id)


def batch_log(project_id: str, batch_id: str, time: str, log_id: str) -> dict[str, str]:
    return _key(project_id, "BATCH_LOG", batch_id, sk=f"{time}#{log_id}")


def batch_item_logs(project_id: str, batch_id: str, index: int) -> str:
    return partition(project_id, "BATCH_LOG", batch_id, str(index))


def batch_results(project_id: str, batch_id: str) -> str:
    return partition(project_id, "BATCH_RESULT", batch_id)


def batch_results_from(index: int) -> tuple[str, str]:
    """Returns the first and the last sort key of results, for all items from this index on."""
    return f"{index:016d}", "9" * 16


def batch_result(project_id: str, batch_id: str, index: int) -> dict[str, str]:
    """How the last call of an item ended, in a batch whose results come in separate calls."""
    return _key(project_id, "BATCH_RESULT", batch_id, sk=f"{index:016d}")


def batch_called(project_id: str, batch_id: str, runner: int = 0) -> dict[str, str]:
    """How far a runner has called its items, in a batch whose results come in separate calls."""
    return _key(project_id, "BATCH", batch_id, sk=f"CALLED#{runner:02d}")


# --- ingest


def subscription(project_id: str, subscription_id: str) -> dict[str, str]:
    return _key(project_id, "SUBSCRIPTION", subscription_id)


def manifest_entries(project_id: str, subscription_id: str) -> str:
    return partition(project_id, "SUBSCRIPTION", subscription_id, "ENTRIES")


def manifest_entry(project_id: str, subscription_id: str, url: str) -> dict[str, str]:
    return {"pk": manifest_entries(project_id, subscription_id), "sk": digest(url, length=32)}


def unfinished(project_id: str, request_id: str) -> dict[str, str]:
    """The multipart upload of a download that is not finished."""
    return _key(project_id, "REQUEST", request_id, sk="UNFINISHED")


def host_pauses(project_id: str) -> str:
    return partition(project_id, "HOST_PAUSES")


def host_pause(project_id: str, origin: str) -> dict[str, str]:
    return {"pk": host_pauses(project_id), "sk": origin}


def host_slot(project_id: str, host: str, number: int) -> dict[str, str]:
    """A slot for one of the downloads that a project may run from a host at the same time."""
    return _key(project_id, "HOST_SLOT", f"{host}#{number}")
